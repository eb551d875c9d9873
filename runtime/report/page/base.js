// What the page holds, and how it is put in words. Nothing of it ever becomes markup: texts are text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const NONE = data.marks_for.none;
const NOT_YET = data.marks_for.not_yet;
const NO_WORKER = data.marks_for.no_worker;
const STALENESS_SHOWN = data.marks_for.staleness_shown;

const TYPES = { Uint8Array, Uint16Array, Uint32Array, Int32Array, Float32Array };

function bytesOf(id) {
  const element = document.getElementById(id);
  const text = element.textContent;
  element.remove();
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let i = 0; i < plain.length; i++) bytes[i] = plain.charCodeAt(i);
  return bytes;
}

const packed = bytesOf("columns").buffer;

// A table: `rows`, and its columns as typed arrays by name.
function table(name) {
  const { rows, columns } = data.tables[name];
  const found = { rows };
  for (const [column, [type, offset]] of Object.entries(columns)) found[column] = new TYPES[type](packed, offset, rows);
  return found;
}

const attempts = table("attempts");
const order = table("order").row;
const counters = table("counters");
const phases = table("phases");
const waits = table("waits");
const calls = table("calls");
const marks = table("marks");
const steps = table("steps");
const metrics = table("metrics");
const STATE = Object.fromEntries(data.words.states.map((name, number) => [name, number]));
const MARK = Object.fromEntries(data.words.marks.map((name, number) => [name, number]));

// The first place in order[low, high) whose value is above `value`; `at(i)` must not fall.
function firstAbove(at, value, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (at(middle) > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(asNode));
  return made;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

function swatch(colour) {
  const made = element("i");
  made.style.background = `var(--${colour})`;
  return made;
}

function legend(entries) {
  return element("ul", { class: "legend" }, ...entries.map(([colour, name]) => element("li", {}, swatch(colour), name)));
}

function tableOf(heads, rows, numbers) {
  const cell = (tag, value, place) =>
    element(tag, { class: numbers.includes(place) ? "number" : "text", scope: tag === "th" ? "col" : null }, value);
  return element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head, place) => cell("th", head, place)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, place) => cell("td", value, place))))));
}

// Times.
function seconds(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  const whole = Math.round(ms / 1000);
  if (whole < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
}

function at(ms) {
  return `+${(ms / 1000).toFixed(3)} s`;
}

// The time between two processes of a run is not on the axis.
function clock(ms) {
  const process = data.processes.findLast((each) => each.began <= ms) ?? data.processes[0];
  return new Date(process.started_unix_s * 1000 + ms - process.began).toLocaleString();
}

// Numbers.
function count(value) {
  return value.toLocaleString("en-US");
}

function brief(value) {
  if (Number.isNaN(value)) return "not known";
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 100_000) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function workerName(number) {
  return number === NO_WORKER ? "no worker known" : data.workers[number];
}

// Rows of attempts by what they are of; made when first asked for.
function indexOf(column) {
  let index = null;
  return (key) => {
    if (index === null) {
      index = new Map();
      for (let row = 0; row < attempts.rows; row++) {
        const known = index.get(column[row]);
        if (known === undefined) index.set(column[row], [row]);
        else known.push(row);
      }
    }
    return index.get(key) ?? [];
  };
}
const attemptsOfPrompt = indexOf(attempts.prompt);
const attemptsOfSlot = indexOf(attempts.slot);
const attemptsOfStep = indexOf(attempts.step);

const stepRows = new Map();
for (let row = 0; row < steps.rows; row++) stepRows.set(steps.step[row], row);

// Colours as the style has them, read again when the theme changes.
const colours = new Map();
function colour(name) {
  let known = colours.get(name);
  if (known === undefined) {
    known = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    colours.set(name, known);
  }
  return known;
}
const STATE_COLOURS = data.words.states.map((name) => name.replace(" ", "-"));

function spoken(text) {
  document.getElementById("spoken").textContent = text;
}
