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
    make("h2", {}, "What each layer would predict"),
    make(
      "p",
      { class: "note" },
      "The prediction when the layers above are skipped (logit lens), from the embedding alone at the bottom to the whole model at the top." +
        (model.regression ? "" : " Underlined: equal to the final prediction."),
    ),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Predictions of each layer" },
      make(
        "table",
        {},
        make("caption", { class: "unseen" }, "The most probable prediction after each layer"),
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
