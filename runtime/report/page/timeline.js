// What happened when: steps and the trainer's phases, calls, counters, and groups by worker. The axis is milliseconds
// since the first trace was opened, without those between two processes.
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
    labelTick(pen, panel, tick, text, 10);
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
  if (kind === MARK["worker died"] || kind === MARK["no progress"] || kind === MARK.stopped || kind === MARK.failed || kind === MARK["not written"] || kind === MARK["worker quarantined"] || kind === MARK["actor restarted"]) return "mark";
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
  drawGrid(pen, panel);
  panel.bands = pictureOf(panel);
  const stepInk = (row) => (steps.step[row] % 2 ? "step-odd" : "step-even");
  const [first, last] = drawBand(pen, panel, PHASE_ROWS.step, 18, steps.rows, (row) => steps.begun[row], (row) => endOf(steps.synced[row]), stepInk);
  drawBand(pen, panel, PHASE_ROWS.phase, 18, phases.rows, (row) => phases.begun[row], (row) => phases.ended[row], (row) => PHASE_COLOURS[phases.phase[row]]);
  const shown = drawBand(pen, panel, PHASE_ROWS.call, 14, calls.rows, (row) => calls.begun[row], (row) => endOf(calls.ended[row]), () => "call");
  panel.bands.pen.putImageData(panel.bands.image, 0, 0);
  pen.drawImage(panel.bands.canvas, 0, 0, panel.width, panel.tall);
  if (last - first < panel.width / 8) {
    for (let row = first; row < last; row++) {
      const x = panel.x(steps.begun[row]), width = panel.x(endOf(steps.synced[row])) - x;
      const named = [`step ${steps.step[row]}`, `${steps.step[row]}`];
      named.some((text) => label(pen, text, x, PHASE_ROWS.step + 10, width, colour("ink")));
    }
  }
  if (shown[1] - shown[0] < panel.width / 8) {
    for (let row = shown[0]; row < shown[1]; row++) {
      const x = panel.x(calls.begun[row]);
      label(pen, data.texts[calls.call[row]], x, PHASE_ROWS.call + 8, panel.x(endOf(calls.ended[row])) - x, colour("ground"));
    }
  }
}

// Intervals that follow each other as a band; where there are more than fit, a pixel has the mean of their colours.
// Returns which rows are in view.
function drawBand(pen, panel, top, tall, rows, begun, end, ink) {
  const { from, to } = panel.view;
  const first = firstAbove(end, from, 0, rows), last = firstAbove(begun, to, first, rows);
  if (last - first <= panel.width / 4) {
    for (let row = first; row < last; row++) {
      const x = panel.x(begun(row)), width = panel.x(end(row)) - x;
      pen.fillStyle = colour(ink(row));
      pen.fillRect(x, top + 1, width > 4 ? width - 1 : Math.max(width, 0.3), tall);
    }
    return [first, last];
  }
  const { words, width } = panel.bands, scale = width / (to - from);
  const sums = [0, 1, 2, 3].map(() => new Float32Array(width)); // red, green, blue, and how much of the pixel is covered
  for (let row = first; row < last; row++) {
    const low = Math.max(0, (begun(row) - from) * scale), high = Math.min(width, (end(row) - from) * scale);
    const value = Number.parseInt(colour(ink(row)).slice(1), 16);
    for (let x = Math.floor(low); x < high; x++) {
      const part = Math.min(x + 1, high) - Math.max(x, low);
      sums[0][x] += part * (value >>> 16);
      sums[1][x] += part * ((value >>> 8) & 255);
      sums[2][x] += part * (value & 255);
      sums[3][x] += part;
    }
  }
  const start = Math.round((top + 1) * panel.ratio) * width;
  for (let x = 0; x < width; x++) {
    const [red, green, blue] = [0, 1, 2].map((each) => Math.round(sums[each][x] / (sums[3][x] || 1)));
    words[start + x] = pixel(red, green, blue, Math.min(255, Math.round(sums[3][x] * 255)));
  }
  for (let below = 1; below < tall * panel.ratio; below++) words.copyWithin(start + below * width, start, start + width);
  return [first, last];
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
  const { view } = panel, rows = counters.rows, picture = pictureOf(panel), pixels = picture.width;
  drawGrid(pen, panel);
  const most = COUNTED.map(() => new Float32Array(pixels)), closed = new Uint8Array(pixels);
  const { t, gate } = counters, columns = COUNTED.map(([name]) => counters[name]), scaled = pixels / (view.to - view.from);
  for (let row = Math.max(0, firstAbove((each) => t[each], view.from, 0, rows) - 1); row < rows && t[row] <= view.to; row++) {
    const until = row + 1 < rows ? t[row + 1] : data.ended;
    const low = Math.max(0, Math.floor((t[row] - view.from) * scaled));
    const high = Math.max(low, Math.min(pixels - 1, Math.ceil((until - view.from) * scaled) - 1));
    for (let x = low; x <= high && x < pixels; x++) {
      for (let each = 0; each < 4; each++) if (columns[each][row] > most[each][x]) most[each][x] = columns[each][row];
      if (!gate[row]) closed[x] = 1;
    }
  }
  const room = panel.tall - GATE_TALL - 6, y = (groups) => 4 + room - groups / mostBuffered * room;
  const inks = ["in-flight", "ready", "spare", "queued", "gate-open", "gate-closed"].map((name) => word(colour(name)));
  const tall = (groups) => Math.round(y(groups) * panel.ratio), ground = tall(0), strip = picture.tall - Math.round(GATE_TALL * panel.ratio);
  const before = [0, 0, ground, ground];
  for (let x = 0; x < pixels; x++) {
    const running = tall(most[0][x]);
    upright(picture, x, tall(most[0][x] + most[1][x]), running, inks[1]);
    upright(picture, x, running, ground, inks[0]);
    upright(picture, x, strip, picture.tall, inks[4 + closed[x]]);
    for (const each of [2, 3]) { // lines, level where nothing changes
      const level = tall(most[each][x]), from = x ? before[each] : level;
      upright(picture, x, Math.min(level, from), Math.max(level, from) + Math.ceil(1.4 * panel.ratio), inks[each]);
      before[each] = level;
    }
  }
  picture.pen.putImageData(picture.image, 0, 0);
  pen.drawImage(picture.canvas, 0, 0, panel.width, panel.tall);
  if (data.limits !== null) {
    pen.fillStyle = colour("limit");
    pen.fillRect(0, y(data.limits.max_buffered), panel.width, 1);
  }
  scale(pen, panel, mostBuffered, y);
}

function upright(picture, x, from, to, ink) {
  const { words, width, tall } = picture;
  for (let y = Math.max(from, 0); y < Math.min(to, tall); y++) words[y * width + x] = ink;
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

// Begin, end and state of attempts in the order of lanes, side by side in memory.
const begunIn = new Uint32Array(order.length), endIn = new Uint32Array(order.length), stateIn = new Uint8Array(order.length);
for (let place = 0; place < order.length; place++) {
  const row = order[place];
  begunIn[place] = attempts.begun[row];
  endIn[place] = Math.max(endOf(attempts.ended[row]), attempts.begun[row] + 1);
  stateIn[place] = attempts.state[row];
}
const begunAt = (place) => begunIn[place];
const endAt = (place) => endIn[place];

function drawGroups(pen, panel) {
  drawGrid(pen, panel);
  const picture = pictureOf(panel);
  const inks = STATE_COLOURS.map((name) => word(colour(name)));
  const thick = Math.max(1, Math.round((LANE > 6 ? LANE - 2 : LANE - 1) * panel.ratio));
  for (const lane of lanes) {
    const top = Math.round((lane.top - panel.top) * panel.ratio);
    if (top < 0 || top + thick > picture.tall) continue;
    drawLane(panel, lane, picture, top * picture.width, inks);
    for (let below = 1; below < thick; below++) picture.words.copyWithin((top + below) * picture.width, top * picture.width, (top + 1) * picture.width);
  }
  picture.pen.putImageData(picture.image, 0, 0);
  pen.drawImage(picture.canvas, 0, 0, panel.width, panel.tall);
  pen.fillStyle = colour("quiet");
  for (const worker of data.lanes) pen.fillText(worker.name.slice(0, 200), 4, worker.top - panel.top + 8);
  if (LANE >= 13) labelGroups(pen, panel);
}

// Tens of thousands of bars are written as pixels, which is far less than drawing each.
function pictureOf(panel) {
  const { width, height } = panel.base;
  if (panel.picture?.width !== width || panel.picture.tall !== height) {
    const canvas = element("canvas");
    Object.assign(canvas, { width, height });
    const pen = canvas.getContext("2d"), image = pen.createImageData(width, height);
    panel.picture = { canvas, pen, image, words: new Uint32Array(image.data.buffer), width, tall: height };
  }
  panel.picture.words.fill(0);
  return panel.picture;
}

// A colour of the style, #rrggbb, as a pixel.
const LITTLE_ENDIAN = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
function word(hex) {
  const value = Number.parseInt(hex.slice(1), 16);
  return pixel(value >>> 16, (value >>> 8) & 255, value & 255, 255);
}
function pixel(red, green, blue, alpha) {
  return (LITTLE_ENDIAN ? (alpha << 24) | (blue << 16) | (green << 8) | red : (red << 24) | (green << 16) | (blue << 8) | alpha) >>> 0;
}

// One row of pixels of a lane: every attempt is at least one pixel; of those that share one, the first is seen.
function drawLane(panel, lane, picture, start, inks) {
  const { from, to } = panel.view, { words, width } = picture, scale = width / (to - from);
  let place = firstAbove(endAt, from, lane.from, lane.to), free = 0;
  while (place < lane.to && begunIn[place] <= to) {
    const begun = Math.round((begunIn[place] - from) * scale), end = Math.round((endIn[place] - from) * scale);
    const low = Math.max(begun, free), high = Math.min(width, end - begun > 4 ? end - 1 : Math.max(end, begun + 1));
    const ink = inks[stateIn[place]];
    for (let x = low; x < high; x++) words[start + x] = ink;
    free = Math.max(free, high);
    place += 1;
    if (end - begun < 2 && place < lane.to && (begunIn[place] - from) * scale < free - 1) {
      place = firstAbove(begunAt, from + (free - 0.5) / scale, place, lane.to);
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
  new Panel(parent, { name: "Time and other events", title: "Time", height: 34, view: timeView, draw: drawRuler, tell: tellRuler,
    colours: [["mark", "worker died or quarantined, no progress, stopped"], ["call", "validated, checkpointed"], ["replaced", "worker started, run resumed or over"]] });
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
    colours: ["in flight", "ready", "selected", "trained", "filtered", "dropped", "retried", "evicted", "aborted", ...(data.processes.length > 1 ? ["redone"] : [])].map((state) => [state.replace(" ", "-"), state]) });
}
