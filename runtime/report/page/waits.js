// What the trainer waited for while it was assembling, and for whom it waited longest.
const LONGEST_WAITS = 100;
const CAUSE_COLOURS = ["in-flight", "retried", "gate-closed", "dropped", "mark"];

function share(parts, whole) {
  const bar = element("div", { class: "share", role: "img", "aria-label": parts.map(([, word, ms]) => `${word} ${Math.round(ms / whole * 100)} percent`).join(", ") });
  for (const [ink, , ms] of parts) {
    const piece = element("span");
    piece.style.width = `${ms / whole * 100}%`;
    piece.style.background = `var(--${ink})`;
    bar.append(piece);
  }
  return element("div", {}, bar, legend(parts.map(([ink, word, ms]) => [ink, `${word}: ${seconds(ms)}, ${(ms / whole * 100).toFixed(1)} %`])));
}

function makeWaits() {
  const parent = document.getElementById("waits-body");
  const inPhase = data.words.phases.map(() => 0);
  for (let row = 0; row < phases.rows; row++) inPhase[phases.phase[row]] += phases.ended[row] - phases.begun[row];
  const whole = inPhase.reduce((sum, ms) => sum + ms, 0);
  if (!whole) {
    parent.append(element("p", {}, "The trainer was never busy in this trace."));
    return;
  }
  parent.append(element("h3", {}, "The trainer's time"), share(data.words.phases.map((name, phase) => [name, name, inPhase[phase]]), whole));
  const causes = data.words.cause_columns.map((name) => waits[name].reduce((sum, ms) => sum + ms, 0));
  const waited = causes.reduce((sum, ms) => sum + ms, 0);
  if (!waited) {
    parent.append(element("p", {}, "It never waited for groups."));
    return;
  }
  parent.append(element("h3", {}, "What it waited for while assembling"),
    share(causes.map((ms, cause) => [CAUSE_COLOURS[cause], data.words.causes[cause], ms]).filter(([, , ms]) => ms), waited));
  const longest = Array.from({ length: waits.rows }, (_, row) => row)
    .sort((one, other) => waits.ended[other] - waits.begun[other] - (waits.ended[one] - waits.begun[one])).slice(0, LONGEST_WAITS);
  const rows = longest.map((row) => {
    const causesOf = data.words.cause_columns.map((name, cause) => [waits[name][row], data.words.causes[cause]]).filter(([ms]) => ms)
      .sort((one, other) => other[0] - one[0]).map(([ms, word]) => `${word} (${seconds(ms)})`);
    const show = element("button", { type: "button", class: "link", onclick: () => lookAtTime(waits.begun[row], waits.ended[row]) }, at(waits.begun[row]));
    return [show, waits.step[row], seconds(waits.ended[row] - waits.begun[row]), causesOf.join(", "), endOfWait(row)];
  });
  parent.append(element("h3", {}, `The longest waits${waits.rows > LONGEST_WAITS ? `, ${LONGEST_WAITS} of ${count(waits.rows)}` : ""}`),
    element("div", { class: "rows", tabindex: "0", role: "region", "aria-label": "The longest waits" }, tableOf(["at", "step", "for", "waited for", "ended when"], rows, [1, 2])));
}

function endOfWait(row) {
  const said = data.words.endings[waits.ended_by[row]], prompt = waits.prompt[row];
  if (prompt === NONE) return said;
  const attempt = attemptsOfPrompt(prompt).find((each) => attempts.ended[each] === waits.ended[row]);
  const link = element("button", { type: "button", class: "link", onclick: () => showPrompt(prompt) }, `prompt ${prompt}`);
  if (attempt === undefined || attempts.begun[attempt] === NOT_YET) return element("span", {}, `${said}: `, link);
  const age = seconds(attempts.ended[attempt] - attempts.begun[attempt]);
  return element("span", {}, `${said}: `, link, ` on ${workerName(attempts.worker[attempt])}, after ${age}`);
}
