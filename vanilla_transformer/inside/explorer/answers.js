// Answer the explorer's requests inside the page, with a model from transformer.js. The data have the same format as
// those of inside/page.py.

const NEW_TOKENS = 12; // maximum number of tokens that a language model generates
const ANSWER_TOKENS = 30; // maximum number of tokens in an answer span
const NO_ANSWER = "no answer";
const MOST_CHARACTERS = 300; // maximum length of a text
const MOST_TOKENS = 200;
const MOST_WRITTEN = 250; // maximum number of tokens in an output
const RECENT = 8; // number of predictions to keep
const OPTIONS = 8; // number of top candidates shown for each position
const LENS_OPTIONS = 3;

const TASKS = {
  ForConditionalGeneration: "translate",
  ForCausalLM: "generate",
  ForMaskedLM: "fill",
  ForSequenceClassification: "classify",
  ForTokenClassification: "tag",
  ForQuestionAnswering: "answer",
};
const rounded = (value, digits) => Number(value.toFixed(digits));
const perMille = (weights) => weights.map((weight) => Math.round(weight * 1000));

/** Answer the requests of the page. `add` makes a model available under its number. */
function modelHost() {
  const models = new Map();
  const recent = new Map(); // the last predictions, by request
  let asked = 0; // number of requests for effects
  let latest = {}; // the last forward pass of which layers were requested
  function predicted({ model, text, target = null, context = null }, changes = {}) {
    const key = JSON.stringify([model, text, target, context, changes]);
    const prediction = recent.get(key) ?? predictInPage(models.get(model), text, target, context, changes);
    recent.delete(key); // the map keeps the order in which predictions were last asked for
    recent.set(key, prediction);
    if (recent.size > RECENT) recent.delete(recent.keys().next().value);
    return [models.get(model), prediction];
  }
  return {
    add(number, files) {
      models.set(number, readModel(files));
    },
    explore: (request) => answerData(...predicted(request)),
    changed({ changes, ...request }) {
      const [model, usual] = predicted(request);
      const [, prediction] = predicted(request, changes);
      const isSame = ["source", "read"].every((name) => String(usual[name]) === String(prediction[name]));
      const run = isSame ? prediction.run : model.forward(usual.source, usual.read, changes);
      const queries = new Map(changes.weights.map((weight) => [weight.slice(0, 4).join(), weight.slice(0, 4)]));
      const rows = [...queries.values()].flatMap(([kind, layer, head, query]) => {
        const weights = run.attention[kind][layer][head][query];
        return weights ? [[kind, layer, head, query, perMille(weights)]] : [];
      });
      const same = steps(model, usual, scoresOf(model, usual, run));
      return { changed: answerData(model, prediction), same, rows };
    },
    effects(request) {
      const number = ++asked;
      return ablationEffects(...predicted(request), () => number !== asked);
    },
    layer({ stack, layer, changes = null, steps, ...request }) {
      const [model, { source, read, run: usual }] = predicted(request);
      const wish = JSON.stringify([request, changes]);
      // all layers come from one forward pass
      if (wish !== latest.wish) latest = { wish, run: changes ? model.forward(source, read, changes) : usual };
      const { run } = latest;
      return layerValues(model, steps[`${stack} ${layer}`], run, stack, layer, read && stack === "decoder" ? read : source);
    },
    /** Return the learned matrices of the steps of a layer. */
    matrices: ({ model, stack, layer, steps }) =>
      steps[`${stack} ${layer}`].map(({ part, name }) => learnedMatrices(models.get(model), stack, layer, part, name)),
    /** Return the ids of a sampled continuation. */
    sample({ model, text, count, ...options }) {
      const transformer = models.get(model);
      const prompt = transformer.tokenizer.encode(text, null, true);
      const most = Math.min(count, transformer.room - prompt.length);
      return [...transformer.generate(prompt, most, {}, (logits) => draw(filtered(logSoftmax(logits), options)))];
    },
    /** Return the top candidates of a step after temperature, top-k and top-p, and how many remain. */
    filter({ step, options, ...request }) {
      const [model, prediction] = predicted(request);
      const scores = filtered(prediction.scores[step], options);
      const left = scores.filter((score) => score > -Infinity).length;
      return { top: topOptions(model, prediction, scores, OPTIONS), left };
    },
  };
}

/** Answer messages of the page. This code then runs in a worker. */
function listen() {
  const host = modelHost();
  globalThis.onmessage = async ({ data: { id, name, values } }) => {
    try {
      postMessage({ id, answer: await host[name](...values) });
    } catch (error) {
      postMessage({ id, error: error.message });
    }
  };
}

/** Return the log-probabilities after temperature, top-k and top-p; a temperature of 0 keeps only the likeliest. */
function filtered(scores, { temperature, top_k, top_p }) {
  const ranked = largest(scores, scores.length);
  const powers = ranked.map((id) => Math.exp((scores[id] - scores[ranked[0]]) / (temperature || 1)));
  let kept = temperature ? top_k || ranked.length : 1;
  const total = powers.slice(0, kept).reduce((sum, power) => sum + power, 0);
  for (let i = 0, sum = 0; i < kept; i++) if ((sum += powers[i] / total) >= top_p) kept = i + 1;
  const left = powers.slice(0, kept).reduce((sum, power) => sum + power, 0);
  const found = new Float64Array(scores.length).fill(-Infinity);
  for (let i = 0; i < kept; i++) found[ranked[i]] = Math.log(powers[i] / left);
  return found;
}

/** Return an index drawn from log-probabilities. */
function draw(scores) {
  let left = Math.random();
  const found = scores.findIndex((score) => (left -= Math.exp(score)) <= 0);
  return found < 0 ? largest(scores, 1)[0] : found; // the probabilities may sum to slightly less than 1
}

function checkText(text) {
  if (!text.trim()) throw new Error("Please type something to explore.");
  if (text.length > MOST_CHARACTERS)
    throw new Error(`Please keep to ${MOST_CHARACTERS} characters; this text has ${text.length.toLocaleString("en")}.`);
}

function checkLength({ room }, count, what) {
  if (count > room)
    throw new Error(`The model has learned ${room} positions, and ${what} has ${count} tokens. Please shorten it.`);
  const most = { "this text": MOST_TOKENS, "the text to write": MOST_WRITTEN }[what];
  if (count > most) throw new Error(`Please keep to ${most} tokens; ${what} has ${count}.`);
}

/** Run a model on a text and return its prediction, with interventions if `changes` are given. */
function predictInPage(model, given, target = null, context = null, changes = {}) {
  const { tokenizer, config } = model,
    task = TASKS[model.head],
    text = task === "generate" ? given : given.trim(), // trailing spaces matter to a language model
    position = (name, token, query, chosen = -1) => ({ name, token, query, chosen });
  for (const given of task === "answer" ? [text, context ?? ""] : [text]) checkText(given);
  const made = { task, text, context, target: null, read: null, written: 0, hypotheses: [], changes, prefix: [] };
  const writes = ["translate", "generate"].includes(task);
  const wording = task === "fill" ? text.replaceAll("___", "<mask>") : text;
  made.source = tokenizer.encode(wording, context, writes);
  checkLength(model, made.source.length, "this text");
  if (task === "translate") {
    let ids = target;
    if (target === null) {
      const found = new Map(); // beams with the same text count once
      for (const { ids, score } of model.search(made.source, changes)) {
        const words = tokenizer.decode(ids);
        if (!found.has(words)) found.set(words, { text: words, score: rounded(score, 4), ids });
      }
      made.hypotheses = [...found.values()];
      ids = made.hypotheses[0].ids;
      made.written = ids.length;
    } else if (typeof target === "string") ids = tokenizer.encode(target, null, true);
    checkLength(model, ids.length, "the text to write");
    made.target = [config.decoder_start_token_id, ...ids];
    made.read = made.target.slice(0, -1);
    made.positions = ids.map((id, i) => position(`token ${i + 1}`, i + 1, i, id));
  } else if (task === "generate") {
    const ids =
      target === null
        ? [...model.generate(made.source, Math.min(NEW_TOKENS, model.room - made.source.length), changes)]
        : typeof target === "string"
          ? tokenizer.encodePlain(target, true)
          : target;
    made.prefix = made.source.slice(0, 1);
    made.source = [...made.source, ...ids];
    made.written = ids.length;
    checkLength(model, ids.length, "the text to write");
    checkLength(model, made.source.length, "this text with its continuation");
    made.positions = [...made.source.slice(1), -1].map((id, i) => position(`token ${i + 2}`, i + 1, i, id));
  } else if (task === "fill") {
    const mask = tokenizer.ids.get("<mask>");
    const blanks = made.source.flatMap((id, i) => (id === mask ? [i] : []));
    if (!blanks.length) throw new Error("This model fills blanks: write ___ where a word is missing.");
    made.positions = blanks.map((i, n) => position(`blank ${n + 1}`, i, i));
  } else if (task === "classify") {
    made.positions = [position("the text", null, null)];
    made.regression =
      (config.problem_type ?? (Object.keys(config.id2label).length === 1 ? "regression" : null)) === "regression";
  } else if (task === "tag") {
    const tagged = made.source.flatMap((id, i) => (tokenizer.special.has(id) ? [] : [i]));
    made.positions = tagged.map((i, n) => position(`token ${n + 1}`, i, i));
  } else {
    const ends = ["first", "last"];
    made.positions = ends.map((end) => position(`${end} token of the answer`, null, null));
  }
  made.run = model.forward(made.source, made.read, changes);
  made.scores = scoresOf(model, made, made.run);
  choose(made);
  return made;
}

/** Return each position's log-probabilities over candidates, or the predicted values for regression. */
function scoresOf({ tokenizer, config }, { task, positions, source, regression }, { logits }) {
  if (task === "classify") {
    if (regression) return logits;
    const independent = config.problem_type === "multi_label_classification";
    return logits.map((row) =>
      independent ? Float64Array.from(row, (x) => -Math.log1p(Math.exp(-x))) : logSoftmax(row),
    );
  }
  if (task === "answer") {
    // The context lies between the second special token and the last one. Token 0 stands for "no answer".
    const special = source.flatMap((id, i) => (tokenizer.special.has(id) ? [i] : []));
    const candidate = (i) => (i ? i > special.at(-2) && i < special.at(-1) : config.handle_impossible_answer);
    return [0, 1].map((end) =>
      logSoftmax(Float64Array.from(logits, (row, i) => (candidate(i) ? row[end] : -Infinity))),
    );
  }
  return positions.map(({ query }) => logSoftmax(logits[query]));
}

/** Choose the best candidate of each position that has none; for question answering, choose the best span. */
function choose({ task, positions, scores }) {
  if (task === "answer") {
    let best = -Infinity;
    const [first, last] = scores;
    first.forEach((start, i) => {
      // Token 0 stands for "no answer", so no longer span begins with it.
      for (let j = i; j < (i ? Math.min(i + ANSWER_TOKENS, last.length) : 1); j++)
        if (start + last[j] > best) {
          best = start + last[j];
          [i, j].forEach((token, end) => Object.assign(positions[end], { chosen: token, token }));
        }
    });
  }
  positions.forEach((position, i) => {
    if (position.chosen < 0) [position.chosen] = largest(scores[i], 1);
  });
}

/** Return the indices of the positions that make up the answer. */
function answered({ task, positions, written }) {
  const all = positions.map((_, i) => i);
  return task === "generate" && written ? all.slice(-1 - written, -1) : all;
}

/** Return the text of a token, or its bytes in hexadecimal if it is only part of a character. */
function shownToken(tokenizer, id) {
  const token = tokenizer.tokens.get(id);
  if (tokenizer.special.has(id)) return { text: token, bytes: false };
  const text = tokenizer.textOf([id]);
  if (!text.includes("\ufffd")) return { text, bytes: false };
  const bytes = tokenizer.bytesOf(id).map((byte) => byte.toString(16).toUpperCase().padStart(2, "0"));
  return { text: bytes.join(" "), bytes: true };
}

function optionText({ tokenizer, config }, { task, source }, id) {
  if (task === "classify" || task === "tag") return config.id2label[id];
  if (task === "answer" && id === 0) return NO_ANSWER;
  return shownToken(tokenizer, task === "answer" ? source[id] : id).text;
}

const probability = (prediction, score) => rounded(prediction.regression ? score : Math.exp(score), 5);

function countAbove(numbers, limit) {
  let count = 0;
  for (let i = 0; i < numbers.length; i++) if (numbers[i] > limit) count++;
  return count;
}

const topOptions = (model, prediction, scores, count) =>
  largest(scores, count)
    .filter((id) => scores[id] > -Infinity)
    .map((id) => ({ id, text: optionText(model, prediction, id), p: probability(prediction, scores[id]) }));

/** Describe each position: its prediction with probability and rank, and the top candidates. */
function steps(model, prediction, scores) {
  const { task, positions, prefix } = prediction;
  const chosen = positions.map((position) => position.chosen);
  return positions.map((position, i) => ({
    ...position,
    text: optionText(model, prediction, position.chosen),
    p: probability(prediction, scores[i][position.chosen]),
    rank: countAbove(scores[i], scores[i][position.chosen]) + 1,
    options: countAbove(scores[i], -Infinity),
    top: topOptions(model, prediction, scores[i], OPTIONS),
    ...(task === "translate" || task === "generate"
      ? { so_far: model.tokenizer.decode([...prefix, ...chosen.slice(0, i + 1)]).replace(/\ufffd+$/, "") }
      : {}),
  }));
}

/** Return the end offset of each token of `source` in the text; -1 for special tokens. */
function tokenEnds(tokenizer, text, source) {
  if (tokenizer.words) {
    const ends = Array.from(text.matchAll(tokenizer.pattern), (word) => word.index + word[0].length);
    return source.map((id) => (tokenizer.special.has(id) && id !== tokenizer.other ? -1 : ends.shift()));
  }
  // For each byte, the end offset of its character in the text. The tokenizer's prefix is not part of the text.
  const before = Array(tokenizer.prefix.length).fill(0);
  let index = 0;
  for (const character of text) {
    index += character.length;
    before.push(...Array(new TextEncoder().encode(character).length).fill(index));
  }
  let count = 0;
  return source.map((id) =>
    tokenizer.special.has(id) ? -1 : before[(count += tokenizer.bytesOf(id).length) - 1],
  );
}

/** Return the prediction as text. */
function answerText(model, prediction) {
  const { task, positions, scores, source, text } = prediction;
  const { tokenizer, config } = model;
  const chosen = positions.map((position) => position.chosen);
  if (task === "translate") return tokenizer.decode(chosen);
  if (task === "generate") return tokenizer.decode(source);
  if (task === "fill")
    return tokenizer.decode(source.map((id, i) => positions.find((each) => each.token === i)?.chosen ?? id));
  if (task === "answer") {
    const span = tokenizer.textOf(source.slice(chosen[0], chosen[1] + 1));
    const rest = tokenizer.textOf(source.slice(chosen[1] + 1));
    const number = /\d$/.test(span) ? /^\d*/.exec(rest)[0] : ""; // do not cut a number, as the pipeline
    return chosen[1] === 0 ? NO_ANSWER : (span + number).trim();
  }
  if (task === "tag") return taggedSpans(model, prediction, tokenEnds(tokenizer, text, source));
  const values = [...scores[0]].map((score, i) => [config.id2label[i], probability(prediction, score)]);
  if (prediction.regression)
    return values.map(([name, value]) => (values.length > 1 ? `${name}: ` : "") + value.toFixed(3)).join(", ");
  if (config.problem_type === "multi_label_classification")
    return values.flatMap(([name, value]) => (value > 0.5 ? [name] : [])).join(", ") || "none";
  return config.id2label[chosen[0]];
}

/** Return the tagged spans, such as "Kenya: COUNTRY". A word gets the tag of its first token. */
function taggedSpans(model, { text, positions }, ends) {
  const spans = [];
  let end = 0;
  for (const { query, chosen } of positions) {
    const start = end;
    end = ends[query];
    if (!text.slice(start, end).trim()) continue;
    const startsWord = start === 0 || /^\s/.test(text.slice(start, end));
    const [, prefix, tag] = model.config.id2label[chosen].match(/^(?:(.*)-)?(.*)$/);
    const last = spans.at(-1);
    if (last && (!startsWord || (prefix !== "B" && tag === last.tag))) last.end = end;
    else spans.push({ start, end, tag });
  }
  return (
    spans
      .filter(({ tag }) => tag !== "O")
      .map(
        ({ start, end, tag }) =>
          `${text
            .slice(start, end)
            .trim()
            .replace(/[.,;:!?]+$/, "")}: ${tag}`,
      )
      .join(", ") || "nothing"
  );
}

/** Return all data that the explorer shows for one prediction, like `explore_data` in inside/page.py. */
function answerData(model, prediction) {
  const { tokenizer, config, layers } = model,
    { task, source, target, run, changes } = prediction;
  const described = (ids) =>
    ids.map((id) => ({ id, special: tokenizer.special.has(id), ...shownToken(tokenizer, id) }));
  const data = {
    model: {
      class: `VanillaTransformer${model.head}`,
      task,
      regression: Boolean(prediction.regression),
      stacks: layers,
      heads: config.num_heads,
      d_model: config.d_model,
      d_k: config.d_k,
      d_ff: config.d_ff,
      norm: config.norm_position,
      positions: config.position_embedding,
      room: model.room === Infinity ? null : model.room,
      parameters: Object.values(model.weights).reduce((sum, weight) => sum + weight.length, 0),
    },
    text: prediction.text,
    context: prediction.context,
    source: described(source),
    target: target && described(target),
    written: prediction.written,
    steps: steps(model, prediction, prediction.scores),
    answer: answerText(model, prediction),
    hypotheses: prediction.hypotheses,
    ...attentionData(model, prediction),
    lens: run.hidden[model.last].map((rows, layer) => {
      const isLast = layer === layers[model.last];
      const logits = () => model.output(model.finalNorm(model.last, rows), run.changes);
      const scores = isLast ? prediction.scores : scoresOf(model, prediction, { logits: logits() });
      return prediction.positions.map(({ chosen }, i) => ({
        top: topOptions(model, prediction, scores[i], LENS_OPTIONS),
        p: probability(prediction, scores[i][chosen]),
      }));
    }),
  };
  if (JSON.stringify({ ...UNCHANGED, ...changes }) !== JSON.stringify(UNCHANGED)) data.changes = changes;
  if (task === "classify") data.mattered = mattered(model, prediction);
  return data;
}

/** Return the weights of each kind of attention in per mille, and statistics of each head. */
function attentionData({ tokenizer }, { source, target, run }) {
  const written = target ?? source;
  const texts = {
    encoder: [source, source],
    decoder: target ? [written.slice(0, -1), written.slice(0, -1)] : [written, written],
    cross: [written.slice(1), source],
  };
  const isSpecial = (id) => tokenizer.special.has(id);
  const heads = [];
  const attention = ["encoder", "decoder", "cross"].flatMap((kind) => {
    const layers = run.attention[kind];
    if (!layers) return [];
    layers.forEach((all, layer) =>
      all.forEach((weights, head) =>
        heads.push({ kind, layer, head, ...headStatistics(kind, weights, ...texts[kind], isSpecial) }),
      ),
    );
    const ahead = kind === "decoder" && !run.changes.causal_off ? 0 : null;
    return [{ kind, reach: [null, ahead], weights: layers.map((all) => all.map((rows) => rows.map(perMille))) }];
  });
  return { attention, heads };
}

/**
 * Set weights of one query, like `Weight` in inside/interventions.py. Other weights are rescaled so that all sum to 1;
 * if they were all 0, they share the remainder evenly. `wanted` lists (kind, layer, head, query, key, weight).
 */
function setWeights(weights, isSeen, wanted, query) {
  const set = new Map(wanted.filter((each) => query.every((part, i) => each[i] === part)).map((each) => each.slice(4)));
  if (!set.size) return weights;
  const rest = 1 - [...set.values()].reduce((a, b) => a + b, 0);
  const others = weights.flatMap((_, key) => (isSeen(key) && !set.has(key) ? [key] : []));
  if (!others.length && rest > 1e-5) return weights;
  const sum = others.reduce((total, key) => total + weights[key], 0);
  return weights.map((weight, key) => {
    if (!isSeen(key)) return 0;
    return set.get(key) ?? (sum > 0 ? (weight * rest) / sum : rest / others.length);
  });
}
