// The prediction.

function drawOutput() {
  const { steps, model, hypotheses } = state.data;
  const step = steps[state.step];
  const shown = task() === "answer" ? steps : [step];
  const { regression } = model;
  const isPending = state.revealed !== Infinity && (growing() ? state.revealed <= state.step : true);
  const content = isPending ? note("The softmax has not been computed yet.") : shown.map((each) => [
    task() !== "classify" &&
      make(
        "h3",
        {},
        capital(each.name),
        (growing() || task() === "fill") && make("span", { class: "note" }, ` of ${steps.length}`),
      ),
    bars(withChosen(each.top, each.chosen, each.text, each.p), each.chosen, regression),
    growing() &&
      note(
        each.rank === 1 ? "The most probable" : `Rank ${each.rank.toLocaleString("en")}`,
        ` of ${plural(each.options, "token")}.`,
      ),
  ]);
  const force = ({ text, ids }) =>
    host ? button(text, () => ask({ ...state.request, target: ids })) : text;
  fill(
    parts.output,
    make("div", {}, make("h2", {}, "Prediction"), answerLine(answerText()), !isPending && mattered()),
    make("div", {}, content, host && task() === "generate" && state.revealed === Infinity && samplingControls()),
    state.beside && state.data === state.own && besideOutput(),
    hypotheses.length > 1 &&
      state.revealed === Infinity &&
      make("div", {}, make("h3", {}, "Beam search hypotheses"), hypothesisList(hypotheses, force)),
  );
}

const answerLine = (text) => make("p", { class: "answer", lang: "und", dir: "auto" }, text);
const hypothesisList = (hypotheses, show) =>
  make(
    "ol",
    { class: "hypotheses", dir: "auto" },
    hypotheses.map((each) =>
      make("li", {}, show({ ...each, text: each.text || "(empty)" }), make("span", { class: "note" }, ` ${decimals(each.score, 3)}`)),
    ),
  );

/** Return the top candidates, and the chosen one if it is not among them. */
const withChosen = (top, id, text, p) => (top.some((option) => option.id === id) ? top : [...top, { id, text, p }]);

/** Draw the prediction of the changed or other model: its answer, current step and hypotheses. */
function besideOutput() {
  const { title, data, same: steps } = state.beside;
  const { regression } = state.own.model;
  const shown = steps ? (task() === "answer" ? steps : [steps[state.step]]) : [];
  return make(
    "div",
    { class: "changed" },
    make("h3", {}, title),
    answerLine(marked(1)),
    shown.map(({ top, chosen, text, p }) => bars(withChosen(top.slice(0, 4), chosen, text, p), chosen, regression)),
    data.hypotheses.length > 1 && hypothesisList(data.hypotheses, ({ text }) => text),
  );
}

/** Draw a classifier's input text, coloured by how much each word raises or lowers the predicted class's score. */
function mattered() {
  const { mattered: pieces, model } = state.data;
  if (!pieces) return null;
  return [
    make("h3", {}, "Which words mattered"),
    make(
      "p",
      { class: "mattered", lang: "und", dir: "auto" },
      pieces.map(({ text, share }) => {
        const piece = make("span", { title: `${visible(text)} ${share}` }, text);
        piece.style.background = shade(share, 45);
        return piece;
      }),
    ),
    note(
      `Gradient × input: blue raises ${model.regression ? "the number" : "the score of this class"} and orange lowers it, to first order. Like attention, it can highlight words that the answer does not depend on.`,
    ),
    table("Which words mattered, as a table", () =>
      grid(
        "Gradient × input, scaled to a largest magnitude of 1",
        ["piece", "share"],
        pieces.map(({ text, share }) => [visible(text), decimals(share, 3)]),
      ),
    ),
  ];
}

/** Draw a bar for each candidate. */
const bars = (options, chosen, regression) =>
  make(
    "ol",
    { class: "bars" },
    options.map(({ id, text, p }) =>
      make(
        "li",
        { class: id === chosen && "chosen" },
        make("span", { class: "name" }, shortened(visible(text), 22)),
        make(
          "span",
          { class: "track" },
          make("span", { class: "fill", style: `width:${regression ? 0 : 100 * p}%` }),
        ),
        make("span", { class: "number" }, regression ? decimals(p, 3) : percent(p)),
      ),
    ),
  );

/** Return the part of the answer revealed so far. */
function answerText() {
  const { steps, written } = state.data;
  if (!growing()) return state.revealed === Infinity || phases()[state.phase].answer ? answerOf(state.data) : "…";
  if (state.revealed === Infinity) {
    if (task() === "translate" || !written) return state.data.answer;
    const [begun] = state.data.answer.startsWith(state.data.text) ? [state.data.text] : [""];
    return [begun, make("mark", {}, state.data.answer.slice(begun.length))];
  }
  const done = Math.max(state.revealed, firstWritten());
  return [done ? steps[done - 1].so_far : "", make("span", { class: "caret" })];
}
