// The prediction.

function drawOutput() {
  const { steps, model, hypotheses } = state.data;
  const step = steps[state.step];
  const shown = task() === "answer" ? steps : [step];
  const { regression } = model;
  const content = shown.map((each) => {
    const rows = withChosen(each.top, each.chosen, each.text, each.p);
    return [
      task() === "classify"
        ? null
        : make(
            "h3",
            {},
            capital(each.name),
            growing() || task() === "fill" ? make("span", { class: "note" }, ` of ${steps.length}`) : null,
          ),
      make(
        "ol",
        { class: "bars" },
        rows.map((option) => bar(option, option.id === each.chosen, regression)),
      ),
      growing()
        ? make(
            "p",
            { class: "note" },
            `${each.rank === 1 ? "The most probable" : `Rank ${each.rank.toLocaleString("en")}`} of ${plural(each.options, "token")}.`,
          )
        : null,
    ];
  });
  const pending = growing() && state.revealed <= state.step;
  parts.output.classList.toggle("pending", pending);
  fill(
    parts.output,
    make("h2", {}, "Prediction"),
    make("p", { class: "answer", lang: "und", dir: "auto" }, answerText()),
    ...content.flat(),
    mattered(),
    state.beside && state.data === state.own ? besideOutput() : null,
    hypotheses.length > 1
      ? make(
          "div",
          {},
          make("h3", {}, "Beam search hypotheses"),
          make(
            "ol",
            { class: "hypotheses", dir: "auto" },
            hypotheses.map(({ text, score, ids }) =>
              make(
                "li",
                {},
                host
                  ? make("button", { type: "button", click: () => ask({ ...state.request, target: ids }) }, text)
                  : text,
                make("span", { class: "note" }, ` ${decimals(score, 3)}`),
              ),
            ),
          ),
        )
      : null,
  );
}

/** The best options, and the chosen one if it is not among them. */
const withChosen = (top, id, text, p) => (top.some((option) => option.id === id) ? top : [...top, { id, text, p }]);

/** The prediction of the changed or other model: its answer, this step, its hypotheses. */
function besideOutput() {
  const { title, data, same: steps } = state.beside;
  const { regression } = state.own.model;
  const shown = steps ? (task() === "answer" ? steps : [steps[state.step]]) : [];
  return make(
    "div",
    { class: "changed" },
    make("h3", {}, title),
    make("p", { class: "answer", lang: "und", dir: "auto" }, marked(1)),
    shown.map(({ top, chosen, text, p }) =>
      make(
        "ol",
        { class: "bars" },
        withChosen(top.slice(0, 4), chosen, text, p).map((option) => bar(option, option.id === chosen, regression)),
      ),
    ),
    data.hypotheses.length > 1
      ? make(
          "ol",
          { class: "hypotheses", dir: "auto" },
          data.hypotheses.map(({ text, score }) =>
            make("li", {}, text, make("span", { class: "note" }, ` ${decimals(score, 3)}`)),
          ),
        )
      : null,
  );
}

/** The text of a classifier, coloured by how much each word raises or lowers the score of its answer. */
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
        piece.style.background = `color-mix(in srgb, var(--${share < 0 ? "orange" : "blue"}) ${Math.round(45 * Math.abs(share))}%, transparent)`;
        return piece;
      }),
    ),
    make(
      "p",
      { class: "note" },
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

function bar({ text, p }, chosen, regression) {
  const item = make(
    "li",
    { class: chosen ? "chosen" : "" },
    make("span", { class: "name" }, shortened(visible(text), 22)),
    make("span", { class: "track" }, make("span", { class: "fill" })),
    make("span", { class: "number" }, regression ? decimals(p, 3) : percent(p)),
  );
  item.querySelector(".fill").style.width = `${regression ? 0 : 100 * p}%`;
  return item;
}

/** The answer as far as it is revealed. */
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
