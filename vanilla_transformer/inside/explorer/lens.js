// The logit lens.

function drawLens() {
  const { lens, steps, model } = state.data;
  const rows = lens.map((places, layers) => ({ places, layers })).toReversed();
  const cell = ({ top, p }, i) => {
    if (model.regression) return make("td", {}, decimals(p, 3));
    const td = make(
      "td",
      {
        class: i === state.step ? "now" : "",
        title: top.map((option) => `${visible(option.text)} ${percent(option.p)}`).join("\n"),
      },
      make("span", {}, shortened(visible(top[0].text), 12)),
      make("small", {}, percent(top[0].p)),
    );
    td.style.background = `color-mix(in srgb, var(--blue) ${Math.round(50 * Math.min(1, top[0].p))}%, transparent)`;
    if (top[0].id === steps[i].chosen) td.classList.add("agrees");
    return td;
  };
  fill(
    parts.lens,
    make("h2", {}, "What each layer would answer"),
    make(
      "p",
      { class: "note" },
      "The same model with its last layers left out: from the bottom, where only the embedding is there, to the top, where all of it is." +
        (model.regression ? "" : " Underlined: already the final answer."),
    ),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Answers of each layer" },
      make(
        "table",
        {},
        make("caption", { class: "unseen" }, "The most probable answer after each layer"),
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            make("th", {}),
            steps.map((step, i) =>
              make(
                "th",
                { scope: "col" },
                make(
                  "button",
                  {
                    type: "button",
                    "aria-pressed": String(i === state.step),
                    click: () => {
                      pause();
                      Object.assign(state, { step: i, hover: null, pinned: null });
                      show("flowing", "mapping", "output", "lens");
                    },
                  },
                  task() === "classify" && !model.regression
                    ? "the text"
                    : shortened(visible(task() === "tag" ? state.data.source[step.token].text : step.text), 12),
                ),
              ),
            ),
          ),
        ),
        make(
          "tbody",
          {},
          rows.map(({ places, layers }) =>
            make(
              "tr",
              {},
              make("th", { scope: "row" }, layers === 0 ? "embedding" : `layer ${layers}`),
              places.map(cell),
            ),
          ),
        ),
      ),
    ),
  );
}
