// Experiments: each asks for a prediction, then runs the changed model and compares it with the original.

// Sentences for models that translate from English. Other models use the text shown, and its words in reverse order.
const SENTENCE = "We want to learn a new language.";
const SAME_WORDS = ["The man eats a cheese.", "The cheese eats a man."];
const TEMPERATURE = 2;

const isEnglish = () => host.models[state.request.model].name.startsWith("en-");
const experimentText = () => (isEnglish() ? [SENTENCE] : [state.request.text]);
const firstStack = ({ model }) => Object.keys(model.stacks)[0];
/** Return over how many tokens a query spreads its attention, on average over all heads and queries. */
const spread = ({ heads }) => heads.reduce((sum, { tokens }) => sum + tokens, 0) / heads.length;
const fateOf = ([{ own, changed, kept }]) => fate(own, changed, kept);

/** Return the index of the word whose probability changes most, or of the token if there are no words. */
function mostChanged({ own, kept }) {
  if (own.model.regression) return 0;
  const change = (i) => Math.abs(Math.log(Math.max(own.steps[i].p, 1e-9) / Math.max(kept[i].p, 1e-9)));
  const indices = answerSteps(own, [...own.steps.keys()]);
  const words = indices.filter((i) => /[\p{L}\p{N}]/u.test(own.steps[i].text) && !/^<.*>$/.test(own.steps[i].text));
  return (words.length ? words : indices).reduce((most, i) => (change(i) > change(most) ? i : most));
}

/**
 * The experiments. `fits` says whether a model can run one (default: yes). `texts` returns the texts to run, and
 * `changes` the interventions. `outcome` gets {request, changes, own, changed, kept} for each text and returns the
 * index of the right choice, and an explanation; `kept` are the original steps with the changed model's probabilities.
 */
const EXPERIMENTS = {
  positions: {
    title: "Remove the positions",
    texts() {
      if (task() !== "translate") return experimentText();
      const { text } = state.request;
      return isEnglish() ? SAME_WORDS : [text, text.split(" ").toReversed().join(" ")];
    },
    changes: (data) => ({ positions_off: [firstStack(data)] }),
    question: (data) =>
      `Without positional encodings, the ${firstStack(data)} sees which tokens there are, but not their order.`,
    choices: () =>
      task() === "translate"
        ? ["Both translations stay the same", "Both sentences get the same translation", "Both translations change"]
        : FATES,
    outcome(runs) {
      const [one, other] = runs;
      if (!other && fateOf(runs)) return [fateOf(runs), "The model uses the order of the tokens."];
      if (!other) return [0, "For this text, the order of the tokens does not matter."];
      if (one.changed.answer === other.changed.answer)
        return [1, "Both sentences consist of the same tokens. Without positions, attention cannot tell them apart."];
      const isKept = runs.every(({ own, changed }) => own.answer === changed.answer);
      return [isKept ? 0 : 2, "The sentences do not consist of the same tokens, so the model can tell them apart."];
    },
  },
  mask: {
    title: "Remove the causal mask",
    fits: () => attention("decoder")?.reach[1] === 0,
    changes: () => ({ causal_off: true }),
    question: () =>
      "The decoder reads its whole answer again. Without the mask, each position also sees the later tokens, " +
      "including the one that it has to predict. How probable is the answer now?",
    choices: () => ["More probable: the model can look ahead", "Less probable", "About equally probable"],
    outcome([{ own, kept }]) {
      const [before, after] = [own.steps, kept].map((steps) => logProbability(answerSteps(own, steps)));
      const why = "The mask is for training: the model has to predict the next token instead of copying it.";
      if (after - before > Math.log(1.5)) return [0, `The model has read what comes next. ${why}`];
      if (before - after > Math.log(1.5))
        return [1, `In training, the mask hid later tokens. The model has never seen any, so they disturb it. ${why}`];
      return [2, `Later tokens hardly affect this model. ${why}`];
    },
  },
  head: {
    title: "Switch off one head",
    async changes(_, request) {
      const [{ kind, layer, head }] = await host.effects(request);
      return { heads_off: [[kind, layer, head]] };
    },
    question: ({ heads }) =>
      `The model has ${plural(heads.length, "head")}. Only one is switched off: the one with the largest effect.`,
    outcome(runs) {
      const [[kind, layer, head]] = runs[0].changes.heads_off;
      const name = `It was head ${head + 1} of ${KINDS[kind].name} in layer ${layer + 1}.`;
      const why = fateOf(runs) === 2 ? "No other head replaces it here." : "The other heads replace most of it.";
      return [fateOf(runs), `${name} ${why}`];
    },
  },
  residual: {
    title: "Cut a residual connection",
    changes: (data) => ({ residuals_off: [[firstStack(data), 0, "self-attention"]] }),
    question: (data) =>
      "A residual connection adds the input of a sub-layer to its output. One connection is cut: around " +
      `self-attention in layer 1 of the ${firstStack(data)}.`,
    outcome: (runs) => [
      fateOf(runs),
      fateOf(runs)
        ? "Each token now has only what attention collected. Its own embedding does not reach the later layers."
        : "Here, attention passes on enough of each token's own embedding.",
    ],
  },
  scaling: {
    title: "Skip the division by √d_k",
    changes: () => ({ scaling_off: true }),
    question: (data) =>
      `Attention divides its scores by √d_k = ${Math.sqrt(data.model.d_k).toFixed(1)} before the softmax. A query ` +
      `spreads its attention over ${spread(data).toFixed(1)} tokens on average. And without the division?`,
    choices: () => ["Over fewer tokens", "Over more tokens", "Over the same number of tokens"],
    outcome([{ own, changed }]) {
      const [before, after] = [own, changed].map(spread);
      const told = `It spreads over ${after.toFixed(1)} instead of ${before.toFixed(1)} tokens.`;
      if (Math.abs(after / before - 1) < 0.03) return [2, told];
      if (after > before) return [1, told];
      const why = "Larger scores bring the softmax close to a choice of one token, with hardly any gradient.";
      return [0, `${told} ${why}`];
    },
  },
  temperature: {
    title: `Set the temperature to ${TEMPERATURE}`,
    fits: ({ model }) => !model.regression,
    changes: () => ({ temperature: TEMPERATURE }),
    question: () =>
      `The logits are divided by ${TEMPERATURE} before the softmax. What happens to the candidates?`,
    choices: () => ["The candidates change places", "They keep their order and get closer", "Nothing changes"],
    outcome([run]) {
      const i = mostChanged(run);
      const [before, after] = [run.own.steps[i].top, run.kept[i].top];
      const told = `“${visible(before[0].text)}” goes from ${percent(before[0].p)} to ${percent(after[0].p)}.`;
      if (before[0].id !== after[0].id) return [0, told];
      if (Math.abs(before[0].p - after[0].p) < 0.001) return [2, told];
      const why =
        "All logits are divided by the same number, so their order cannot change. Sampling now picks improbable " +
        "candidates more often. A temperature below 1 has the opposite effect.";
      return [1, `${told} ${why}`];
    },
  },
};

/** Return the experiments that the model can run, as [name, experiment]. */
const experimentsHere = () => Object.entries(EXPERIMENTS).filter(([, { fits }]) => !fits || fits(state.own));

let lab = null; // the open experiment: {name, request, texts, choice, runs}

/** Open an experiment, "switches" (all single switches), or null for none. */
function openExperiment(name) {
  state.experiment = name;
  placeTour();
  show("experiments", "broken");
  if (state.tour) show("stage");
  remember();
}

/** Run the original and the changed model on each text of the open experiment. */
async function runExperiment(choice) {
  const mine = lab;
  mine.choice = choice;
  message.hidden = true;
  show("experiments");
  try {
    const runs = [];
    for (const text of mine.texts) {
      const request = { ...mine.request, text, target: null };
      const own = await host.explore(request);
      const changes = { ...unchanged(), ...(await EXPERIMENTS[mine.name].changes(own, request)) };
      const { changed, same: kept } = await host.changed({ ...request, changes });
      runs.push({ request, changes, own, changed, kept });
    }
    mine.runs = runs;
  } catch (error) {
    mine.choice = null;
    complain(error);
  }
  if (lab === mine) show("experiments");
}

function drawExperiments() {
  parts.experiments.hidden = !host;
  if (!host) return;
  const here = experimentsHere();
  if (state.experiment !== "switches" && !here.some(([name]) => name === state.experiment)) state.experiment = null;
  const { experiment: name, request } = state;
  if (!EXPERIMENTS[name]) lab = null;
  else if (lab?.name !== name || lab.request !== request)
    lab = { name, request, texts: (EXPERIMENTS[name].texts ?? experimentText)(), choice: null, runs: null };
  const opener = (each, title) =>
    button(title, () => openExperiment(name === each ? null : each), { "aria-expanded": String(name === each) });
  fill(
    parts.experiments,
    make("h2", {}, "Experiments"),
    note("Predict what happens to the answer, then see it."),
    make(
      "p",
      { class: "actions" },
      here.map(([each, { title }]) => opener(each, title)),
      opener("switches", "All switches"),
    ),
    lab && make("article", { class: "lab", "aria-busy": String(lab.choice !== null && !lab.runs) }, drawLab()),
  );
}

/** Draw the open experiment: its question, and its outcome once a prediction has been made. */
function drawLab() {
  const { title, question, choices = () => FATES, outcome } = EXPERIMENTS[lab.name];
  const { texts, choice, runs } = lab;
  const [right, why] = runs ? outcome(runs) : [];
  const label = { class: "round", "aria-label": "Close the experiment" };
  const close = button(icon("close"), () => openExperiment(null), label);
  const option = (text, i) =>
    button(text, () => runExperiment(i), {
      class: runs && (i === right ? "right" : i === choice ? "wrong" : null),
      disabled: choice !== null,
      "aria-pressed": String(i === choice),
    });
  return [
    make("header", {}, make("h3", {}, title), close),
    make("p", { class: "texts", lang: "und", dir: "auto" }, texts.map((text) => make("span", {}, text))),
    make("p", {}, question(runs?.[0].own ?? state.own)),
    make("p", { class: "predictions", role: "group", "aria-label": "Your prediction" }, choices().map(option)),
    choice !== null && !runs && note("The changed model runs …"),
    runs && drawOutcome(runs, choice === right, choices()[right], why),
  ];
}

function drawOutcome(runs, isRight, truth, why) {
  const again = () => {
    Object.assign(lab, { choice: null, runs: null });
    show("experiments");
  };
  const [{ request, changes }] = runs;
  const model = host.models[request.model].name;
  const inside = addressOf({ ...request, model, changes, experiment: "switches" });
  return [
    make(
      "p",
      { class: "verdict", "aria-live": "polite" },
      make("b", {}, isRight ? "Your prediction was right. " : `${truth}. `),
      why,
    ),
    runs.map(comparison),
    make(
      "p",
      { class: "actions" },
      button("Predict again", again),
      make("a", { href: inside }, "Look inside the changed model"),
    ),
  ];
}

/** Draw the answer for a text, and the candidates at the step that changes most, before and after the change. */
function comparison(run) {
  const { own, changed, kept } = run;
  const i = mostChanged(run);
  const { name, chosen, text } = own.steps[i];
  const { regression } = own.model;
  const side = (title, which, { top, p }) =>
    make(
      "div",
      { class: "side" },
      make("h3", {}, title),
      answerLine(marked(which, [own, changed])),
      bars(withChosen(top.slice(0, 4), chosen, text, p), chosen, regression),
    );
  return [
    make("div", { class: "sides" }, side("Before", 0, own.steps[i]), side("After", 1, kept[i])),
    !regression && note(`The bars show ${name}. The probability of the original answer goes ${shift(own, kept)}.`),
  ];
}
