// How each step was made up, and the fate of the others. The axis is the number of the step; where there are more
// steps than pixels, a bar is the mean of the steps in it.
const firstStep = steps.rows ? steps.step[0] : 0;
const lastStep = steps.rows ? steps.step[steps.rows - 1] : 0;
const stepView = new View(firstStep, lastStep + 1, Math.min(4, lastStep + 1 - firstStep));

// Milliseconds of every phase per step; they are columns like the others.
const PHASE_MS = data.words.phases.map(() => new Float32Array(steps.rows));
for (let row = 0; row < phases.rows; row++) {
  const step = stepRows.get(phases.step[row]);
  if (step !== undefined) PHASE_MS[phases.phase[row]][step] += phases.ended[row] - phases.begun[row];
}
const ZERO_VARIANCE = new Float32Array(steps.rows);
for (let row = 0; row < steps.rows; row++) ZERO_VARIANCE[row] = steps.finished[row] ? steps.zero_variance[row] / steps.finished[row] : NaN;

// Bars: rows [from, to) of the steps, at x, so wide.
function barsOf(panel, of = steps) {
  const { view, width } = panel, bars = [];
  const from = firstAbove((row) => of.step[row] + 1, view.from, 0, of.rows);
  const to = firstAbove((row) => of.step[row], view.to, from, of.rows);
  const wide = width / (view.to - view.from);
  if (wide >= 2) {
    for (let row = from; row < to; row++) bars.push({ from: row, to: row + 1, x: panel.x(of.step[row]), width: wide > 4 ? wide - 1 : wide });
    return bars;
  }
  for (let row = from; row < to;) {
    const x = Math.floor(panel.x(of.step[row]));
    let end = row + 1;
    while (end < to && Math.floor(panel.x(of.step[end])) === x) end++;
    bars.push({ from: row, to: end, x, width: 1.05 });
    row = end;
  }
  return bars;
}

function mean(column, from, to) {
  let sum = 0, known = 0;
  for (let row = from; row < to; row++) {
    if (Number.isNaN(column[row])) continue;
    sum += column[row];
    known += 1;
  }
  return known ? sum / known : NaN;
}

function stacked(pen, panel, parts, most, line) {
  const room = panel.tall - 8, y = (value) => 4 + room - value / most * room;
  for (const bar of barsOf(panel)) {
    let sum = 0;
    for (const [column, ink] of parts) {
      const value = mean(column, bar.from, bar.to);
      if (!(value > 0)) continue;
      pen.fillStyle = colour(ink);
      pen.fillRect(bar.x, y(sum + value), bar.width, y(sum) - y(sum + value));
      sum += value;
    }
  }
  if (line !== undefined) {
    pen.fillStyle = colour("limit");
    pen.fillRect(0, y(line), panel.width, 1);
  }
  scale(pen, panel, most, y);
  markStep(pen, panel);
}

let lookedAt = null; // the step that is looked at
function markStep(pen, panel) {
  if (lookedAt === null) return;
  const x = panel.x(lookedAt), width = Math.max(2, panel.x(lookedAt + 1) - x);
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 1.5;
  pen.strokeRect(x, 1, width, panel.tall - 2);
}

function mostOf(parts) {
  let most = 0;
  for (let row = 0; row < steps.rows; row++) {
    let sum = 0;
    for (const [column] of parts) if (column[row] > 0) sum += column[row];
    most = Math.max(most, sum);
  }
  return most || 1;
}

function rangeOf(columns) {
  let low = Infinity, high = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!(low <= high)) return [0, 1];
  if (low >= 0 && low < high / 2) low = 0;
  if (low === high) return low >= 0 ? [0, high * 2 || 1] : [low - 0.5, high + 0.5];
  return [low, high];
}

function lines(pen, panel, parts, [low, high], of = steps) {
  const room = panel.tall - 16, y = (value) => 8 + room - (value - low) / (high - low) * room;
  pen.fillStyle = colour("grid");
  const { ticks } = ticksOf(low, high, 3);
  for (const tick of ticks) pen.fillRect(0, Math.round(y(tick)), panel.width, 1);
  const bars = barsOf(panel, of);
  for (const [column, ink] of parts) {
    pen.strokeStyle = pen.fillStyle = colour(ink);
    pen.lineWidth = 1.5;
    pen.beginPath();
    let open = false;
    for (const bar of bars) {
      const value = mean(column, bar.from, bar.to), x = bar.x + bar.width / 2;
      if (Number.isNaN(value)) {
        open = false;
        continue;
      }
      if (open) pen.lineTo(x, y(value));
      else pen.moveTo(x, y(value));
      open = true;
      if (bars.length < 200) pen.fillRect(x - 1.5, y(value) - 1.5, 3, 3);
    }
    pen.stroke();
  }
  pen.fillStyle = colour("quiet");
  for (const tick of ticks) pen.fillText(brief(Number(tick.toPrecision(6))), 3, y(tick) - 6 < 4 ? 7 : y(tick) - 6);
  markStep(pen, panel);
}

function stepLines(row) {
  const staleness = [];
  for (let versions = 0; versions < STALENESS_SHOWN; versions++) {
    const groups = steps[`staleness_${versions}`][row];
    if (groups) staleness.push(`${groups} \u00d7 ${versions}${versions === STALENESS_SHOWN - 1 ? "+" : ""}`);
  }
  const open = steps.closed[row] === NOT_YET ? " (not closed)" : "";
  const short = steps.short[row] ? `, ${steps.short[row]} short` : "";
  const lost = ["filtered", "replaced", "dropped", "retried", "evicted", "aborted"].filter((name) => steps[name][row]).map((name) => `${steps[name][row]} ${name}`);
  return [
    `step ${steps.step[row]}${open}: ${steps.selected[row]} selected + ${steps.charged[row]} charged of ${data.size}${short}`,
    `staleness ${staleness.join(", ") || "not known"}`,
    `meanwhile ${[`${steps.finished[row]} finished`, `${steps.zero_variance[row]} of zero variance`, ...lost].join(", ")}`,
    `reward ${brief(steps.reward[row])} trained, ${brief(steps.reward_finished[row])} of all finished`,
    `tokens a rollout ${brief(steps.length[row])} trained, ${brief(steps.length_filtered[row])} filtered`,
    data.words.phases.map((name, phase) => `${name} ${seconds(PHASE_MS[phase][row])}`).join(", "),
  ];
}

function rowAt(x, panel) {
  return stepRows.get(Math.floor(panel.value(x)));
}

function makeSteps() {
  const parent = document.getElementById("steps-body");
  if (!steps.rows) {
    parent.append(element("p", {}, "No step was assembled in this trace."));
    return;
  }
  tools(document.getElementById("steps-tools"), stepView, (step) => `step ${Math.round(step)}`, "a click shows a step's life; a table of all steps is below");
  const tell = (x, _, panel) => {
    const row = rowAt(x, panel);
    return row === undefined ? null : stepLines(row);
  };
  const open = (x, _, panel) => {
    const row = rowAt(x, panel);
    if (row !== undefined) showStep(steps.step[row]);
  };
  const panel = (about) => new Panel(parent, { view: stepView, height: 92, tell, open, step: () => 1, ...about });
  const filled = [];
  for (let versions = 0; versions < STALENESS_SHOWN; versions++) filled.push([steps[`staleness_${versions}`], `stale-${versions}`]);
  filled.push([steps.charged, "charged"], [steps.short, "short"]);
  const staleShown = filled.slice(0, STALENESS_SHOWN).filter(([column]) => column.some((value) => value > 0));
  panel({ name: "How each step was filled", height: 120, draw: (pen, self) => stacked(pen, self, filled, Math.max(mostOf(filled), data.size) * 1.04, data.size),
    colours: [...staleShown.map(([, ink]) => [ink, `selected, staleness ${ink.slice(6)}${ink === `stale-${STALENESS_SHOWN - 1}` ? " and more" : ""}`]), ["charged", "charged"], ["short", "short"], ["limit", `N = ${data.size}`]] });
  const lost = ["filtered", "dropped", "retried", "evicted", "aborted"].map((name) => [steps[name], name]);
  const mostLost = Math.max(mostOf(lost), mostOf([[steps.replaced]])) * 1.04;
  panel({ name: "Filtered, replaced, dropped, retried, evicted and aborted meanwhile", draw: (pen, self) => {
    stacked(pen, self, lost, mostLost);
    const room = self.tall - 8;
    pen.fillStyle = colour("replaced");
    for (const bar of barsOf(self)) pen.fillRect(bar.x, 4 + room - mean(steps.replaced, bar.from, bar.to) / mostLost * room - 1, bar.width, 2);
  }, colours: [...lost.map(([, name]) => [name, name]), ["replaced", "replaced (line)"]] });
  const line = (name, parts, range) => panel({ name, draw: (pen, self) => lines(pen, self, parts, range ?? rangeOf(parts.map(([column]) => column))), colours: parts.map(([, ink, word]) => [ink, word]) });
  line("Reward", [[steps.reward_finished, "reward-finished", "of all finished groups"], [steps.reward, "reward", "of trained groups"]]);
  line("Zero-variance fraction of finished groups", [[ZERO_VARIANCE, "zero", "all rewards equal"]], [0, 1]);
  line("Tokens per rollout", [[steps.length_filtered, "length-filtered", "filtered groups"], [steps.length, "length", "trained groups"]]);
  const times = PHASE_MS.map((column, phase) => [column, data.words.phases[phase]]);
  panel({ name: "Where each step's time went, in ms", draw: (pen, self) => stacked(pen, self, times, mostOf(times) * 1.04), colours: times.map(([, name]) => [name, name]) });
  makeMetric(panel);
  parent.append(stepTable());
}

// Any metric of metrics.jsonl.
function makeMetric(panel) {
  const names = Object.keys(metrics).filter((name) => name !== "rows" && name !== "step");
  if (!metrics.rows || !names.length) return;
  const choose = element("select", { id: "metric" }, ...names.map((name) => element("option", { value: name }, name.replaceAll("_", " "))));
  choose.value = names.includes("loss") ? "loss" : names[0];
  const title = element("span", {}, element("label", { for: "metric" }, "Metric of the step's record "), choose);
  const made = panel({ name: "A metric of the step's record", title,
    draw: (pen, self) => lines(pen, self, [[metrics[choose.value], "metric"]], rangeOf([metrics[choose.value]]), metrics),
    tell: (x, _, self) => {
      const row = metrics.step.indexOf(Math.floor(self.value(x)));
      return row < 0 ? null : [`step ${metrics.step[row]}`, `${choose.value.replaceAll("_", " ")} ${brief(metrics[choose.value][row])}`];
    } });
  choose.addEventListener("change", () => made.later());
}

const TABLE_NAMES = ["step", "selected", "charged", "short", "staleness_mean", "staleness_max", "finished", "zero_variance", "filtered", "replaced", "dropped", "retried", "evicted", "aborted", "reward", "length"];
const TABLE_PAGE = 200;

// The same as a table, made when it is opened, some hundred rows at a time.
function stepTable() {
  const body = element("div", { class: "rows", tabindex: "0", role: "region", "aria-label": "Table of steps" });
  const heads = [...TABLE_NAMES.map((name) => name.replace("_", " ")), ...data.words.phases];
  const more = element("button", { type: "button" }, "More steps");
  const made = element("details", {}, element("summary", {}, "All steps as a table"), body, more);
  let shown = 0;
  const rows = () => {
    const from = shown;
    shown = Math.min(steps.rows, shown + TABLE_PAGE);
    more.hidden = shown === steps.rows;
    return Array.from({ length: shown - from }, (_, each) => {
      const row = from + each;
      return [...TABLE_NAMES.map((name) => brief(steps[name][row])), ...PHASE_MS.map((column) => seconds(column[row]))];
    });
  };
  const numbers = heads.map((_, place) => place);
  made.addEventListener("toggle", () => { if (!shown) body.replaceChildren(tableOf(heads, rows(), numbers)); });
  more.addEventListener("click", () => {
    const added = tableOf(heads, rows(), numbers);
    body.querySelector("tbody").append(...added.querySelectorAll("tbody > tr"));
  });
  return made;
}
