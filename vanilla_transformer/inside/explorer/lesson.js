// Live training of a small model.

const lesson = {
  options: { heads: 4, positions: true, warmup: true, mask: true, norm: "post" },
  frames: [],
  running: null,
  controls: null,
};

function stopTraining() {
  lesson.running?.stop();
  lesson.running = null;
}

async function startTraining() {
  stopTraining();
  lesson.frames = [];
  message.hidden = true;
  const frames = lesson.frames;
  const running = host.train({ ...lesson.options }, (frame) => {
    frames.push(frame);
    if (lesson.frames === frames && !parts.train.hidden) drawTrain();
  });
  lesson.running = running;
  drawTrain();
  try {
    await running.ended;
  } catch (error) {
    if (lesson.running === running) complain(error);
  }
  if (lesson.running === running) {
    lesson.running = null;
    drawTrain();
  }
}

const accuracy = (right) => (right ? percent(right) : "0 %");

/** Return a sentence about the state of training, and why it may fail. */
function moral() {
  const { positions, warmup, mask, norm } = lesson.options,
    last = lesson.frames.at(-1);
  if (!last) return "Training starts …";
  const learned = last.right > 0.9;
  if (!positions)
    return "Without positions, the model knows which digits there are, but not their order. It cannot reverse them.";
  if (!mask)
    return (
      "Without the causal mask, the decoder sees the digits that it has to predict, and copies them: the loss goes " +
      "to 0. In generation there is nothing to copy, and it fails."
    );
  if (learned)
    return (
      `Learned in ${last.step} steps. The squares have become anti-diagonals: the first digit written attends to ` +
      "the last digit read."
    );
  if (!warmup && lesson.running === null)
    return norm === "post"
      ? "With the full learning rate from the first step, post-norm does not converge. Try pre-norm, or the warm-up."
      : "Without the paper's warm-up, training converges worse.";
  if (lesson.running === null) return "Not learned in these steps.";
  return last.step < 60
    ? "The squares are even: attention is spread over all digits, and the model guesses."
    : "Attention becomes focused: watch the squares.";
}

/** Draw the controls, which are not redrawn with the pictures. */
function drawLessonControls() {
  const { options } = lesson;
  lesson.controls = [];
  const kept = (element, update) => {
    lesson.controls.push([element, update]);
    return element;
  };
  const set = (name, value) => {
    options[name] = value;
    startTraining();
  };
  const choices = (label, name, values) => {
    const pairs = values.map((value) => [value, String(value)]);
    const group = segments(label, pairs, (value) => set(name, value));
    group.querySelectorAll("button").forEach((each, i) =>
      kept(each, () => each.setAttribute("aria-pressed", String(options[name] === values[i]))),
    );
    return group;
  };
  const yes = (label, name) => toggle(label, options[name], (event) => set(name, event.target.checked));
  const stop = () => {
    stopTraining();
    drawTrain();
  };
  fill(
    parts.train,
    make("h2", {}, "A Transformer learns to reverse six digits"),
    note(
      "One encoder layer and one decoder layer, 64 wide, are trained on the server from scratch. Change a setting " +
        "to start again.",
    ),
    make(
      "div",
      { class: "switches" },
      choices("Heads", "heads", [1, 2, 4, 8]),
      choices("Norm", "norm", ["post", "pre"]),
      yes("Positions", "positions"),
      yes("Warm-up", "warmup"),
      yes("Causal mask", "mask"),
      kept(button("", () => (lesson.running ? stop() : startTraining()), { class: "go" }), (each) => {
        each.textContent = lesson.running ? "Stop" : "Train again";
      }),
    ),
    kept(make("p", { class: "caption" }), (caption) => {
      caption.textContent = moral();
    }),
    make("div", { class: "lesson" }, kept(make("div"), drawLessonCurves), kept(make("div"), drawSquares)),
    kept(
      table("The curves as a table", () =>
        grid(
          "Loss and accuracy by step",
          ["step", "loss", "accuracy"],
          lesson.frames.map((each) => [each.step, each.loss?.toFixed(3) ?? "–", accuracy(each.right)]),
        ),
      ),
      (details) => details.renew(),
    ),
    kept(table("The squares as tables", squareTables), (details) => details.renew()),
    makeRuns(),
  );
}

/** Draw loss and accuracy, and the digits that the model generates. */
function drawLessonCurves(element) {
  const { frames } = lesson,
    last = frames.at(-1),
    goal = last ? [...last.text].reverse() : [];
  const points = (name) => frames.filter((each) => each[name] !== null).map((each) => [each.step, each[name]]);
  fill(
    element,
    curves(
      [
        { name: "loss", color: "var(--orange)", points: points("loss"), least: 2.6, write: (loss) => loss.toFixed(3) },
        { name: "accuracy", color: "var(--blue)", points: points("right"), least: 1, write: accuracy },
      ],
      last?.steps ?? 500,
    ),
    last
      ? make(
          "p",
          { class: "digits" },
          last.text,
          " → ",
          [...last.written].map((digit, i) => make("span", { class: digit === goal[i] ? "right" : "wrong" }, digit)),
        )
      : "",
  );
}

function drawSquares(element) {
  const last = lesson.frames.at(-1);
  const edge = (name, text) =>
    make("div", { class: name, "aria-hidden": "true" }, [...text, "·"].map((digit) => make("span", {}, digit)));
  const squares = last?.attention.map((rows, head) => {
    const canvas = make("canvas", {
      role: "img",
      "aria-label": `Head ${head + 1}: each written digit attends to the digits read`,
    });
    paint(canvas, rows, "var(--purple)");
    const sides = [edge("read", last.text), edge("written", last.written.slice(0, rows.length - 1))];
    return make("figure", {}, sides, canvas, make("figcaption", { class: "note" }, `head ${head + 1}`));
  });
  fill(
    element,
    make("h3", {}, "Cross-attention: output digits (rows) attend to input digits (columns)"),
    make("div", { class: "squares" }, squares ?? ""),
  );
}

function squareTables() {
  const last = lesson.frames.at(-1);
  if (!last) return "";
  const ended = (text) => [...text, "end"];
  return last.attention.map((rows, head) =>
    grid(
      `Head ${head + 1} at step ${last.step}: rows attend to columns`,
      ["", ...ended(last.text)],
      rows.map((row, i) => [ended(last.written)[i], ...row.map(share)]),
    ),
  );
}

function drawTrain() {
  if (!lesson.controls) drawLessonControls();
  for (const [element, update] of lesson.controls) update(element);
  drawTour();
}
