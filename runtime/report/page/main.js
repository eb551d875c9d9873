// The parts of the page that are words, and the beginning of it all.
const VERDICT_CLASS = { completed: "good", healthy: "good", slow: "good", starved: "fair", stalled: "bad", livelocked: "bad", deadlocked: "bad", stopped: "bad", failed: "bad", interrupted: "fair" };

function said(line) {
  return element("li", {}, element("div", { class: "said" }, line));
}

function makeVerdict() {
  const parent = document.getElementById("verdict-body"), { verdict } = data;
  if (verdict.unknown !== undefined) {
    parent.append(element("span", { class: "verdict fair" }, "not known"), element("p", { class: "said" }, verdict.unknown));
    return;
  }
  parent.append(
    element("p", {}, element("span", { class: `verdict ${VERDICT_CLASS[verdict.verdict] ?? "fair"}` }, verdict.verdict),
      verdict.before ? `, ${verdict.before} before` : "", `  step ${verdict.step}: ${verdict.selected} selected + ${verdict.charged} charged of ${verdict.size}`),
    element("ol", { class: "chain" }, ...verdict.waits_for.map(said)));
  if (verdict.proof.length) parent.append(element("h3", {}, "Proof"), element("ul", { class: "chain" }, ...verdict.proof.map(said)));
  if (verdict.waits_for.length > 1) parent.append(element("h3", {}, "Root"), element("p", { class: "said" }, verdict.root));
  parent.append(element("h3", {}, "What to change"), element("p", { class: "said" }, verdict.advice));
  if (verdict.silent_s >= 1) parent.append(element("p", { class: "quiet" }, `Nothing was recorded for the ${seconds(verdict.silent_s * 1000)} before this page was made: the process waits, was killed, or could not write.`));
}

function makeSheet() {
  const { sheet } = data;
  const places = Object.entries(sheet).filter(([name]) => name !== "pulled" && name !== "replaced");
  const sum = places.reduce((total, [, groups]) => total + groups, 0);
  const tile = (name, value) => element("li", {}, element("b", {}, count(value)), name.replace("_", " "));
  let closed = 0;
  for (const when of steps.closed) if (when !== NOT_YET) closed += 1;
  document.getElementById("sheet-body").append(
    element("ul", { class: "tiles" }, tile("steps closed", closed), tile("prompts pulled", sheet.pulled), ...places.map(([name, groups]) => tile(name, groups)),
      tile("replaced", sheet.replaced), tile("late answers", data.late_answers)),
    element("p", { class: "quiet" }, data.absolute
      ? `Every prompt pulled is in exactly one place: ${places.filter(([, groups]) => groups).map(([name, groups]) => `${count(groups)} ${name.replace("_", " ")}`).join(" + ") || "none"} = ${count(sum)}${sum === sheet.pulled ? "" : `, but ${count(sheet.pulled)} were pulled`}.`
      : "This part of a trace has neither the run's beginning nor a snapshot: these and the counters over time are only what changed within it."));
}

function makeHappenings() {
  const parent = document.getElementById("happenings-body");
  if (!marks.rows) {
    parent.append(element("p", {}, "Nothing was noted."));
    return;
  }
  const most = 500, from = Math.max(0, marks.rows - most);
  const rows = Array.from({ length: marks.rows - from }, (_, each) => {
    const row = from + each;
    return [element("button", { type: "button", class: "link", onclick: () => lookAtTime(marks.t[row] - 1000, marks.t[row] + 1000) }, at(marks.t[row])),
      clock(marks.t[row]), data.words.marks[marks.kind[row]], data.texts[marks.text[row]]];
  });
  if (from) parent.append(element("p", { class: "quiet" }, `The last ${most} of ${count(marks.rows)}.`));
  parent.append(element("div", { class: "rows", tabindex: "0", role: "region", "aria-label": "Other events" }, tableOf(["at", "clock", "what", ""], rows, [])));
}

function makeWords() {
  document.title = `evenstep report: ${data.file}`;
  const began = data.first_seq === 0 ? "" : `, from record ${data.first_seq} on`;
  const words = [
    data.file, `sampler ${data.sampler}`, `N = ${data.size} \u00d7 ${data.generations}`, `started ${clock(0)}`,
    `${seconds(data.ended - data.begun)}${data.over ? "" : ", not over"}`, `${count(data.records)} records${began}${data.torn ? "; the last line is torn and was left out" : ""}`,
    data.processes.length > 1 ? `resumed: ${data.processes.slice(1).map((each) => `${each.name} from step ${each.step} on, ${at(each.began)}`).join(", ")}` : null,
    data.processes.length === 1 && data.incarnation ? `a trace of a resumed run, from step ${data.processes[0].step} on` : null,
  ];
  document.getElementById("run").textContent = words.filter(Boolean).join("  \u00b7  ");
  document.getElementById("configuration-body").textContent = JSON.stringify({ config: data.config, seeds: data.seeds, packages: data.packages }, null, 2);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  colours.clear();
  for (const panel of allPanels) panel.later();
}

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.getElementById("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  find(document.getElementById("search-text").value);
});

for (const make of [makeWords, makeVerdict, makeSheet, makeTimeline, makeSteps, makeWaits, makeLengths, makeSamples, makeHappenings]) make();
// Two frames on everything is drawn; tests and the benchmark read how long it took since the page was asked for.
requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.drawnMs = String(Math.round(performance.now())); }));
