// Side-by-side comparison of two predictions.

/** Return the indices of the longest common subsequence in each of two lists, as two sets. */
function common(one, other) {
  const lengths = Array.from({ length: one.length + 1 }, () => new Array(other.length + 1).fill(0));
  for (let i = one.length - 1; i >= 0; i--)
    for (let j = other.length - 1; j >= 0; j--)
      lengths[i][j] =
        one[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const found = [new Set(), new Set()];
  for (let i = 0, j = 0; i < one.length && j < other.length;) {
    if (one[i] === other[j]) {
      found[0].add(i++);
      found[1].add(j++);
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return found;
}

/** Draw the original (0) or the other (1) prediction, with differences marked. */
function marked(which, both = [state.own, state.beside.data]) {
  const each = both[which];
  if (!["translate", "generate"].includes(each.model.task))
    return both[0].answer === both[1].answer ? answerOf(each) : make("mark", {}, answerOf(each));
  // A language model's last prediction, after the end of the text, is not part of its answer.
  const stepsOf = ({ steps, model }) => (model.task === "generate" ? steps.slice(0, -1) : steps);
  // The text that each step adds: none for the end token. A character of several tokens is added by the last one.
  const pieces = both.map((data) =>
    stepsOf(data)
      .map((step, n, all) => step.so_far.slice(all[n - 1]?.so_far.length ?? 0))
      .filter(Boolean),
  );
  const shared = common(...pieces)[which];
  return pieces[which].map((piece, n) => (shared.has(n) ? piece : make("mark", {}, piece)));
}

/** Return the steps of the answer. A language model's steps also include its prompt and one prediction more. */
const answerSteps = ({ model, written }, steps) =>
  model.task === "generate" && written ? steps.slice(steps.length - 1 - written, -1) : steps;
const logProbability = (steps) => steps.reduce((sum, step) => sum + Math.log(Math.max(step.p, 1e-9)), 0);

/** Say how a change affects the probability of the original answer; `kept` are its steps with new probabilities. */
function shift(own, kept) {
  const [before, after] = [own.steps, kept].map((steps) => logProbability(answerSteps(own, steps)));
  const places = answerSteps(own, own.steps).length;
  const told = (root) => [before, after].map((log) => percent(Math.exp(log / root)));
  const tiny = Math.max(before, after) < Math.log(1e-4);
  const [from, to] = told(tiny ? places : 1);
  return `from ${from} to ${to}${tiny ? " (geometric mean over its tokens)" : ""}`;
}

const FATES = ["The answer stays the same", "The answer stays, but is less probable", "The answer changes"];

/** Return the index in FATES of what happens to the answer. */
function fate(own, changed, kept) {
  if (own.answer !== changed.answer) return 2;
  const lost = logProbability(answerSteps(own, own.steps)) - logProbability(answerSteps(own, kept));
  return lost > Math.log(2) ? 1 : 0;
}

function drawBeside() {
  parts.beside.hidden = !state.beside;
  if (!state.beside) return;
  const { title, data, same: kept } = state.beside,
    { own } = state;
  const steps = kept ?? data.steps;
  const { regression } = own.model;
  let verdict = null;
  if (kept && regression) {
    verdict = `The number goes from ${decimals(own.steps[0].p, 3)} to ${decimals(kept[0].p, 3)}.`;
  } else if (kept) {
    const which = fate(own, data, kept);
    const part = "the changed part";
    const reason = [`the answer does not depend on ${part}`, `${part} supported it`, `the model used ${part}`][which];
    const whole = state.changes.causal_off ? " Here, the decoder saw the whole answer at once." : "";
    const goes = `The probability of the original answer goes ${shift(own, kept)}`;
    verdict = `${FATES[which]}. ${goes}: ${reason}.${whole}`;
  }
  const count = Math.max(own.steps.length, steps.length);
  const value = (p, { model } = own) => (p === undefined ? "" : model.regression ? decimals(p, 3) : percent(p));
  const rows = Array.from({ length: count }, (_, i) => {
    const [a, b] = [own.steps[i], steps[i]];
    const first = regression ? [] : [b?.rank.toLocaleString("en") ?? "", b ? visible(b.top[0].text) : ""];
    const cells = kept
      ? [value(a?.p), value(b?.p), ...first]
      : [value(a?.p), b ? visible(b.text) : "", value(b?.p, data)];
    const about = a && a.token !== null && own.model.task === "tag" ? `${visible(own.source[a.token].text)} ` : "";
    return [a ? about + visible(a.text) : "", ...cells];
  });
  const measure = ({ model }) => (model.regression ? "number" : "probability");
  const header = kept
    ? ["original", "changed", ...(regression ? [] : ["new rank", "new best"])]
    : [measure(own), title, measure(data)];
  const kind = state.changes.weights.at(-1)?.[0] ?? [...state.kinds][0] ?? own.attention[0].kind;
  const what = `${capital(KINDS[kind].name)}, layer ${layerSeen(kind) + 1}, ${state.head === "mean" ? "mean of all heads" : `head ${state.head + 1}`}`;
  const square = (each) => {
    if (!attention(kind, each)) return null;
    const canvas = make("canvas", { role: "img", "aria-label": what });
    paint(canvas, weights(kind, layerSeen(kind), state.head, each), KINDS[kind].color);
    return canvas;
  };
  const showAbove = (each, i) => () => {
    pause();
    view(each);
    show(...Object.keys(DRAW));
    remember();
    parts.beside.querySelectorAll(".side button")[i].focus({ preventScroll: true }); // of this side
    parts.player.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "nearest" });
  };
  const side = (name, each, i) => {
    const isAbove = state.data === each;
    return make(
      "div",
      { class: "side" },
      make("h3", {}, name),
      answerLine(marked(i)),
      make("div", { class: "square" }, square(each), make("span", { class: "note" }, what)),
      button(isAbove ? "Shown above" : "Show it above", showAbove(each, i), { "aria-pressed": String(isAbove) }),
    );
  };
  fill(
    parts.beside,
    make("h2", {}, "Side by side"),
    verdict ? make("p", { class: "verdict", "aria-live": "polite" }, verdict) : "",
    make(
      "div",
      { class: "sides" },
      side(own.name, own, 0),
      side(title, data, 1),
    ),
    make(
      "div",
      { class: "scroll" },
      grid(kept ? "The original answer, step by step" : "The answers, step by step", ["", ...header], rows),
    ),
    table("The squares as tables", () =>
      [own, data].map((each, i) =>
        attention(kind, each) ? weightTable(kind, each, `${[own.name, title][i]}: ${what}`) : null,
      ),
    ),
  );
}
