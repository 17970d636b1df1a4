// The player of the animation: layer by layer, token by token.

let timer = null;

function pause() {
  clearTimeout(timer);
  if (state.playing) {
    state.playing = false;
    show("player");
  }
}

function play() {
  const last = phases().length - 1;
  if (state.phase >= last) goTo(0);
  state.playing = true;
  const next = () => {
    if (state.phase >= last) return finish();
    goTo(state.phase + 1);
    const { stack, answer } = phases()[state.phase];
    timer = setTimeout(next, !place.isConnected ? 1e9 : answer ? 620 : stack === "encoder" ? 650 : 320);
  };
  timer = setTimeout(next, 500);
  show("player");
}

function finish() {
  pause();
  state.phase = phases().length - 1;
  state.revealed = Infinity;
  show("player", "flowing", "mapping", "output");
}

function goTo(number) {
  const { stack, layer, step, answer } = phases()[number];
  Object.assign(state, { phase: number, step, hover: null, pinned: null });
  if (layer !== undefined) state.layer = layer;
  if (stack === "encoder" && growing()) state.revealed = firstWritten();
  else if (growing()) state.revealed = step + (answer ? 1 : 0);
  else state.revealed = answer ? Infinity : 0;
  show("player", "flowing", "mapping", "output");
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
    return `The encoder reads, ${more}: every token attends to all tokens, and adds a weighted mean of their values.`;
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
const round = (label, text, click) => button(text, click, { class: "round", "aria-label": label, title: label });
const step = (by) => () => {
  pause();
  goTo(Math.min(phases().length - 1, Math.max(0, state.phase + by)));
};
const controls = {
  back: round("One step back", "‹", step(-1)),
  play: round("Play", "▶", () => (state.playing ? pause() : play())),
  on: round("One step forward", "›", step(1)),
  all: round("Skip to the end", "⤓", () => finish()),
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
    fill(controls.play, state.playing ? "❚❚" : "▶");
    controls.play.title = label;
    controls.play.setAttribute("aria-label", label);
  }
  told.textContent = caption();
  if (!state.playing) live.textContent = told.textContent;
}
