// The life of a prompt, a group (its slot), a step; and texts.
const FOUND_MOST = 300;

function afterwards(row) {
  const after = attempts.after[row];
  if (after === 1) return "; a spare takes over its slot";
  if (after !== 2) return "";
  return attempts.charged[row] === NONE ? "; lost, and charged to no step" : `; lost, and charged to step ${attempts.charged[row]}`;
}

function yielded(row) {
  const words = [];
  if (!Number.isNaN(attempts.reward[row])) words.push(`reward ${brief(attempts.reward[row])} \u00b1 ${brief(attempts.reward_std[row])}`);
  if (attempts.rollouts[row]) {
    words.push(`${attempts.correct[row]} of ${attempts.rollouts[row]} right`, `${brief(attempts.tokens[row] / attempts.rollouts[row])} tokens a rollout, the longest ${attempts.longest[row]}`);
    words.push(`generated in ${seconds(attempts.generation_s[row] * 1000)}`);
    if (attempts.truncated[row]) words.push(`${attempts.truncated[row]} cut off`);
  }
  return words.join(", ");
}

function attemptLines(row) {
  const state = data.words.states[attempts.state[row]];
  const age = attempts.begun[row] === NOT_YET ? "began before this trace" : `began ${at(attempts.begun[row])}, ${attempts.ended[row] === NOT_YET ? "runs" : "took"} ${seconds(endOf(attempts.ended[row]) - attempts.begun[row])}`;
  const lines = [
    `prompt ${attempts.prompt[row]}, ${groupName(row)}: ${state}${afterwards(row)}`,
    `${workerName(attempts.worker[row])}, dispatch ${attempts.dispatch[row] === NOT_YET ? "not known" : attempts.dispatch[row]}, start weight ${attempts.weight[row] === NONE ? "not known" : attempts.weight[row]}${attempts.target[row] === NONE ? "" : `, for step ${attempts.target[row]}`}`,
    age,
  ];
  if (yielded(row)) lines.push(yielded(row));
  if (attempts.step[row] !== NONE) lines.push(`selected into step ${attempts.step[row]} at staleness ${attempts.step[row] - attempts.weight[row]}, ${at(attempts.left[row])}`);
  if (attempts.error[row] !== NOT_YET) lines.push(data.texts[attempts.error[row]].slice(0, 300));
  return lines;
}

function groupName(row) {
  return attempts.slot[row] === NOT_YET ? "group not known" : `group ${attempts.slot[row]}`;
}

// What happened to an attempt and to its group, as [time, words].
function eventsOf(row) {
  const events = [], prompt = `prompt ${attempts.prompt[row]}`;
  const target = attempts.target[row] === NONE ? "" : `, for step ${attempts.target[row]}`;
  if (attempts.begun[row] === NOT_YET) events.push([data.begun, `${prompt} was in hand before this trace`]);
  else events.push([attempts.begun[row], `${prompt} starts in ${groupName(row)} on ${workerName(attempts.worker[row])}: dispatch ${attempts.dispatch[row]}, start weight ${attempts.weight[row]}${target}`]);
  const state = data.words.states[attempts.state[row]];
  const error = attempts.error[row] === NOT_YET ? "" : `: ${data.texts[attempts.error[row]]}`;
  if (attempts.ended[row] !== NOT_YET) {
    const took = attempts.begun[row] === NOT_YET ? "" : ` after ${seconds(attempts.ended[row] - attempts.begun[row])}`;
    if (attempts.finished[row]) {
      const kept = state === "filtered" ? "filtered, all rewards are equal" : state === "redone" ? "the result was lost with its process, and a resumed run made it again" : "ready";
      events.push([attempts.ended[row], `${prompt} finishes${took}: ${[yielded(row), kept].filter(Boolean).join("; ")}${state === "filtered" ? afterwards(row) : ""}`]);
    } else if (state === "aborted") events.push([attempts.ended[row], `${prompt} is aborted${took}: too stale`]);
    else if (state === "redone") events.push([attempts.ended[row], `${prompt} was running, or had failed, when its process ended${took}: a resumed run started it again`]);
    else if (state === "retried") events.push([attempts.ended[row], `${prompt} fails${took} and is tried again${error}`]);
    else events.push([attempts.ended[row], `${prompt} fails${took} and is dropped${afterwards(row)}${error}`]);
  } else if (attempts.state[row] === STATE["in flight"]) events.push([data.ended, `${prompt} still runs, for ${seconds(data.ended - attempts.begun[row])}`]);
  if (attempts.step[row] !== NONE) {
    const waited = attempts.ended[row] === NOT_YET ? "" : `, ready for ${seconds(attempts.left[row] - attempts.ended[row])}`;
    events.push([attempts.left[row], `${prompt} is selected into step ${attempts.step[row]}, chunk ${attempts.chunk[row]}, at staleness ${attempts.step[row] - attempts.weight[row]}${waited}`]);
    if (attempts.finished[row] && state === "dropped") events.push([attempts.left[row], `${prompt} turned out unreadable and left the step${afterwards(row)}${error}`]);
    const step = stepRows.get(attempts.step[row]);
    if (state === "trained" && step !== undefined && steps.closed[step] !== NOT_YET) events.push([steps.closed[step], `step ${attempts.step[row]} closes: ${prompt} is trained`]);
  } else if (state === "evicted") events.push([attempts.left[row], `${prompt} is evicted: too stale`]);
  return events;
}

function show(title, events, rows, from, to) {
  const life = document.getElementById("life");
  document.getElementById("life-title").textContent = title;
  const cut = events.length - FOUND_MOST;
  const list = element("ol", { tabindex: "0", "aria-label": title }, ...events.slice(0, FOUND_MOST).map(([time, words]) => element("li", {}, element("time", {}, at(time)), words)));
  document.getElementById("life-body").replaceChildren(
    element("div", { class: "tools" },
      from === null ? null : element("button", { type: "button", onclick: () => lookAtTime(from, to) }, "Show in the timeline"),
      element("button", { type: "button", onclick: closeLife }, "Close")),
    list, element("p", { class: "quiet" }, cut > 0 ? `and ${count(cut)} more` : ""));
  life.hidden = false;
  chosen.clear();
  for (const row of rows) chosen.add(row);
  for (const panel of allPanels) panel.later();
  life.scrollIntoView({ block: "nearest" });
  life.focus({ preventScroll: true });
  spoken(`${title}: ${events.length} entries`);
}

function closeLife() {
  document.getElementById("life").hidden = true;
  chosen.clear();
  lookedAt = null;
  for (const panel of allPanels) panel.later();
}

function lookAtTime(from, to) {
  timeView.show(from, to);
  document.getElementById("timeline").scrollIntoView();
}

function showRows(title, rows) {
  lookedAt = null;
  const events = rows.flatMap(eventsOf).sort((one, other) => one[0] - other[0]);
  if (!events.length) {
    show(title, [[data.begun, "is not in this trace"]], [], null, null);
    return;
  }
  show(title, events, rows, events[0][0], events[events.length - 1][0]);
}

function showPrompt(prompt) {
  const rows = attemptsOfPrompt(prompt), slots = new Set(rows.map((row) => attempts.slot[row]).filter((slot) => slot !== NOT_YET));
  const siblings = [...slots].flatMap((slot) => attemptsOfSlot(slot));
  const within = slots.size ? `, in group ${[...slots].join(", ")}` : "";
  showRows(`Prompt ${prompt}${within}`, siblings.length > rows.length ? siblings : rows);
}

function showGroup(slot) {
  showRows(`Group ${slot}`, attemptsOfSlot(slot));
}

function showStep(step) {
  const row = stepRows.get(step);
  if (row === undefined) {
    show(`Step ${step}`, [[data.begun, "is not in this trace"]], [], null, null);
    return;
  }
  const rows = attemptsOfStep(step);
  const begun = steps.begun[row] === NOT_YET ? data.begun : steps.begun[row];
  const events = [[begun, stepLines(row).join("; ")]];
  for (const each of rows) events.push([attempts.left[each], `prompt ${attempts.prompt[each]} (${groupName(each)}) is selected: staleness ${step - attempts.weight[each]}${yielded(each) ? `, ${yielded(each)}` : ""}`]);
  for (const [name, word] of [["finishing", "the optimizer step begins"], ["closed", "it closes"], ["synced", "its weights are synced"]]) {
    if (steps[name][row] !== NOT_YET) events.push([steps[name][row], word]);
  }
  lookedAt = step;
  show(`Step ${step}`, events.sort((one, other) => one[0] - other[0]), rows, begun, endOf(steps.synced[row]));
}

function find(text) {
  const asked = text.trim().toLowerCase();
  const named = /^(prompt|group|slot|step)?\s*#?\s*(\d+)$/.exec(asked);
  if (named !== null) {
    const number = Number(named[2]);
    if (named[1] === "step") showStep(number);
    else if (named[1] === "group" || named[1] === "slot") showGroup(number);
    else showPrompt(number);
    return;
  }
  if (asked === "") return;
  const texts = new Set(data.texts.flatMap((each, number) => (each.toLowerCase().includes(asked) ? [number] : [])));
  const workers = new Set(data.workers.flatMap((each, number) => (each.toLowerCase().includes(asked) ? [number] : [])));
  const events = [], rows = [];
  for (let row = 0; row < attempts.rows; row++) {
    if (!texts.has(attempts.error[row]) && !workers.has(attempts.worker[row])) continue;
    rows.push(row);
    if (events.length <= FOUND_MOST) events.push([attempts.begun[row] === NOT_YET ? data.begun : attempts.begun[row], attemptLines(row).join("; ")]);
  }
  for (let row = 0; row < marks.rows; row++) if (texts.has(marks.text[row])) events.push([marks.t[row], `${data.words.marks[marks.kind[row]]} ${data.texts[marks.text[row]]}`]);
  lookedAt = null;
  show(`\u201c${text.trim()}\u201d: ${count(rows.length)} attempts`, events.length ? events : [[data.begun, "nothing has this text"]], rows, null, null);
}
