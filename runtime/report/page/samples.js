// What the policy said: samples as cards, searched by a text, a step, a prompt or a fate.
const CARDS_AT_A_TIME = 20;
const SAMPLE_ORDERS = {
  newest: (one, other) => other.step - one.step,
  oldest: (one, other) => one.step - other.step,
  best: (one, other) => other.reward - one.reward || other.step - one.step,
  worst: (one, other) => one.reward - other.reward || other.step - one.step,
};

function cardOf(sample) {
  const parts = sample.parts.map(([name, value]) => `${name} ${value}`).join(", ");
  const life = element("button", { type: "button", class: "link", onclick: () => showPrompt(sample.prompt) }, `prompt ${sample.prompt}`);
  const words = [
    `${sample.fate}${sample.masked ? ", left out of the loss" : ""}`,
    `reward ${brief(sample.reward)}${parts ? ` (${parts})` : ""}, ${sample.correct ? "right" : "wrong"}`,
    `advantage ${brief(sample.advantage)}`, `${count(sample.tokens)} tokens${sample.finish_reason === "length" ? ", cut off" : ""}`,
    `weights ${sample.start_weight} to ${sample.end_weight}`,
  ];
  if (sample.again) words.push("a resumed run took this step again");
  return element("li", { class: "sample" },
    element("p", {}, `step ${sample.step} \u00b7 `, life, ` (${sample.where}) \u00b7 ${words.join(" \u00b7 ")}`),
    element("dl", {}, ...sample.said.flatMap(([who, text]) => [element("dt", {}, who), element("dd", { class: "said", tabindex: "0" }, text)])));
}

// A text, or "step 5", "prompt 97", "item 3" for exactly these.
function sampleTest(asked) {
  const named = /^(step|prompt|item)\s+(\d+)$/.exec(asked);
  if (named !== null) return (sample) => sample[named[1]] === Number(named[2]);
  return (sample) => asked === "" || sample.where.toLowerCase().includes(asked) || sample.said.some(([, text]) => text.toLowerCase().includes(asked));
}

function makeSamples() {
  const { rows, steps_apart: apart, missing } = data.samples, parent = document.getElementById("samples-body");
  if (missing !== null) {
    parent.append(element("p", {}, missing));
    return;
  }
  const options = (names) => names.map((name) => element("option", { value: name }, name));
  const text = element("input", { type: "search", id: "samples-text", autocomplete: "off", spellcheck: "false", placeholder: "a text, step 5, prompt 97, or item 3" });
  const fate = element("select", { id: "samples-fate" }, ...options(["all", ...new Set(rows.map((sample) => sample.fate)), "cut off"]));
  const order = element("select", { id: "samples-order" }, ...options(Object.keys(SAMPLE_ORDERS)));
  const found = element("span", { class: "quiet", role: "status" }), list = element("ul", { class: "samples" });
  const more = element("button", { type: "button" }, "Show more");
  let left = [];
  const showMore = () => {
    list.append(...left.splice(0, CARDS_AT_A_TIME).map(cardOf));
    more.hidden = !left.length;
  };
  const search = () => {
    const test = sampleTest(text.value.trim().toLowerCase());
    left = rows.filter((sample) => (fate.value === "all" || (fate.value === "cut off" ? sample.finish_reason === "length" : sample.fate === fate.value)) && test(sample));
    left.sort(SAMPLE_ORDERS[order.value]);
    found.textContent = `${count(left.length)} of ${count(rows.length)} samples${apart > 1 ? `, of every ${apart}th step` : ""}`;
    list.replaceChildren();
    showMore();
  };
  for (const [input, event] of [[text, "input"], [fate, "change"], [order, "change"]]) input.addEventListener(event, search);
  more.addEventListener("click", showMore);
  parent.append(element("div", { class: "tools", role: "search", "aria-label": "Samples" },
    element("label", { for: "samples-text" }, "Search"), text, element("label", { for: "samples-fate" }, "Fate"), fate,
    element("label", { for: "samples-order" }, "Order"), order, found), list, more);
  search();
}
