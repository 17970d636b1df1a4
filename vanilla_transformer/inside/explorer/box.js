// An open box of the map: equations with values, shapes and lines of code.

const layerOf = (stack, layer, data) => host.layer({ ...data.request, target: writtenIds(data), stack, layer });

/** Toggle a box, and return whether that succeeded: loading its values may fail. */
async function openBox(id) {
  pause();
  state.box = state.box?.join() === id.join() ? null : id;
  if (state.box && id[2].endsWith("attention")) {
    state.kinds = new Set([id[2] === "cross-attention" ? "cross" : id[0]]);
    state.layer = id[1];
    updateFlow();
  }
  updateMap();
  fill(parts.box, state.box && note("Loading the numbers …"));
  if (!state.box) return true;
  const name = `${id[0]} ${id[1]}`;
  const { data } = state;
  const values = (data.values ??= {});
  try {
    values[name] ??= await layerOf(id[0], id[1], data);
  } catch (error) {
    complain(error);
    if (state.box === id) state.box = null;
    updateMap();
  }
  drawBox();
  parts.box.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "nearest" });
  return state.box === id;
}

/** Return the ids of the generated tokens; null for models that do not generate text. */
function writtenIds({ model, steps, source, written }) {
  if (model.task === "translate") return steps.map((step) => step.chosen);
  return model.task === "generate" ? source.slice(source.length - written).map((token) => token.id) : null;
}

function drawBox() {
  if (!state.box) return fill(parts.box);
  const [stack, layer, part] = state.box;
  const steps = (state.data.values?.[`${stack} ${layer}`] ?? []).filter((step) => step.part === part);
  const title =
    part === "embedding"
      ? `Input of the ${stack}`
      : part === "output"
        ? "Output of the last layer"
        : `${capital(part)}, ${stack} layer ${layer + 1}`;
  const close = () => {
    const [opener] = mapped.boxes.find(([, id]) => id.join() === state.box.join());
    opener.focus();
    openBox(state.box); // closes the open box
    remember(true);
  };
  fill(
    parts.box,
    make("header", {}, make("h2", {}, title), button("×", close, { class: "round", "aria-label": "Close" })),
    make("div", { class: "steps" }, steps.map(stepCard)),
  );
}

function stepCard(step) {
  const hasHeads = step.axes[0] === "heads";
  const head = state.head === "mean" ? 0 : state.head;
  const values = hasHeads ? step.values[head] : step.values;
  const [, , part] = state.box;
  const column = state.box[0] === "encoder" || !twoStacks() ? "source" : "target";
  const axes = hasHeads ? step.axes.slice(1) : step.axes;
  const label = (axis, i) =>
    ["length", "queries", "keys"].includes(axis)
      ? visible(tokens(part === "cross-attention" && axis === "keys" ? "source" : column)[i]?.text ?? "")
      : "";
  const largest = Math.max(1e-9, ...values.flat().map((value) => Math.abs(value ?? 0)));
  const cell = (value) => {
    if (value === null) return "−∞";
    const td = make("td", {}, Number.isInteger(value) ? String(value) : decimals(value, 3));
    td.style.background = shade(value / largest, 45);
    return td;
  };
  const more = (row) => (row.length < step.shape.at(-1) ? [make("td", { class: "more" }, "…")] : []);
  const shape = step.axes.map((axis, i) => `${axis} ${step.shape[i]}`).join(" × ");
  return make(
    "article",
    {},
    make("h3", {}, capital(step.name)),
    make("p", { class: "equation" }, step.equation),
    note(
      shape,
      hasHeads ? `; head ${head + 1} is shown` : "",
      step.source ? make("code", {}, step.source) : null,
    ),
    make(
      "div",
      { class: "scroll" },
      grid(
        null,
        axes[1] === "keys" ? ["", ...values[0].map((_, j) => label("keys", j))] : null,
        values.map((row, i) => [label(axes[0], i), ...row.map(cell), ...more(row)]),
      ),
    ),
  );
}
