// Curves of any training run, from its trainer_state.json.

const TIMES = /_runtime$|_per_second$|^total_flos$|^train_|_jit_compilation_time$/; // logged values to ignore
const EVERY = 5000; // milliseconds between requests for a run in progress

/** Return the curves of a run: title -> list of series. */
function curvesOf(history) {
  const names = [...new Set(history.flatMap(Object.keys))].filter(
    (name) =>
      !["step", "epoch"].includes(name) &&
      !TIMES.test(name) &&
      history.some((entry) => typeof entry[name] === "number"),
  );
  const series = (name, color, title = capital(name.replaceAll("_", " "))) => ({
    name: title,
    color,
    points: history.filter((entry) => Number.isFinite(entry[name])).map((entry) => [entry.step, entry[name]]),
    write: number,
  });
  const found = new Map();
  const losses = [
    names.includes("loss") && series("loss", "var(--orange)", "training"),
    names.includes("eval_loss") && series("eval_loss", "var(--purple)", "evaluation"),
  ].filter(Boolean);
  if (losses.length) found.set("Loss", losses.map((each) => ({ ...each, shared: true })));
  for (const name of names.filter((each) => !["loss", "eval_loss"].includes(each))) {
    const title = capital(name.replace(/^eval_/, "").replaceAll("_", " "));
    found.set(title, [series(name, name.startsWith("eval_") ? "var(--blue)" : "var(--green)", title)]);
  }
  return found;
}

/** Parse the text of a trainer_state.json. */
function readRun(text, name) {
  let found;
  try {
    found = JSON.parse(text.replace(/:\s*(NaN|-?Infinity)\b/g, ": null")); // Python writes NaN, JSON forbids it
  } catch {
    throw new Error(`${name} is not JSON. Open the trainer_state.json of a checkpoint.`);
  }
  if (!Array.isArray(found?.log_history) || !found.log_history.some((entry) => typeof entry?.step === "number"))
    throw new Error(`${name} has no log_history. Open the trainer_state.json of a checkpoint.`);
  return found;
}

function makeRuns() {
  const picture = make("div");
  let shown = null, // {name, run, from: index of the run on the server, or null}
    curve = null,
    timer = null;

  function put(name, run, from = null) {
    shown = { name, run, from };
    message.hidden = true;
    drawRun();
    clearTimeout(timer);
    if (from !== null && run.global_step < run.max_steps) timer = setTimeout(() => follow(from), EVERY);
  }

  /** Update the curves of a run in progress while they are visible. */
  async function follow(from) {
    if (shown?.from !== from) return;
    if (parts.train.hidden || !place.isConnected) {
      timer = setTimeout(() => follow(from), EVERY);
      return;
    }
    await open(from);
  }

  async function open(from) {
    clearTimeout(timer);
    try {
      put(host.runs[from], await host.run(from), from);
    } catch (error) {
      complain(error);
      if (shown?.from === from) timer = setTimeout(() => follow(from), EVERY); // the file may still be incomplete: try again
    }
  }

  async function read(file) {
    try {
      put(file.name, readRun(await file.text(), file.name));
    } catch (error) {
      complain(error);
    }
  }

  function drawRun() {
    const { name, run } = shown,
      history = run.log_history.filter((entry) => typeof entry?.step === "number"),
      all = curvesOf(history);
    const steps = Math.max(run.max_steps ?? 0, ...history.map(({ step }) => step)),
      done = run.global_step ?? history.at(-1).step;
    if (!all.has(curve)) curve = all.keys().next().value;
    const opened = picture.querySelector("details")?.open;
    const columnsShown = [...new Set(history.flatMap(Object.keys))].filter((each) => !TIMES.test(each));
    const details = table("The run as a table", () =>
      grid(
        `Log of ${name}`,
        ["step", ...columnsShown.filter((each) => each !== "step")],
        history.map((entry) => [
          entry.step,
          ...columnsShown
            .filter((each) => each !== "step")
            .map((each) => (typeof entry[each] === "number" ? number(entry[each]) : "–")),
        ]),
      ),
    );
    fill(
      picture,
      make(
        "p",
        { class: "caption" },
        `${name}: step ${done.toLocaleString("en")}${done < steps ? ` of ${steps.toLocaleString("en")}` : ", finished"}${run.epoch ? `, epoch ${number(run.epoch)}` : ""}.`,
      ),
      segments(
        "Curve",
        [...all.keys()].map((title) => [title, title]),
        (title) => {
          curve = title;
          drawRun();
        },
        (title) => ({ "aria-pressed": String(title === curve) }),
      ),
      make("div", { class: "run" }, curve ? curves(all.get(curve), steps) : ""),
      details,
    );
    details.open = Boolean(opened);
  }

  const input = make("input", {
    type: "file",
    accept: ".json,application/json",
    class: "unseen",
    change: () => {
      if (input.files[0]) read(input.files[0]);
      input.value = "";
    },
  });
  return make(
    "div",
    {
      class: "runs",
      dragover: (event) => event.preventDefault(),
      drop: (event) => {
        event.preventDefault();
        if (event.dataTransfer.files[0]) read(event.dataTransfer.files[0]);
      },
    },
    make("h2", {}, "Your training runs"),
    note(
      "Every checkpoint of a training run has a trainer_state.json. Open one, or drop it here. It is read in your browser and not uploaded.",
    ),
    make(
      "p",
      { class: "actions" },
      make("label", { class: "file" }, input, "Open trainer_state.json"),
      host.runs.map((name, i) => button(name, () => open(i))),
    ),
    picture,
  );
}
