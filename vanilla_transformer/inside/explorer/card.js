// The step card: what a step does, its equation, its numbers, its learned matrices and its line of code.

/** Open the card of a step, [stack, layer, part, name]; the same step again closes it. */
function openCard(id) {
  pause();
  state.cell = null;
  scene.popover.hidden = true;
  state.card = same(state.card, id) ? null : id;
  show("card");
  remember(true);
  if (!state.card) return;
  // the card sticks to the bottom of the window: keep the stage above it in view
  const [stage, card] = [parts.stage, parts.card].map((each) => each.getBoundingClientRect());
  if (stage.bottom > card.top) parts.stage.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "start" });
}

/** Open the card of a strip's step on the vector of the lane that was clicked. */
function openStrip(column, event) {
  const { stack, part, step } = column;
  lookAt(stack, placeIn(column, event).lane);
  const layer = layerOn(stack);
  state.card = null;
  openCard([stack, layer, part, nameIn(layer, step)]);
  show("staging", "output");
}

/** Return the steps of the card's layer, in the order of the forward pass. */
const stepsOfCard = () => layerSteps(state.card[0], state.card[1]);

function drawCard() {
  if (!state.card) return fill(parts.card);
  const [stack, layer, part, name] = state.card;
  const steps = stepsOfCard();
  const at = steps.findIndex((step) => step.part === part && step.name === name);
  const close = () => {
    state.card = null;
    show("card");
    remember(true);
    scene.openers[0].focus({ preventScroll: true });
  };
  const turn = (by) => {
    const next = steps[at + by];
    state.card = [stack, layer, next.part, next.name];
    show("card");
    remember();
  };
  const step = steps[at];
  const place = { embedding: `input of the ${stack}`, output: `output of ${stack} layer ${layer + 1}` }[part] ?? `${part}, ${stack} layer ${layer + 1}`;
  fill(
    parts.card,
    make(
      "header",
      {},
      make("div", {}, make("h2", {}, capital(name)), make("span", { class: "note" }, place)),
      button(icon("back"), () => turn(-1), { class: "round small", "aria-label": "Previous step", disabled: at < 1 }),
      button(icon("on"), () => turn(1), { class: "round small", "aria-label": "Next step", disabled: at < 0 || at === steps.length - 1 }),
      button(icon("close"), close, { class: "round small", "aria-label": "Close" }),
    ),
    step ? cardBody(step, stack) : note("Loading the numbers …"),
  );
}

function cardBody(step, stack) {
  const math = make("div", { class: "equation" });
  math.innerHTML = step.mathml; // made by inside/mathml.py
  const shape = step.axes.map((axis, i) => `${axis} ${step.shape[i]}`).join(" × ");
  return make(
    "div",
    { class: "card-body" },
    make(
      "div",
      { class: "told" },
      make("p", { class: "sentence" }, step.sentence),
      math,
      step.source &&
        make(
          "p",
          { class: "code" },
          make("code", {}, step.code),
          make("a", { href: step.link, target: "_blank", rel: "noopener" }, step.source),
        ),
      note(shape),
    ),
    make("div", { class: "numbers" }, step.values ? stepNumbers(step, stack) : softmaxNumbers()),
  );
}

/** Draw the most probable tokens of the current step. */
function softmaxNumbers() {
  const { top, chosen, text, p, options } = state.data.steps[state.step];
  return [
    make("h3", {}, `The softmax turns ${options.toLocaleString("en")} scores into probabilities. The largest:`),
    bars(withChosen(top, chosen, text, p), chosen, false),
  ];
}

/** Draw the numbers of a step: the vector of the current lane, all rows, and the learned matrices. */
function stepNumbers(step, stack) {
  const hasHeads = step.axes[0] === "heads";
  const axes = hasHeads ? step.axes.slice(1) : step.axes;
  const ofKeys = (axis) => (step.part === "cross-attention" && axis === "keys" ? "source" : columnOf(stack));
  const names = (axis) =>
    ["length", "queries", "keys"].includes(axis) ? tokens(ofKeys(axis)).map(({ text }) => visible(text)) : null;
  const isSquare = axes[1] === "keys"; // for the mean of all heads, show the head that is strongest at the lane
  const head = state.head === "mean" ? 0 : state.head;
  const rows = hasHeads && (isSquare || state.head !== "mean") ? step.values[head] : vectorsOf(step);
  const [rowNames, columnNames] = [names(axes[0]), names(axes[1])];
  const lane = Math.min(rows.length - 1, laneSeen(stack) ?? 0);
  const which = !hasHeads ? "" : isSquare || state.head !== "mean" ? `, head ${head + 1}` : ", all heads side by side";
  const count = isSquare ? plural(columnNames.length, "key") : plural(rows[lane].length, "number");
  return [
    make("h3", {}, rowNames ? `“${rowNames[lane]}”: ` : "", count, which),
    vectorNumbers(rows[lane], columnNames),
    make("h3", {}, isSquare ? "All queries and keys" : `All ${plural(rows.length, "row")}`, which),
    colourMap(rows, (i) => rowNames?.[i] ?? String(i + 1), (j) => columnNames?.[j] ?? `number ${j + 1}`, lane),
    Object.entries(learnedOf(step, head)).map(([name, matrix]) => [
      make("h3", {}, symbol(name), ` · ${matrix.length} × ${matrix[0].length} learned numbers`),
      colourMap(matrix, (i) => `row ${i + 1}`, (j) => `column ${j + 1}`),
    ]),
  ];
}

/** Return the learned matrices of a step; of a projection into heads, the columns of the chosen head. */
function learnedOf(step, head) {
  const { matrices = {} } = step;
  if (step.axes[0] !== "heads" || state.head === "mean") return matrices;
  const width = step.shape.at(-1);
  const cut = (rows) => rows.map((row) => row.slice(head * width, (head + 1) * width));
  return Object.fromEntries(Object.entries(matrices).map(([name, rows]) => [name, cut(rows)]));
}

/** Return a symbol with its subscript, such as W_Q. */
const symbol = (name) => [make("i", {}, name.split("_")[0]), make("sub", {}, name.split("_")[1])];

/** List all numbers of a vector, shaded by their size. */
function vectorNumbers(row, names) {
  const values = [...row];
  const most = Math.max(1e-9, ...values.map((value) => Math.abs(value ?? 0)));
  return make(
    "ol",
    { class: `vector-numbers${names ? " named" : ""}`, tabindex: 0, "aria-label": "The numbers of the vector" },
    values.map((value, i) => {
      const text = value === null ? "−∞" : Number.isInteger(value) && row.length === 1 ? String(value) : decimals(value, 3);
      const item = make("li", { title: names?.[i] ?? `number ${i + 1}` }, names && make("span", {}, shortened(names[i], 10)), text);
      item.style.background = shade((value ?? 0) / most, 45);
      return item;
    }),
  );
}

/** Paint a matrix, one pixel per number. */
function paintMap(canvas, rows) {
  if (!inks) readInks();
  const width = rows[0].length;
  Object.assign(canvas, { width, height: rows.length });
  canvas.getContext("2d").drawImage(strip(rows, width), 0, 0);
}

/** Draw a matrix as a colour map that tells the value under the pointer. */
function colourMap(rows, rowName, columnName, marked = null) {
  const canvas = make("canvas", { role: "img", "aria-label": `Colour map of ${rows.length} × ${rows[0].length} numbers: blue is positive, orange negative` });
  paintMap(canvas, rows);
  const idle = "Point at the map to read a number.";
  const read = make("p", { class: "note" }, idle);
  const tall = Math.min(16, Math.max(1, 150 / rows.length));
  canvas.style.height = `${Math.max(12, tall * rows.length)}px`;
  canvas.style.maxWidth = `${Math.max(60, 24 * rows[0].length)}px`;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const along = (size, from, length) => Math.min(size - 1, Math.max(0, Math.floor((size * from) / length)));
    const i = along(rows.length, event.clientY - box.top, box.height),
      j = along(rows[0].length, event.clientX - box.left, box.width);
    const value = rows[i][j];
    read.textContent = `${rowName(i)}, ${columnName(j)}: ${value === null ? "−∞" : decimals(value, 4)}`;
  });
  canvas.addEventListener("pointerleave", () => (read.textContent = idle));
  const mark = marked !== null && rows.length > 1 && make("span", { class: "marked", style: `top:${(100 * marked) / rows.length}%;height:${100 / rows.length}%` });
  return make("figure", { class: "map" }, make("div", {}, canvas, mark), read);
}
