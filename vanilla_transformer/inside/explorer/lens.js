// The logit lens: the prediction after each layer.

function drawLens() {
  const { lens, steps, model } = state.data;
  const rows = lens.map((places, layers) => ({ places, layers })).toReversed();
  const cell = ({ top, p }, i) => {
    if (model.regression) return make("td", {}, decimals(p, 3));
    const td = make(
      "td",
      {
        title: top.map((option) => `${visible(option.text)} ${percent(option.p)}`).join("\n"),
      },
      make("span", {}, shortened(visible(top[0].text), 12)),
      make("small", {}, percent(top[0].p)),
    );
    td.style.background = shade(Math.min(1, top[0].p), 50);
    if (top[0].id === steps[i].chosen) td.classList.add("agrees");
    return td;
  };
  const choose = (i) => () => {
    pause();
    Object.assign(state, { step: i, hover: null, pinned: null });
    show("staging", "output", "lensing", "card");
    remember();
  };
  const nameOf = (step) => {
    if (task() === "classify" && !model.regression) return "the text";
    return shortened(visible(task() === "tag" ? state.data.source[step.token].text : step.text), 12);
  };
  const header = steps.map((step, i) =>
    button(nameOf(step), choose(i), { keydown: (event) => event.key.startsWith("Arrow") && rove(event, header) }),
  );
  fill(
    parts.lens,
    make("h2", {}, "What each layer would predict"),
    note(
      "The prediction when the layers above are skipped (logit lens), from the embedding alone at the bottom to the whole model at the top.",
      model.regression ? "" : " Underlined: equal to the final prediction.",
    ),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Predictions of each layer" },
      grid(
        null,
        ["", ...header],
        rows.map(({ places, layers }) => [layers === 0 ? "embedding" : `layer ${layers}`, ...places.map(cell)]),
      ),
    ),
  );
  updateLens();
}

/** Mark the current step. */
function updateLens() {
  parts.lens.querySelectorAll("thead button").forEach((each, i) => {
    each.setAttribute("aria-pressed", String(i === state.step));
    each.setAttribute("tabindex", i === state.step ? 0 : -1);
  });
  for (const row of parts.lens.querySelectorAll("tbody tr"))
    row.querySelectorAll("td").forEach((td, i) => td.classList.toggle("now", i === state.step));
}
