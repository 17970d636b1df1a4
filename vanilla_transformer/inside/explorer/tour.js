// The tour: twelve stops through the explorer, with a presentation mode for large screens.

const LOADING = "The numbers are being computed …";
const selfKind = () => Object.keys(state.data.model.stacks)[0]; // the kind of self-attention in the first stack
const queryText = (kind, query) => `“${visible(lanesOf(stackWith(kind))[query].text)}”`;
const keyText = (kind, key) => `“${visible(tokens(columns(kind).to)[key].text)}”`;
const lanePin = (stack, lane) => ({ column: columnOf(stack), index: lane + aheadOf(stack) }); // as in state.pinned
const middleLane = () => Math.floor(lanesOf("decoder").length / 2);

/** Whether a token of a list is the first one of a word. */
const beginsWord = (list, i) =>
  /^ ?[\p{L}\p{N}]/u.test(list[i].text) && (list[i].text.startsWith(" ") || i === 0 || list[i - 1].special);

/**
 * Return the attention weight with the highest value, by default the largest weight, among those from one word to
 * another: {layer, head, query, key, weight}. `value` gets a weight and its row.
 */
function strongest(kind, value = (weight) => weight) {
  const [queries, keys] = [lanesOf(stackWith(kind)), tokens(columns(kind).to)];
  const found = attention(kind).weights.flatMap((heads, layer) =>
    heads.flatMap((rows, head) =>
      rows.flatMap((row, query) =>
        row.map((weight, key) => ({ layer, head, query, key, weight, value: value(weight, row) })),
      ),
    ),
  );
  const isPair = ({ query, key }) =>
    beginsWord(queries, query) && beginsWord(keys, key) && (kind === "cross" || query !== key);
  const pairs = found.filter(isPair);
  return (pairs.length ? pairs : found).reduce((best, each) => (each.value > best.value ? each : best));
}

/** Return what a weight would be if the scores of its row had not been divided by √d_k. */
function undivided(weight, row) {
  // softmax(s) is proportional to softmax(s / √d_k) to the power √d_k
  const power = (each) => (each / 1000) ** Math.sqrt(state.data.model.d_k);
  return (1000 * power(weight)) / total(row.map(power));
}
/** Return the attention weight that changes most without the division by √d_k; `value` is the change. */
const sharpened = () => strongest(selfKind(), (weight, row) => undivided(weight, row) - weight);

const lengthOf = (row) => Math.hypot(...row);
const cosine = (one, other) =>
  one.reduce((sum, value, i) => sum + value * other[i], 0) / (lengthOf(one) * lengthOf(other));
const average = (numbers) => numbers.reduce((sum, each) => sum + each, 0) / numbers.length;

/** Describe an attention weight in a sentence. */
const tellWeight = (kind, { layer, head, query, key, weight }) =>
  `In layer ${layer + 1}, head ${head + 1}, ${queryText(kind, query)} gives ${share(weight)} of its attention to ` +
  `${keyText(kind, key)}.`;

/**
 * The stops. `fits` says whether a model has the mechanism (default: yes). `at` returns the state to set, with the
 * layer of both stacks. `see`, `act`
 * and `notice` return what is shown, what to do, and what to notice in the model's own numbers. In presentation mode,
 * only the part `shows` is visible. There and on narrow screens, the stage has only the sub-layer `focus`.
 */
const STOPS = {
  token: {
    title: "Token",
    at: () => ({ layer: 0 }),
    focus: () => [selfKind(), "embedding"],
    see: () =>
      "A model does not read letters. The tokenizer splits the text into tokens: words, and pieces of rare words. " +
      "Each row of the stage is one token.",
    act: () => "Point at a token: its row is marked. Then send a text with a rare name, and see how it is split.",
    notice() {
      const { source } = state.data;
      const piece = source.find(({ text, special }, i) => !special && /^\p{L}/u.test(text) && !beginsWord(source, i));
      const special = [...new Set(source.filter((token) => token.special).map(({ text }) => text))];
      const marks = special.length ? `, including special tokens (${special.join(", ")})` : "";
      const words = piece ? `“${piece.text}” is a piece of a word.` : "Every word is one token.";
      return `The model reads ${plural(source.length, "token")}${marks}. ${words}`;
    },
  },
  position: {
    title: "Position",
    at: () => ({ layer: 0, card: [selfKind(), 0, "embedding", "positions"] }),
    focus: () => [selfKind(), "embedding"],
    see: () =>
      "Attention treats the text as a set: it would give the same result for the tokens in another order. So the " +
      "model adds a vector to each embedding that depends only on the position.",
    act: () => ["Predict ", opening("positions", "what happens without positions"), "."],
    notice() {
      const rows = stepOf(selfKind(), 0, "embedding", "positions")?.values;
      if (!rows) return LOADING;
      const last = rows.length - 1;
      if (last < 2) return `The position vector has ${plural(rows[0].length, "number")}, like the embedding.`;
      const [near, far] = [1, last].map((i) => cosine(rows[0], rows[i]).toFixed(2));
      const others = `those of 1 and ${last + 1} of ${far}`;
      return `The vectors of positions 1 and 2 have a cosine similarity of ${near}, ${others}.`;
    },
  },
  "query-and-key": {
    title: "Query and key",
    at() {
      const { layer, head, query, key } = strongest(selfKind());
      const [kinds, pinned] = [new Set([selfKind()]), lanePin(selfKind(), query)];
      return { layer, head, kinds, pinned, cell: [selfKind(), query, key] };
    },
    focus: () => [selfKind(), "self-attention"],
    see: () =>
      "Each token has a query, which says what it looks for, and a key, which says what it offers. Query times key, " +
      `summed over ${state.data.model.d_k} numbers, is a score. The softmax turns the scores of a row into weights.`,
    act: () => "Point at other cells of the matrix A, and compare q and k.",
    notice() {
      return tellWeight(selfKind(), strongest(selfKind()));
    },
  },
  "square-root": {
    title: "Why the square root",
    at() {
      const { layer, head, query } = sharpened();
      const card = [selfKind(), layer, "self-attention", "scaled scores"];
      return { layer, head, kinds: new Set([selfKind()]), pinned: lanePin(selfKind(), query), card };
    },
    focus: () => [selfKind(), "self-attention"],
    see: () => {
      const { d_k } = state.data.model;
      return (
        `A score is a sum of d_k = ${d_k} products. The more products, the larger the scores, and the softmax of ` +
        "large scores puts nearly all weight on one token. So each score is divided by √d_k = " +
        `${Math.sqrt(d_k).toFixed(1)}.`
      );
    },
    act: () => ["Predict ", opening("scaling", "what happens without the division"), "."],
    notice() {
      const found = sharpened();
      return `${tellWeight(selfKind(), found)} Without the division it would be ${share(found.weight + found.value)}.`;
    },
  },
  heads: {
    title: "Heads",
    shows: "heads",
    at: () => ({ kinds: new Set([selfKind()]), layer: 0, head: 0 }),
    see: () => {
      const { heads, d_k } = state.data.model;
      return (
        `Each layer has ${plural(heads, "head")} with queries, keys and values of their own, ${d_k} numbers wide. ` +
        "So each head can look for something else at the same time."
      );
    },
    act: () => "Click some heads. A square shows what each token (row) attends to (column).",
    notice() {
      const heads = state.data.heads.toSorted((a, b) => a.tokens - b.tokens);
      const [narrow, broad] = [heads[0], heads.at(-1)].map(
        ({ kind, layer, head, tokens: count }) =>
          `head ${head + 1} of ${KINDS[kind].name} in layer ${layer + 1} attends to ${count.toFixed(1)} tokens`,
      );
      return `On average, ${narrow}, and ${broad}.`;
    },
  },
  residual: {
    title: "Residual connection and norm",
    at: () => ({ layer: 0, card: [selfKind(), 0, "self-attention", "residual"] }),
    focus: () => [selfKind(), "self-attention"],
    see: () =>
      "A sub-layer does not replace its input: its output is added to it. This residual connection is the line " +
      `below the rows. Layer normalisation ${state.data.model.norm === "pre" ? "before" : "after"} each sub-layer ` +
      "keeps the vectors at one scale.",
    act: () => ["Predict ", opening("residual", "what happens without one of these connections"), "."],
    notice() {
      const input = stepOf(selfKind(), 0, "embedding", "layer input"),
        output = stepOf(selfKind(), 0, "self-attention", "output projection");
      if (!input || !output) return LOADING;
      const [before, added] = [input, output].map(({ values }) => average(values.map(lengthOf)));
      const start = `In layer 1, the vector of a token has an average length of ${before.toFixed(1)}.`;
      return `${start} Attention adds a vector of length ${added.toFixed(1)}.`;
    },
  },
  "feed-forward": {
    title: "Feed-forward",
    at: () => ({ layer: 0, card: [selfKind(), 0, "feed-forward", "activation"] }),
    focus: () => [selfKind(), "feed-forward"],
    see: () => {
      const { d_model, d_ff } = state.data.model;
      return (
        `The feed-forward network works on each token alone. It maps ${d_model} numbers to ` +
        `${d_ff.toLocaleString("en")}, sets negative numbers to 0 (ReLU), and maps back to ${d_model}.`
      );
    },
    act: () => "Click another token, and compare which of the numbers are not 0.",
    notice() {
      const rows = stepOf(selfKind(), 0, "feed-forward", "activation")?.values;
      if (!rows) return LOADING;
      const zeros = average(rows.map((row) => average([...row].map((value) => Number(value === 0)))));
      return `In layer 1, ${percent(zeros)} of these numbers are 0 after the ReLU.`;
    },
  },
  mask: {
    title: "Mask",
    fits: () => attention("decoder")?.reach[1] === 0,
    at() {
      const card = ["decoder", 0, "self-attention", "masked scores"];
      return { layer: 0, kinds: new Set(["decoder"]), pinned: lanePin("decoder", middleLane()), card };
    },
    focus: () => ["decoder", "self-attention"],
    see: () =>
      "A decoder writes from left to right. In training it reads the whole answer at once, so a mask hides the " +
      "later tokens: their scores become −∞, and their weights 0.",
    act: () => ["Predict ", opening("mask", "what happens without the mask"), "."],
    notice() {
      const token = middleLane() + 1;
      const seen = `token ${token}, sees ${plural(token, "token")} of ${lanesOf("decoder").length}`;
      return `The matrix is empty above its diagonal: ${queryText("decoder", token - 1)}, ${seen}.`;
    },
  },
  "cross-attention": {
    title: "Cross-attention",
    fits: () => Boolean(attention("cross")),
    at() {
      const { layer, head, query, key } = strongest("cross");
      return { layer, head, step: query, kinds: new Set(["cross"]), cell: ["cross", query, key] };
    },
    focus: () => ["decoder", "cross-attention"],
    see: () =>
      "Cross-attention connects the two languages. The queries come from the answer written so far, the keys and " +
      "values from the encoder's output for the text.",
    act: () => "Click another token of the answer, and see which token of the text it attends to.",
    notice() {
      const found = strongest("cross");
      const next = visible(state.data.steps[found.query].text);
      return `${tellWeight("cross", found)} The model writes “${next}” next.`;
    },
  },
  softmax: {
    title: "Softmax and temperature",
    fits: () => !state.data.model.regression,
    shows: "output",
    at: () => ({ step: tellingStep() }),
    see: () =>
      "At the end there is a score, a logit, for each candidate. The softmax turns the scores into probabilities " +
      "that sum to 1. A temperature above 1 divides the scores and brings the probabilities closer together.",
    act: () => ["Predict ", opening("temperature", `what happens at a temperature of ${TEMPERATURE}`), "."],
    notice() {
      const [first, second] = state.data.steps[state.step].top;
      if (!second?.p) return `“${visible(first.text)}” has ${percent(first.p)}.`;
      const ratio = first.p / second.p;
      const times = (number) => `${number < 10 ? number.toFixed(1) : Math.round(number).toLocaleString("en")} times`;
      return (
        `“${visible(first.text)}” is ${times(ratio)} as probable as “${visible(second.text)}”. ` +
        `At temperature 2 it would be the square root: ${times(Math.sqrt(ratio))}.`
      );
    },
  },
  "beam-search": {
    title: "Beam search",
    fits: () => task() === "translate",
    shows: "output",
    at: () => ({}),
    see: () =>
      "The most probable next token does not always lead to the most probable sentence. Beam search continues " +
      "several hypotheses at once, and keeps the best by their log-probability, corrected for the length.",
    act: () => "Click a hypothesis that was not chosen, and see where it is less probable.",
    notice() {
      const [first, second] = state.data.hypotheses;
      if (!first) return "This answer was given, so there was no search. Send the text again to search.";
      if (!second) return "This search found one hypothesis only.";
      const [best, next] = [first, second].map(({ text, score }) => `“${text}” scores ${decimals(score, 3)}`);
      return `${best}; ${next}.`;
    },
  },
  training: {
    title: "Watch it learn",
    fits: () => Boolean(host.train),
    shows: "train",
    see: () =>
      "All these matrices start as random numbers. In training, each step changes them a little, so that the right " +
      "tokens become more probable. Here a small Transformer learns to reverse digits.",
    act: () => "Switch off the positions or the mask, and see whether it still learns.",
    notice() {
      const last = lesson.frames.at(-1);
      if (!last) return "Training starts …";
      return `After ${plural(last.step, "step")}, ${accuracy(last.right)} of the numbers are reversed without an error.`;
    },
  },
};

/** Return a link that opens an experiment. */
function opening(name, text) {
  const click = (event) => {
    event.preventDefault();
    openExperiment(name);
    scrollBelowTour(parts.experiments.querySelector(".lab"));
    parts.experiments.querySelector(".predictions button").focus({ preventScroll: true });
  };
  return make("a", { href: stopAddress(state.tour, { experiment: name }), click }, text);
}

/** Return the address of a stop, for the text and model shown. */
const stopAddress = (tour, more = {}) =>
  addressOf({ ...state.request, model: host.models[state.request.model].name, tour, ...more });

/** Return the names of the stops that the model has. */
const stopsHere = () => Object.keys(STOPS).filter((name) => STOPS[name].fits?.() ?? true);

/** Return this stop, or the first one if the model does not have it. */
const nearestStop = (name) => (stopsHere().includes(name) ? name : stopsHere()[0]);

/** Go to a stop: set the page to its state. `isNew` adds an entry to the browser's history. */
function visit(name, isNew = true) {
  pause();
  message.hidden = true;
  if (state.data !== state.own) view(state.own);
  const usual = { head: "mean", card: null, cell: null, experiment: null, hover: null, pinned: null, progress: 1 };
  const kinds = new Set(state.data.attention.map(({ kind }) => kind));
  Object.assign(state, usual, { kinds, revealed: Infinity, phase: phases().length - 1, tour: name });
  const { layer, ...shown } = STOPS[name].at?.() ?? {};
  Object.assign(state, shown);
  if (layer !== undefined)
    for (const [stack, count] of Object.entries(state.data.model.stacks)) showLayer(stack, Math.min(layer, count - 1));
  if (parts.train.hidden === (name === "training")) showTraining(name === "training");
  placeTour();
  if (name !== "training") show(...Object.keys(DRAW));
  if (state.cell) pinAt(...state.cell);
  remember(isNew);
}

const scrollToStop = () => scrollBelowTour(parts[STOPS[state.tour].shows ?? "stage"]);

/** Scroll to a part of the page, below the text of the tour. */
function scrollBelowTour(part) {
  if (state.presenting) return;
  part.style.scrollMarginTop = `${parts.tour.offsetHeight + 12}px`;
  part.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "start" });
}

/** Go to a stop on the visitor's request. */
function goToStop(name) {
  visit(name);
  scrollToStop();
  parts.tour.querySelector("h2").focus({ preventScroll: true });
}

/** Go to the stop before or after the current one. */
function turn(by) {
  const stops = stopsHere();
  const next = stops[stops.indexOf(state.tour) + by];
  if (next) goToStop(next);
}

function setPresenting(on) {
  state.presenting = on;
  goToStop(state.tour ?? stopsHere()[0]);
}

function leaveTour() {
  Object.assign(state, { tour: null, presenting: false, card: null, cell: null });
  if (!parts.train.hidden) showTraining(false);
  placeTour();
  show(...Object.keys(DRAW));
  remember(true);
  tourStart.focus();
}

/** Adapt the page to the stop: in presentation mode, show only its part, in large type. */
function placeTour() {
  const { tour, presenting, experiment } = state;
  const stop = STOPS[tour];
  const shown = experiment ? "experiments" : (stop?.shows ?? "stage");
  const isSmall = presenting || frame.clientWidth < 680; // there is room for one sub-layer only
  state.focus = tour && isSmall && shown === "stage" ? stop.focus() : null;
  frame.dataset.tour = tour ?? "";
  frame.classList.toggle("presenting", presenting);
  document.documentElement.style.overflow = presenting ? "hidden" : "";
  frame.style.setProperty("--zoom", Math.max(1, innerWidth / 800));
  const visible = ["tour", shown, shown === "stage" && state.card && "card"];
  for (const [name, part] of Object.entries(parts))
    part.classList.toggle("aside", presenting && !visible.includes(name));
  drawTour();
}

function drawTour() {
  const { tour, presenting } = state;
  parts.tour.hidden = !tour;
  tourStart.disabled = !state.data;
  if (!tour) return fill(parts.tour);
  const { title, see, act, notice } = STOPS[tour];
  const stops = stopsHere(),
    at = stops.indexOf(tour);
  const to = (name, i) =>
    make(
      "a",
      {
        href: stopAddress(name),
        "aria-label": `Stop ${i + 1}: ${STOPS[name].title}`,
        title: STOPS[name].title,
        "aria-current": name === tour ? "step" : null,
        click: (event) => {
          event.preventDefault();
          goToStop(name);
        },
      },
      i + 1,
    );
  fill(
    parts.tour,
    make(
      "header",
      {},
      make("h2", { tabindex: -1 }, title),
      make("nav", { "aria-label": "Stops of the tour" }, stops.map(to)),
      make(
        "div",
        { class: "tour-keys" },
        button(icon("back"), () => turn(-1), { class: "round", "aria-label": "Previous stop", disabled: at < 1 }),
        button(icon("on"), () => turn(1), {
          class: "round",
          "aria-label": "Next stop",
          disabled: at === stops.length - 1,
        }),
        button("Present", () => setPresenting(!presenting), { "aria-pressed": String(presenting) }),
        button(icon("close"), leaveTour, { class: "round", "aria-label": "Leave the tour" }),
      ),
    ),
    make(
      "div",
      { class: "tour-text" },
      make("p", {}, see()),
      make(
        "div",
        {},
        make("p", { class: "act" }, make("b", {}, "Do: "), act()),
        make("p", { class: "notice" }, make("b", {}, "Notice: "), notice()),
      ),
    ),
  );
}

const tourStart = button("Tour", () => goToStop(stopsHere()[0]), { class: "tour-start", disabled: true });

document.addEventListener("keydown", (event) => {
  if (!state.tour || !place.isConnected || event.defaultPrevented) return;
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const [target] = event.composedPath();
  if (event.key === "Escape") leaveTour();
  else if (target.matches?.("input, textarea, select")) return;
  else if (["ArrowRight", "PageDown"].includes(event.key)) turn(1);
  else if (["ArrowLeft", "PageUp"].includes(event.key)) turn(-1);
  else return;
  event.preventDefault();
});
addEventListener("resize", () => state.presenting && placeTour());
