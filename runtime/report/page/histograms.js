// Distributions of what groups yielded, by their fate: one row each, on one axis, each to its own height.
const BINS = 48;

function distribution(values, of) {
  const known = [];
  for (let row = 0; row < attempts.rows; row++) {
    if (!of(row)) continue;
    const value = values(row);
    if (value >= 0) known.push(value);
  }
  return Float64Array.from(known).sort();
}

const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];

// `groups`: [name, colour, sorted values].
function histogram(parent, name, unit, groups) {
  const shown = groups.filter(([, , values]) => values.length);
  if (!shown.length) {
    parent.append(element("div", {}, element("h3", {}, name), element("p", { class: "quiet" }, "Not recorded in this trace.")));
    return;
  }
  const high = Math.max(...shown.map(([, , values]) => quantile(values, 0.995))) * 1.05 || 1;
  const view = new View(0, high, high / 20);
  const ROW = 46;
  const counted = shown.map(([, , values]) => {
    const bins = new Uint32Array(BINS + 1);
    for (const value of values) bins[Math.min(BINS, Math.floor(value / high * BINS))] += 1;
    return bins;
  });
  const draw = (pen, panel) => {
    const { ticks } = ticksOf(view.from, view.to, panel.width / 90);
    shown.forEach(([word, ink, values], each) => {
      const most = Math.max(...counted[each]), top = each * ROW;
      pen.fillStyle = colour(ink);
      counted[each].forEach((groupsIn, bin) => {
        const x = panel.x(bin / BINS * high), tall = groupsIn / most * (ROW - 18);
        pen.fillRect(x, top + ROW - 2 - tall, Math.max(1, panel.x((bin + 1) / BINS * high) - x - 1), tall);
      });
      pen.fillStyle = colour("ink");
      pen.fillText(`${word}: ${count(values.length)}, median ${unit(quantile(values, 0.5))}, 95 % ${unit(quantile(values, 0.95))}`, 6, top + 9);
    });
    pen.fillStyle = colour("quiet");
    for (const tick of ticks) labelTick(pen, panel, tick, unit(tick), shown.length * ROW + 8);
  };
  const tell = (x, y, panel) => {
    const each = Math.floor(y / ROW), bin = Math.floor(panel.value(x) / high * BINS);
    if (each >= shown.length || bin < 0 || bin > BINS) return null;
    const from = bin / BINS * high;
    return [shown[each][0], `${bin === BINS ? `above ${unit(from)}` : `${unit(from)} to ${unit(from + high / BINS)}`}: ${count(counted[each][bin])}`];
  };
  new Panel(parent, { name, height: shown.length * ROW + 18, view, draw, tell, down: ROW, step: () => high / BINS });
}

function makeLengths() {
  const parent = document.getElementById("lengths-body");
  const is = (...names) => (row) => names.some((name) => attempts.state[row] === STATE[name]);
  const length = (row) => (attempts.rollouts[row] ? attempts.tokens[row] / attempts.rollouts[row] : -1);
  const longest = (row) => (attempts.rollouts[row] ? attempts.longest[row] : -1);
  const took = (row) => (attempts.begun[row] === NOT_YET || attempts.ended[row] === NOT_YET ? -1 : attempts.ended[row] - attempts.begun[row]);
  const buffered = (row) => (attempts.left[row] === NOT_YET || attempts.ended[row] === NOT_YET ? -1 : attempts.left[row] - attempts.ended[row]);
  const answered = [["trained", "trained", is("trained", "selected")], ["filtered", "filtered", is("filtered")], ["evicted", "evicted", is("evicted")]];
  const failed = [["dropped", "dropped", is("dropped")], ["retried", "retried", is("retried")], ["aborted", "aborted", is("aborted")]];
  const all = (values, kinds) => kinds.map(([name, ink, of]) => [name, ink, distribution(values, of)]);
  const tokens = (value) => brief(Number(value.toPrecision(3)));
  histogram(parent, "Mean tokens per rollout, by group", tokens, all(length, answered));
  histogram(parent, "Tokens of a group's longest rollout", tokens, all(longest, answered));
  histogram(parent, "How long attempts took; dropped, retried and aborted ones yield no tokens", seconds, all(took, [...answered, ...failed]));
  histogram(parent, "How long groups were ready before they were selected or evicted", seconds, all(buffered, [answered[0], answered[2]]));
}
