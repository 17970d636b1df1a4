// The film: the forward pass layer by layer, token by token.

const PHASE = 1000; // length of a phase at normal speed, in milliseconds

function pause() {
  if (!state.playing) return;
  state.playing = false;
  state.progress = 1;
  show("player", "staging");
  remember();
}

let films = 0; // number of times that the film was started

function play() {
  const number = ++films,
    last = phases().length - 1;
  if (state.phase >= last) goTo(0, 0);
  state.playing = true;
  let before = performance.now(),
    updated = before;
  const tick = (now) => {
    if (!state.playing || number !== films) return;
    requestAnimationFrame(tick);
    const passed = ((now - before) * state.speed) / PHASE;
    before = now;
    const { stack, layer } = phases()[state.phase];
    if (!place.isConnected || document.hidden || (stack && isLoading(stack, layer))) return;
    state.progress += passed;
    if (state.progress < 1) {
      if (now - updated < 120) return paintStage();
      updated = now;
      return updateStage();
    }
    if (state.phase >= last) return finish();
    goTo(state.phase + 1, 0);
    remember();
  };
  requestAnimationFrame(tick);
  show("player");
}

/** Show the whole forward pass, at the token that tells most. */
function finish() {
  const wasPlaying = state.playing;
  state.playing = false;
  Object.assign(state, { phase: phases().length - 1, revealed: Infinity, progress: 1 });
  if (wasPlaying) state.step = tellingStep();
  show("player", "staging", "output", "lensing");
  remember();
}

/**
 * Return the step to open on: the written word with the most focused cross-attention, the token of a forced output
 * that surprised the model most, the first tagged token, or the first written word.
 */
function tellingStep() {
  const { steps } = state.data;
  const isWord = ({ text }) => /\p{L}/u.test(text) && !/^<.*>$/.test(text);
  const candidates = steps.map((step, i) => [step, i]).filter(([step, i]) => isWord(step) && i >= firstWritten());
  if (task() === "tag") return Math.max(0, steps.findIndex(({ text }) => text !== "O"));
  if (!growing()) return 0;
  if (!candidates.length) return Math.min(steps.length - 1, firstWritten());
  const best = (value) => candidates.reduce((a, b) => (value(b[0]) > value(a[0]) ? b : a))[1];
  if (typeof state.request?.target === "string") return best((step) => -step.p);
  if (!layersOf("cross")) return candidates[0][1];
  const rows = weights("cross", layersOf("cross") - 1, "mean");
  return best(({ query }) => Math.max(...rows[query].filter((_, key) => !state.data.source[key].special)));
}

/** Go to a phase; in the film, it starts at `progress` 0. */
function goTo(number, progress = 1) {
  const { stack, layer, step, answer } = phases()[number];
  const before = state.step,
    softmax = (phase) => Boolean(phases()[phase].answer);
  const isNew = step !== before || answer || softmax(state.phase);
  Object.assign(state, { phase: number, progress, step, hover: null, pinned: null, cell: null });
  scene.popover.hidden = true;
  if (stack) showLayer(stack, layer);
  const next = phases()[number + 1];
  if (next?.stack) layerSteps(next.stack, next.layer); // compute it ahead
  if (stack === "encoder" && growing()) state.revealed = firstWritten();
  else if (growing()) state.revealed = step + (answer ? 1 : 0);
  else state.revealed = answer ? Infinity : 0;
  show("player", "staging", ...(isNew ? ["output", "lensing"] : []));
}

/** Return a sentence about the current phase. */
function caption() {
  const { stack, layer, step, answer } = phases()[state.phase];
  const { steps, model } = state.data;
  if (task() === "generate" && !state.data.written) {
    const full = state.data.source.length >= (model.room ?? Infinity);
    return `Nothing is added${full ? `: the text fills all ${plural(model.room, "position")} that the model has learned` : ""}. The prediction shows what would come next.`;
  }
  if (state.revealed === Infinity && !state.playing)
    return `${wordsFor(model)[2]}: ${answerOf(state.data)}`;
  const written = growing() ? steps[step] : null;
  const more = `layer ${layer + 1} of ${model.stacks[stack]}`;
  if (stack === "encoder")
    return `In the encoder, ${more}, every token attends to all tokens and adds a weighted mean of their values.`;
  if (stack === "decoder") {
    const at = twoStacks() ? "the tokens written so far and to the text" : "the tokens before it";
    return `To write ${written.name}, ${more} attends to ${at}.`;
  }
  if (!written) return `${wordsFor(model)[2]}: ${answerOf(state.data)}`;
  return `The softmax gives each of ${plural(written.options, "token")} a probability. “${visible(written.text)}” has ${percent(written.p)} and is written.`;
}

const scrubber = make("input", {
  type: "range",
  min: 0,
  "aria-label": "Step of the forward pass",
  input: () => {
    pause();
    goTo(Number(scrubber.value));
  },
});
const round = (label, name, click) => button(icon(name), click, { class: "round", "aria-label": label, title: label });
const step = (by) => () => {
  pause();
  goTo(Math.min(phases().length - 1, Math.max(0, state.phase + by)));
  remember();
};
const SPEEDS = [
  [0.5, "½×"],
  [1, "1×"],
  [2, "2×"],
];
const controls = {
  back: round("One step back", "back", step(-1)),
  play: round("Play", "play", () => (state.playing ? pause() : play())),
  on: round("One step forward", "on", step(1)),
  all: round("Skip to the end", "end", () => finish()),
  speed: segments("Speed", SPEEDS, (speed) => {
    state.speed = speed;
    drawPlayer();
  }),
  motion: make("input", {
    type: "checkbox",
    checked: state.motion,
    change: () => setMotion(controls.motion.checked),
  }),
};
const told = make("p", { class: "caption" });
parts.player.append(
  make(
    "div",
    { class: "controls" },
    controls.back,
    controls.play,
    controls.on,
    scrubber,
    controls.all,
    controls.speed,
    make("label", { class: "switch" }, controls.motion, "Motion"),
  ),
  told,
);

function drawPlayer() {
  const last = phases().length - 1,
    focused = root.activeElement;
  scrubber.max = last;
  scrubber.value = state.phase;
  scrubber.style.setProperty("--done", `${(100 * state.phase) / Math.max(1, last)}%`);
  controls.back.disabled = state.phase === 0;
  controls.on.disabled = state.phase === last;
  controls.all.disabled = state.revealed === Infinity && !state.playing;
  if (focused?.disabled) controls.play.focus({ preventScroll: true });
  const label = state.playing ? "Pause" : "Play";
  if (controls.play.title !== label) {
    fill(controls.play, icon(state.playing ? "pause" : "play"));
    controls.play.title = label;
    controls.play.setAttribute("aria-label", label);
  }
  controls.speed.querySelectorAll("button").forEach((each, i) =>
    each.setAttribute("aria-pressed", String(state.speed === SPEEDS[i][0])),
  );
  told.textContent = caption();
  if (!state.playing) live.textContent = told.textContent;
}
