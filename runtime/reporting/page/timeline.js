// What happened when: steps and the trainer's phases, calls, counters, and groups by worker. The axis is milliseconds
// since the trace was opened.
const timeView = new View(data.begun, Math.max(data.ended, data.begun + 10), 4);
const chosen = new Set(); // rows of attempts that are looked at

const PHASE_COLOURS = data.words.phases;
const PHASE_ROWS = { step: 0, phase: 20, call: 40 };

function drawGrid(pen, panel) {
  const { ticks } = ticksOf(panel.view.from, panel.view.to, panel.width / 110);
  pen.fillStyle = colour("grid");
  for (const tick of ticks) pen.fillRect(Math.round(panel.x(tick)), 0, 1, panel.tall);
}

function drawRuler(pen, panel) {
  const { ticks, distance } = ticksOf(panel.view.from, panel.view.to, panel.width / 110);
  pen.fillStyle = colour("quiet");
  const digits = distance >= 1000 ? 0 : distance >= 100 ? 1 : distance >= 10 ? 2 : 3;
  for (const tick of ticks) {
    pen.fillRect(Math.round(panel.x(tick)), 0, 1, 5);
    const text = distance >= 60_000 ? seconds(tick) : `${(tick / 1000).toFixed(digits)} s`;
    pen.fillText(text, panel.x(tick) + 3, 10);
  }
  let last = -10;
  for (let row = 0; row < marks.rows; row++) {
    const x = panel.x(marks.t[row]);
    if (x < 0 || x > panel.width || x - last < 3) continue;
    last = x;
    pen.fillStyle = colour(markColour(marks.kind[row]));
    pen.beginPath();
    pen.moveTo(x, 18);
    pen.lineTo(x + 5, 24);
    pen.lineTo(x, 30);
    pen.lineTo(x - 5, 24);
    pen.fill();
  }
}

function markColour(kind) {
  if (kind === MARK["worker died"] || kind === MARK["no progress"] || kind === MARK.stopped) return "mark";
  return kind === MARK.validated || kind === MARK.checkpointed ? "call" : "replaced";
}

function tellRuler(x, _, panel) {
  const lines = [`${at(panel.value(x))}   ${clock(panel.value(x))}`];
  for (let row = 0; row < marks.rows && lines.length < 8; row++) {
    if (Math.abs(panel.x(marks.t[row]) - x) < 6) lines.push(`${data.words.marks[marks.kind[row]]} ${data.texts[marks.text[row]].slice(0, 300)}`);
  }
  return lines;
}

// Text within a box, where it has the room. Returns whether it has.
function label(pen, text, x, y, width, ink) {
  const left = Math.max(x, 0), room = Math.min(x + width, pen.canvas.width / (window.devicePixelRatio || 1)) - left - 6;
  if (room < 8 || pen.measureText(text).width > room) return false;
  pen.fillStyle = ink;
  pen.fillText(text, left + 3, y);
  return true;
}

function endOf(ended) {
  return ended === NOT_YET ? data.ended : ended;
}

function drawPhases(pen, panel) {
  const { view } = panel;
  drawGrid(pen, panel);
  const first = firstAbove((row) => endOf(steps.synced[row]), view.from, 0, steps.rows);
  for (let row = first; row < steps.rows; row++) {
    if (steps.begun[row] === NOT_YET || steps.begun[row] > view.to) break;
    const x = panel.x(steps.begun[row]), width = panel.x(endOf(steps.synced[row])) - x;
    pen.fillStyle = colour(steps.step[row] % 2 ? "step-odd" : "step-even");
    pen.fillRect(x, PHASE_ROWS.step + 1, width, 18);
    const named = [`step ${steps.step[row]}`, `${steps.step[row]}`];
    named.some((text) => label(pen, text, x, PHASE_ROWS.step + 10, width, colour("ink")));
  }
  for (let row = firstAbove((each) => phases.ended[each], view.from, 0, phases.rows); row < phases.rows; row++) {
    if (phases.begun[row] > view.to) break;
    const x = panel.x(phases.begun[row]), width = panel.x(phases.ended[row]) - x;
    pen.fillStyle = colour(PHASE_COLOURS[phases.phase[row]]);
    pen.fillRect(x, PHASE_ROWS.phase + 1, width, 18);
  }
  for (let row = 0; row < calls.rows; row++) {
    if (calls.begun[row] > view.to) break;
    const end = endOf(calls.ended[row]);
    if (end < view.from) continue;
    const x = panel.x(calls.begun[row]), width = panel.x(end) - x;
    pen.fillStyle = colour("call");
    pen.fillRect(x, PHASE_ROWS.call + 1, Math.max(width, 0.3), 14);
    label(pen, data.texts[calls.call[row]], x, PHASE_ROWS.call + 8, width, colour("ground"));
  }
}

function stepAt(time) {
  const row = firstAbove((each) => steps.begun[each], time, 0, steps.rows) - 1;
  return row >= 0 && steps.begun[row] <= time && time <= endOf(steps.synced[row]) ? row : -1;
}

function tellPhases(x, y, panel) {
  const time = panel.value(x), lines = [];
  const row = stepAt(time);
  if (row >= 0) lines.push(...stepLines(row));
  const phase = firstAbove((each) => phases.begun[each], time, 0, phases.rows) - 1;
  if (phase >= 0 && phases.ended[phase] >= time) {
    lines.push(`${data.words.phases[phases.phase[phase]]} for ${seconds(phases.ended[phase] - phases.begun[phase])}`);
  }
  if (y >= PHASE_ROWS.call) {
    for (let each = 0; each < calls.rows && calls.begun[each] <= time; each++) {
      if (endOf(calls.ended[each]) >= time) {
        const took = calls.ended[each] === NOT_YET ? "not answered" : seconds(calls.ended[each] - calls.begun[each]);
        lines.push(`${data.texts[calls.call[each]]} ${calls.number[each]}: ${took}`);
      }
    }
  }
  return [at(time), ...lines];
}

// Counters. Every pixel shows the most that there was within it.
const COUNTED = [["in_flight", "in-flight"], ["ready", "ready"], ["spare", "spare"], ["queued", "queued"]];
let mostBuffered = Math.max(1, data.limits === null ? 0 : Math.min(data.limits.max_buffered, 1e9));
for (let row = 0; row < counters.rows; row++) {
  mostBuffered = Math.max(mostBuffered, counters.in_flight[row] + counters.ready[row], counters.spare[row], counters.queued[row]);
}
const GATE_TALL = 12;

function drawCounters(pen, panel) {
  const { view, width, tall } = panel, rows = counters.rows;
  drawGrid(pen, panel);
  const pixels = Math.ceil(width), most = COUNTED.map(() => new Float32Array(pixels));
  const closed = new Float32Array(pixels);
  const begin = Math.max(0, firstAbove((row) => counters.t[row], view.from, 0, rows) - 1);
  for (let row = begin; row < rows && counters.t[row] <= view.to; row++) {
    const until = row + 1 < rows ? counters.t[row + 1] : data.ended;
    const low = Math.max(0, Math.floor(panel.x(counters.t[row]))), high = Math.min(pixels - 1, Math.ceil(panel.x(until)) - 1);
    for (let x = low; x <= Math.max(low, high) && x < pixels; x++) {
      for (let each = 0; each < 4; each++) most[each][x] = Math.max(most[each][x], counters[COUNTED[each][0]][row]);
      if (!counters.gate[row]) closed[x] = 1;
    }
  }
  const room = tall - GATE_TALL - 6, y = (groups) => 4 + room - groups / mostBuffered * room;
  for (let x = 0; x < pixels; x++) {
    pen.fillStyle = colour("in-flight");
    pen.fillRect(x, y(most[0][x]), 1, y(0) - y(most[0][x]));
    pen.fillStyle = colour("ready");
    pen.fillRect(x, y(most[0][x] + most[1][x]), 1, y(most[0][x]) - y(most[0][x] + most[1][x]));
    pen.fillStyle = colour(closed[x] ? "gate-closed" : "gate-open");
    pen.fillRect(x, tall - GATE_TALL, 1, GATE_TALL);
  }
  for (const each of [2, 3]) polyline(pen, most[each], y, colour(COUNTED[each][1]));
  if (data.limits !== null) {
    pen.fillStyle = colour("limit");
    pen.fillRect(0, y(data.limits.max_buffered), width, 1);
  }
  scale(pen, panel, mostBuffered, y);
}

function polyline(pen, values, y, ink) {
  pen.strokeStyle = ink;
  pen.lineWidth = 1.4;
  pen.beginPath();
  for (let x = 0; x < values.length; x++) pen.lineTo(x + 0.5, y(values[x]));
  pen.stroke();
}

function scale(pen, panel, most, y) {
  pen.fillStyle = colour("quiet");
  for (const tick of ticksOf(0, most, 3).ticks) if (tick > 0 && tick <= most) pen.fillText(brief(tick), 3, Math.max(7, y(tick)));
}

function tellCounters(x, _, panel) {
  const time = panel.value(x);
  const row = firstAbove((each) => counters.t[each], time, 0, counters.rows) - 1;
  if (row < 0) return [at(time)];
  const of = data.limits === null ? "" : ` of ${data.limits.max_buffered}`;
  return [
    at(time), `in flight ${counters.in_flight[row]}, ready ${counters.ready[row]}: buffer ${counters.in_flight[row] + counters.ready[row]}${of}`,
    `pool ${counters.spare[row]}, queued ${counters.queued[row]}`,
    `gate ${counters.gate[row] ? "open" : "closed"}, dispatch index ${counters.dispatch_index[row]}`,
  ];
}

// Groups by worker: one row a lane, so that attempts of one worker that run at once lie side by side.
const lanes = [];
const laneCount = data.lanes.reduce((sum, worker) => sum + worker.starts.length - 1, 0);
const LANE = laneCount <= 24 ? 13 : laneCount <= 60 ? 8 : 5;
const NAME_TALL = 15;
let lanesTall = 0;
for (const worker of data.lanes) {
  const top = lanesTall + NAME_TALL;
  for (let lane = 0; lane + 1 < worker.starts.length; lane++) {
    lanes.push({ top: top + lane * LANE, from: worker.starts[lane], to: worker.starts[lane + 1] });
  }
  worker.top = lanesTall;
  lanesTall = top + (worker.starts.length - 1) * LANE + 4;
}

const begunAt = (place) => attempts.begun[order[place]];
function endAt(place) {
  const row = order[place];
  return Math.max(endOf(attempts.ended[row]), attempts.begun[row] + 1);
}

function drawGroups(pen, panel) {
  drawGrid(pen, panel);
  const perState = data.words.states.map(() => []);
  for (const lane of lanes) {
    const top = lane.top - panel.top;
    if (top < -LANE || top > panel.tall) continue;
    gatherLane(panel, lane, top, perState);
  }
  const thick = LANE > 6 ? LANE - 2 : LANE - 1;
  perState.forEach((boxes, state) => {
    pen.fillStyle = colour(STATE_COLOURS[state]);
    for (let each = 0; each < boxes.length; each += 3) pen.fillRect(boxes[each], boxes[each + 1], boxes[each + 2], thick);
  });
  pen.fillStyle = colour("quiet");
  for (const worker of data.lanes) pen.fillText(worker.name.slice(0, 200), 4, worker.top - panel.top + 8);
  if (LANE >= 13) labelGroups(pen, panel);
}

// Boxes of one lane: every attempt where there is room, else for each pixel the first that lies in it.
function gatherLane(panel, lane, top, perState) {
  const perPixel = (panel.view.to - panel.view.from) / panel.width;
  let place = firstAbove(endAt, panel.view.from, lane.from, lane.to);
  while (place < lane.to && begunAt(place) <= panel.view.to) {
    const x = panel.x(begunAt(place)), end = endAt(place), width = panel.x(end) - x;
    perState[attempts.state[order[place]]].push(x, top, Math.max(width - (width > 4 ? 1 : 0), 0.8));
    place += 1;
    if (width < 1 && place < lane.to && begunAt(place) < end + perPixel) {
      place = firstAbove(begunAt, end + perPixel * 0.8, place, lane.to);
    }
  }
}

function labelGroups(pen, panel) {
  for (const lane of lanes) {
    const top = lane.top - panel.top;
    if (top < -LANE || top > panel.tall) continue;
    for (let place = firstAbove(endAt, panel.view.from, lane.from, lane.to); place < lane.to; place++) {
      const x = panel.x(begunAt(place)), width = panel.x(endAt(place)) - x;
      if (x > panel.width) break;
      if (width > 24) label(pen, `${attempts.prompt[order[place]]}`, x, top + LANE / 2 - 0.5, width, colour("ground"));
      else if (width < 1) break;
    }
  }
}

function laneAt(y, panel) {
  return lanes.find((lane) => y + panel.top >= lane.top && y + panel.top < lane.top + LANE);
}

function attemptAt(x, y, panel) {
  const lane = laneAt(y, panel);
  if (lane === undefined) return -1;
  const slack = (panel.view.to - panel.view.from) / panel.width * 1.5;
  const place = firstAbove(begunAt, panel.value(x) + slack, lane.from, lane.to) - 1;
  return place >= lane.from && endAt(place) >= panel.value(x) - slack ? order[place] : -1;
}

function drawChosen(pen, panel) {
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 2;
  for (const lane of chosen.size ? lanes : []) {
    for (let place = firstAbove(endAt, panel.view.from, lane.from, lane.to); place < lane.to; place++) {
      if (begunAt(place) > panel.view.to) break;
      if (!chosen.has(order[place])) continue;
      const x = panel.x(begunAt(place));
      pen.strokeRect(x - 1, lane.top - panel.top - 1, Math.max(panel.x(endAt(place)) - x + 1, 4), LANE);
    }
  }
}

function makeTimeline() {
  const parent = document.getElementById("timeline-body");
  tools(document.getElementById("timeline-tools"), timeView, at, "drag moves, Ctrl and the wheel zooms, Shift and drag zooms into a range, a click shows a life");
  const openStep = (x, _, panel) => {
    const row = stepAt(panel.value(x));
    if (row >= 0) showStep(steps.step[row]);
  };
  new Panel(parent, { name: "Time, and what happened beside", title: "Time", height: 34, view: timeView, draw: drawRuler, tell: tellRuler,
    colours: [["mark", "worker died, no progress, stopped"], ["call", "validated, checkpointed"], ["replaced", "worker started, run resumed or over"]] });
  new Panel(parent, { name: "Steps, the trainer's phases, and calls", height: 58, view: timeView, draw: drawPhases, tell: tellPhases, open: openStep,
    colours: [...data.words.phases.map((phase) => [phase, phase]), ["call", "calls: publish, load, checkpoint, evaluate"]] });
  new Panel(parent, { name: "Buffer, pool, queue and gate", height: 130, view: timeView, draw: drawCounters, tell: tellCounters, open: openStep,
    colours: [["in-flight", "in flight"], ["ready", "ready"], ["spare", "pool"], ["queued", "queued"], ["limit", "max_buffered_rollouts"], ["gate-open", "gate open"], ["gate-closed", "gate closed"]] });
  const tall = Math.min(Math.max(lanesTall, 60), 460);
  new Panel(parent, { name: "Groups by worker", height: tall, full: lanesTall, view: timeView, down: LANE,
    draw: drawGroups, drawOver: drawChosen,
    tell: (x, y, panel) => {
      const row = attemptAt(x, y, panel);
      return row < 0 ? [at(panel.value(x))] : attemptLines(row);
    },
    open: (x, y, panel) => {
      const row = attemptAt(x, y, panel);
      if (row >= 0) showPrompt(attempts.prompt[row]);
    },
    colours: ["in flight", "ready", "selected", "trained", "filtered", "dropped", "retried", "evicted", "aborted"].map((state) => [state.replace(" ", "-"), state]) });
}
