// The explorer's state, its frame, light and dark theme, motion, and access to the data.

const root = place.shadowRoot ?? place.attachShadow({ mode: "open" });
const still = matchMedia("(prefers-reduced-motion: reduce)");
const state = {
  data: null, // data being displayed
  own: null, // data of the unchanged model
  beside: null, // {title, data, same, rows} of a changed model or another model
  changes: null, // interventions
  request: null, // the text and model of `own`
  astray: false, // whether the address could not be restored
  kinds: new Set(), // kinds of attention to draw
  layers: {}, // stack -> number of the layer shown
  head: "mean",
  step: 0,
  hover: null, // {column, index}
  pinned: null, // {column, index} of a clicked token
  phase: 0,
  revealed: Infinity, // number of answer tokens shown
  playing: false,
  motion: !still.matches,
  card: null, // [stack, layer, part, name] of the step whose card is open
  cell: null, // [kind, query, key] of the attention weight that is kept open
  experiment: null, // name of the open experiment, or "switches"
  tour: null, // name of the current stop of the tour
  presenting: false, // whether the page is in presentation mode
  focus: null, // [stack, part] of the only sub-layer to draw on the stage
  progress: 1, // how much of the current phase has passed, from 0 to 1
  speed: 1,
  asked: 0,
};
const parts = Object.fromEntries(
  "top tour player stage output card experiments broken beside heads lens save train"
    .split(" ")
    .map((name) => [name, make("section", { class: name })]),
);
const live = make("p", { class: "unseen", "aria-live": "polite" });
const message = make("p", { class: "message", role: "alert", hidden: true });
const frame = make(
  "div",
  { class: "explorer" },
  parts.top,
  message,
  parts.tour,
  make(
    "div",
    { class: "whole", hidden: true },
    parts.player,
    make("div", { class: "front" }, parts.stage, parts.output),
    parts.card,
    parts.experiments,
    parts.broken,
    parts.beside,
    parts.heads,
    parts.lens,
    parts.save,
  ),
  parts.train,
  live,
);
fill(root, make("style", {}, style), frame);
const whole = frame.querySelector(".whole");
parts.train.hidden = parts.tour.hidden = true;

function adoptTheme() {
  const { classList, dataset } = document.body;
  const dark =
    classList.contains("dark") ||
    document.documentElement.classList.contains("dark") ||
    dataset.jpThemeLight === "false" ||
    classList.contains("vscode-dark");
  const light = dataset.jpThemeLight === "true" || classList.contains("vscode-light");
  place.style.colorScheme = dark ? "dark" : light ? "light" : "light dark";
  inks = null;
  if (!state.data) return;
  paintHeads();
  paintStage();
}
new MutationObserver(adoptTheme).observe(document.body, { attributes: true });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", adoptTheme);

/** Whether a request is pending. The displayed model cannot be changed until its response arrives. */
const isBusy = () => frame.classList.contains("busy");

function setBusy(on) {
  frame.classList.toggle("busy", on);
  frame.setAttribute("aria-busy", String(on));
}

function setMotion(on) {
  state.motion = on;
  frame.classList.toggle("still", !on);
  if (!on) pause();
}

const twoStacks = () => state.data.target !== null;
const task = () => state.data.model.task;
const attention = (kind, data = state.data) => data.attention.find((each) => each.kind === kind);
const layersOf = (kind, data = state.data) => attention(kind, data)?.weights.length ?? 0;
const stackWith = (kind) => (kind === "cross" ? "decoder" : kind);
const means = new WeakMap();

/** Return the attention weights [query][key] of one head, or the mean of all heads, in thousandths. */
function weights(kind, layer = layerSeen(kind), head = state.head, data = state.data) {
  const heads = attention(kind, data).weights[Math.min(layer, layersOf(kind, data) - 1)];
  if (head !== "mean" && head < heads.length) return heads[head];
  if (!means.has(heads)) {
    means.set(
      heads,
      heads[0].map((row, q) => row.map((_, k) => heads.reduce((sum, each) => sum + each[q][k], 0) / heads.length)),
    );
  }
  return means.get(heads);
}

/** Whether the causal mask and the sliding window let a query attend to a key. */
function sees(kind, query, key, data = state.data) {
  const [back, ahead] = attention(kind, data).reach.map((far) => far ?? Infinity);
  return query - key <= back && key - query <= ahead;
}

/** Return the columns of queries and keys, and `ahead`: 1 if a query is drawn at the next token, which it predicts. */
const columns = (kind) =>
  ({
    encoder: { from: "source", to: "source", ahead: 0 },
    cross: { from: "target", to: "source", ahead: 1 },
    decoder: twoStacks() ? { from: "target", to: "target", ahead: 1 } : { from: "source", to: "source", ahead: 1 },
  })[kind];

/** Return the tokens of a column; for a language model, including the token predicted after the last one. */
function tokens(column, data = state.data) {
  const list = data[column];
  const last = data.steps.at(-1);
  return task() === "generate" && column === "source"
    ? [...list, { text: last.text, special: false, open: true }]
    : list;
}

const answers = () => (twoStacks() ? "target" : "source"); // the column that shows the answer
const growing = () => ["translate", "generate"].includes(task());
const firstWritten = () =>
  task() === "generate" ? Math.max(0, state.data.steps.length - 1 - state.data.written) : 0;

/** Return the token whose attention is shown: under the pointer, clicked, or at the current step. */
function looking() {
  if (state.hover ?? state.pinned) return state.hover ?? state.pinned;
  const { token } = state.data.steps[state.step];
  return token === null ? null : { column: answers(), index: token };
}

/** Return the player's phases: the encoder's layers; then, for each token, the decoder's layers and the answer. */
function phases() {
  const { stacks } = state.data.model;
  const through = (stack, step) =>
    Array.from({ length: stacks[stack] ?? 0 }, (_, layer) => ({ stack, layer, step }));
  if (!growing()) return [...through("encoder", 0), { answer: true, step: 0 }];
  const list = through("encoder", 0);
  for (let step = firstWritten(); step < state.data.steps.length; step++)
    list.push(...through("decoder", step), { answer: true, step });
  return list;
}
