// A view is the part of an axis that panels show; a panel is two canvases, one for what is drawn from the data and one
// for the cursor, so that moving the pointer draws next to nothing.
class View {
  constructor(low, high, least) {
    this.low = this.from = low;
    this.high = this.to = high;
    this.least = least; // the shortest part that is shown
    this.panels = [];
    this.cursor = null; // a value on the axis
    this.listeners = [];
  }
  set(from, to) {
    const length = Math.min(Math.max(to - from, this.least), this.high - this.low);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - length / 2, this.low), this.high - length);
    this.to = this.from + length;
    this.changed();
  }
  all() {
    this.set(this.low, this.high);
  }
  zoom(factor, around) {
    const centre = around ?? this.cursor ?? (this.from + this.to) / 2;
    this.set(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }
  pan(share) {
    const by = (this.to - this.from) * share;
    this.set(this.from + by, this.to + by);
  }
  show(from, to) {
    const margin = Math.max((to - from) * 0.15, this.least / 2);
    this.set(from - margin, to + margin);
  }
  changed() {
    for (const panel of this.panels) panel.later();
    for (const listener of this.listeners) listener(this);
  }
  point(value) {
    this.cursor = value;
    for (const panel of this.panels) panel.laterOver();
  }
}

// Panels that want to be drawn are drawn together, once a frame.
const waiting = new Set();
let asked = false;
function nextFrame(draw) {
  waiting.add(draw);
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    const draws = [...waiting];
    waiting.clear();
    for (const each of draws) each();
  });
}

const HINT = "Arrow keys move the cursor, Shift and an arrow moves the view, plus and minus zoom, Home shows all, Enter opens what is under the cursor.";
const allPanels = [];

class Panel {
  // `about`: name, colours (for the legend), height (px, or a function), view, draw(pen, panel), tell(x, y, panel)
  // gives lines or null, open(x, y, panel), and for panels that scroll `full`, the height of all that they hold.
  constructor(parent, about) {
    this.about = about;
    this.view = about.view;
    this.row = 0; // y of the keyboard's cursor
    this.hovered = null;
    this.base = element("canvas", { "aria-hidden": "true" });
    this.over = element("canvas", { "aria-hidden": "true" });
    this.plot = element("div", {
      class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label": `${about.name}. ${HINT}`,
    }, this.base, this.over);
    this.plot.style.height = `${about.height}px`;
    this.legend = element("div", {}, about.colours ? legend(about.colours) : null);
    this.scroller = null;
    let shown = this.plot;
    if (about.full > about.height) {
      this.scroller = element("div", { class: "scroll" }, this.plot, element("div"));
      this.scroller.lastChild.style.height = `${about.full - about.height}px`;
      this.scroller.style.maxHeight = `${about.height}px`;
      this.plot.classList.add("fixed");
      this.scroller.addEventListener("scroll", () => this.later());
      shown = this.scroller;
    }
    this.root = element("div", { class: "panel" },
      element("div", { class: "head" }, element("h3", {}, about.title ?? about.name), this.legend), shown);
    parent.append(this.root);
    this.view.panels.push(this);
    allPanels.push(this);
    this.draws = () => this.draw();
    this.drawsOver = () => this.drawOver();
    listen(this);
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }
  get top() {
    return this.scroller === null ? 0 : this.scroller.scrollTop;
  }
  resize() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    const ratio = window.devicePixelRatio || 1;
    if (width === this.width && height === this.tall && ratio === this.ratio) return;
    Object.assign(this, { width, tall: height, ratio });
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.max(1, Math.round(width * ratio));
      canvas.height = Math.max(1, Math.round(height * ratio));
    }
    this.later();
  }
  later() {
    nextFrame(this.draws);
    nextFrame(this.drawsOver);
  }
  laterOver() {
    nextFrame(this.drawsOver);
  }
  x(value) {
    return (value - this.view.from) / (this.view.to - this.view.from) * this.width;
  }
  value(x) {
    return this.view.from + x / this.width * (this.view.to - this.view.from);
  }
  pen(canvas) {
    const pen = canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.tall);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }
  draw() {
    if (!this.width) return;
    this.about.draw(this.pen(this.base), this);
  }
  drawOver() {
    if (!this.width) return;
    const pen = this.pen(this.over);
    this.about.drawOver?.(pen, this);
    if (this.view.cursor !== null) {
      pen.fillStyle = colour("hover");
      pen.fillRect(Math.round(this.x(this.view.cursor)), 0, 1, this.tall);
    }
  }
}

function listen(panel) {
  const { plot, view } = panel;
  let drag = null;
  const place = (event) => {
    const box = plot.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  plot.addEventListener("wheel", (event) => {
    const [x] = place(event);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), panel.value(x));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.pan((event.deltaX || event.deltaY) / panel.width);
    }
  }, { passive: false });
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    drag = { x, y, from: view.from, to: view.to, moved: false, range: event.shiftKey };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (drag !== null) {
      drag.moved ||= Math.abs(x - drag.x) > 3;
      if (drag.moved && !drag.range) {
        const by = (drag.x - x) / panel.width * (drag.to - drag.from);
        view.set(drag.from + by, drag.to + by);
      }
    }
    view.point(panel.value(x));
    tell(panel, x, y, event.clientX, event.clientY);
  });
  plot.addEventListener("pointerup", (event) => {
    const [x, y] = place(event);
    if (drag === null) return;
    if (!drag.moved) panel.about.open?.(x, y, panel);
    else if (drag.range) view.set(panel.value(Math.min(x, drag.x)), panel.value(Math.max(x, drag.x)));
    drag = null;
  });
  plot.addEventListener("pointercancel", () => { drag = null; });
  plot.addEventListener("pointerleave", () => hush(panel));
  plot.addEventListener("dblclick", (event) => view.zoom(0.4, panel.value(place(event)[0])));
  plot.addEventListener("blur", () => hush(panel));
  plot.addEventListener("keydown", (event) => key(panel, event));
}

function key(panel, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { view } = panel;
  const step = panel.about.step?.(panel) ?? (view.to - view.from) / 100;
  const start = view.cursor === null || view.cursor < view.from || view.cursor > view.to ? (view.from + view.to) / 2 : view.cursor;
  const move = (by, down) => {
    const to = Math.min(Math.max(start + by, view.low), view.high);
    if (to < view.from || to > view.to) view.pan(by < 0 ? -0.2 : 0.2);
    moveDown(panel, down);
    view.point(to);
    const box = panel.plot.getBoundingClientRect();
    tell(panel, panel.x(to), panel.row, box.left + panel.x(to), box.top + panel.row, true);
  };
  const keys = {
    ArrowLeft: () => (event.shiftKey ? view.pan(-0.2) : move(-step, 0)),
    ArrowRight: () => (event.shiftKey ? view.pan(0.2) : move(step, 0)),
    ArrowUp: () => move(0, -(panel.about.down ?? 10)),
    ArrowDown: () => move(0, panel.about.down ?? 10),
    "+": () => view.zoom(0.6, start),
    "=": () => view.zoom(0.6, start),
    "-": () => view.zoom(1 / 0.6, start),
    Home: () => view.all(),
    Enter: () => panel.about.open?.(panel.x(start), panel.row, panel),
    Escape: () => hush(panel),
  };
  if (!(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
}

// The keyboard's cursor a little lower; where the panel scrolls, it scrolls along.
function moveDown(panel, by) {
  panel.row += by;
  const over = panel.row < 0 ? panel.row : Math.max(0, panel.row - panel.tall + 1);
  if (over !== 0 && panel.scroller !== null) panel.scroller.scrollTop += over;
  panel.row = Math.min(Math.max(panel.row, 0), panel.tall - 1);
}

const tip = document.getElementById("tip");
function tell(panel, x, y, clientX, clientY, aloud) {
  const lines = panel.about.tell?.(x, y, panel) ?? null;
  if (lines === null) {
    tip.hidden = true;
    return;
  }
  tip.replaceChildren(...lines.map((line) => element("div", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(clientX + 14, window.innerWidth - box.width - 8))}px`;
  tip.style.top = `${clientY + 18 + box.height > window.innerHeight ? clientY - box.height - 10 : clientY + 18}px`;
  if (aloud) spoken(lines.join(". "));
}

function hush(panel) {
  tip.hidden = true;
  panel.view.point(null);
}

function tools(parent, view, unit, hint) {
  const button = (name, label, act) => element("button", { type: "button", "aria-label": label, onclick: act }, name);
  const where = element("span", { class: "quiet" });
  parent.append(
    button("\u2212", "Zoom out", () => view.zoom(2)), button("+", "Zoom in", () => view.zoom(0.5)),
    button("\u2190", "Earlier", () => view.pan(-0.4)), button("\u2192", "Later", () => view.pan(0.4)),
    button("All", "Show all", () => view.all()), where, element("span", { class: "quiet" }, hint));
  const say = () => { where.textContent = `${unit(view.from)} to ${unit(view.to)}`; };
  view.listeners.push(say);
  say();
}

// The label of a tick: to its right, or to its left where the panel ends before the label does.
function labelTick(pen, panel, tick, text, y) {
  const x = panel.x(tick), wide = pen.measureText(text).width;
  pen.fillText(text, x + 3 + wide > panel.width ? x - 3 - wide : x + 3, y);
}

// Round distances between the lines of an axis.
function ticksOf(from, to, most) {
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = power * [1, 2, 5, 10].find((times) => times * power >= rough);
  const ticks = [];
  for (let tick = Math.ceil(from / distance) * distance; tick <= to; tick += distance) ticks.push(tick);
  return { ticks, distance };
}
