// The vanilla Transformer in plain JavaScript: runs a saved model, and generates text by greedy or beam search. Its
// parts match those of modeling_vanilla_transformer.py.
//
//   const model = readModel(await fetchModel("checkpoints/en-es/"));
//   const ids = model.tokenizer.encode("I like to travel.");
//   model.tokenizer.decode(model.search(ids)[0].ids); // "Me gusta viajar."
//
// A sequence is an array of rows: one Float32Array of length d_model per token. There are no batches and no padding.
// The matrix products are in linear.js, the tokenizer and the reading of files in saved_model.js.

// Parts ---------------------------------------------------------------------------------------------------------------

const relu = (x) => x.map((row) => row.map((value) => (value > 0 ? value : 0)));

// The next functions are loops, because calling a function for each number is slow.

function add(x, y) {
  return x.map((row, t) => {
    const [sum, other] = [row.slice(), y[t]];
    for (let i = 0; i < sum.length; i++) sum[i] += other[i];
    return sum;
  });
}

/** Return the highest number. */
function highest(numbers) {
  let most = -Infinity;
  for (let i = 0; i < numbers.length; i++) if (numbers[i] > most) most = numbers[i];
  return most;
}

function layerNorm(x, { weight, bias }, epsilon) {
  return x.map((row) => {
    let [sum, squares] = [0, 0];
    for (const value of row) sum += value;
    const mean = sum / row.length;
    for (const value of row) squares += (value - mean) ** 2;
    const deviation = Math.sqrt(squares / row.length + epsilon);
    return row.map((value, i) => ((value - mean) / deviation) * weight[i] + bias[i]);
  });
}

function softmax(scores) {
  const most = highest(scores);
  const powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

function logSoftmax(logits) {
  const most = highest(logits);
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - most);
  const scores = Float64Array.from(logits);
  const shift = most + Math.log(sum);
  for (let i = 0; i < scores.length; i++) scores[i] -= shift;
  return scores;
}

/** Positional encoding, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)); PE(pos, 2i+1) is the cosine. */
function sinusoids(position, width) {
  const single = Math.fround; // the PyTorch model computes the angles in float32
  const angle = (even) => single(position * single(Math.exp(single(even * single(-Math.log(10000) / width)))));
  return Float32Array.from({ length: width }, (_, i) => (i % 2 ? Math.cos(angle(i - 1)) : Math.sin(angle(i))));
}

/** Pool a sequence into one row: its first row, or the mean or maximum over rows. */
function pool(rows, pooling) {
  if (pooling === "first") return rows[0];
  const column = (i) => rows.map((row) => row[i]);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  return rows[0].map((_, i) => (pooling === "max" ? highest(column(i)) : mean(column(i))));
}

/** Return the indices of the `count` largest numbers, largest first. */
function largest(numbers, count) {
  const best = [];
  let least = -Infinity; // the smallest number among the best ones, when there are enough
  for (let i = 0; i < numbers.length; i++) {
    if (best.length === count && numbers[i] <= least) continue;
    let place = best.length;
    while (place && numbers[best[place - 1]] < numbers[i]) place--;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
    least = numbers[best.at(-1)];
  }
  return best;
}

// The model -----------------------------------------------------------------------------------------------------------

const UNCHANGED = {
  heads_off: [],
  layers_off: [],
  residuals_off: [],
  positions_off: [],
  causal_off: false,
  scaling_off: false,
  temperature: 1,
  weights: [],
};
const isListed = (list, ...item) => list.some((each) => item.every((part, i) => each[i] === part));

// Supported values of config fields, null for a missing one. Models with other values must run on a server. This is
// JSON, because inside/model_files.py reads it too.
const SUPPORTED = {
  "activation_function": ["relu"],
  "mlm_head_transform": [false, null],
  "normalize_embedding": [false],
  "sinusoid_frequencies": ["paper"],
  "sinusoid_layout": ["interleaved"],
  "sliding_window": [null],
  "type_vocab_size": [0, null]
};

/** An encoder, decoder or encoder-decoder. `weights` maps the names in the saved model to Float32Arrays. */
class Transformer {
  constructor(config, weights, tokenizer, generation = {}) {
    for (const [name, values] of Object.entries(SUPPORTED))
      if (!values.includes(config[name] ?? null)) throw new Error(`${name}=${config[name]} is not supported in the page.`);
    Object.assign(this, { config, weights, tokenizer, generation });
    this.head = config.architectures[0].replace("VanillaTransformer", "");
    this.room = config.position_embedding === "learned" ? config.max_position_embeddings : Infinity;
    config.id2label ??= { 0: "LABEL_0", 1: "LABEL_1" }; // the default of transformers, which config.json omits
    if (config.is_encoder_decoder) this.stacks = { encoder: "model.encoder", decoder: "model.decoder" };
    else this.stacks = { [this.head === "ForCausalLM" ? "decoder" : "encoder"]: "model" };
    this.last = Object.keys(this.stacks).at(-1);
    this.layers = {};
    for (const [stack, prefix] of Object.entries(this.stacks)) {
      const numbers = Object.keys(weights).map((name) => name.match(`^${prefix}\\.layers\\.(\\d+)\\.`)?.[1] ?? -1);
      this.layers[stack] = Math.max(...numbers) + 1;
    }
  }

  /** Return the weight and bias of the module with this name. */
  at(name) {
    return { weight: this.weights[`${name}.weight`], bias: this.weights[`${name}.bias`] };
  }

  /** Return the token embedding of a stack. Shared weights are saved under one name only. */
  embedding(stack) {
    const own = this.weights[`${this.stacks[stack]}.embed_tokens.weight`];
    return own ?? this.weights["model.encoder.embed_tokens.weight"] ?? this.weights["lm_head.weight"];
  }

  /**
   * Multi-head attention, section 3.2: softmax(Q K^T / sqrt(d_k)) V for each head, then the output projection.
   * `kind` is "encoder" or "decoder" (self-attention), or "cross"; `cache` holds past keys and values.
   */
  attention(name, kind, layer, x, source, run, cache) {
    const { num_heads: heads, d_k, d_v } = this.config;
    const { changes, places, sees } = run;
    const queries = linear(x, this.at(`${name}.q_proj`));
    if (kind !== "cross" || !cache.keys.length) {
      cache.keys = cache.keys.concat(linear(source, this.at(`${name}.k_proj`)));
      cache.values = cache.values.concat(linear(source, this.at(`${name}.v_proj`)));
    }
    const scale = changes.scaling_off ? 1 : Math.sqrt(d_k);
    const weights = Array.from({ length: heads }, () => []);
    const joined = queries.map((query, t) => {
      const seen = (rows) => (sees && kind === "decoder" ? sees[t].map((i) => rows[i]) : rows);
      const [keys, values] = [seen(cache.keys), seen(cache.values)];
      // whether the causal mask lets the query attend to the key
      const isSeen = (key) => kind !== "decoder" || changes.causal_off || key <= places[t];
      const out = new Float32Array(heads * d_v);
      for (let head = 0; head < heads; head++) {
        const scores = keys.map((key, s) => {
          let score = 0;
          for (let i = head * d_k; i < (head + 1) * d_k; i++) score += query[i] * key[i];
          return isSeen(s) ? score / scale : -Infinity;
        });
        const row = setWeights(softmax(scores), isSeen, changes.weights, [kind, layer, head, places[t]]);
        weights[head].push(row);
        if (isListed(changes.heads_off, kind, layer, head)) continue;
        values.forEach((value, s) => {
          for (let i = head * d_v; i < (head + 1) * d_v; i++) out[i] += row[s] * value[i];
        });
      }
      return out;
    });
    const output = linear(joined, this.at(`${name}.o_proj`));
    run.seen[name] = { input: x, source, queries, ...cache, weights, joined, output };
    (run.attention[kind] ??= [])[layer] = weights;
    return output;
  }

  /** Position-wise feed-forward network, section 3.3: max(0, x W_1 + b_1) W_2 + b_2. */
  feedForward(name, x, run) {
    const inner = linear(x, this.at(`${name}.fc1`));
    const activated = relu(inner);
    const output = linear(activated, this.at(`${name}.fc2`));
    run.seen[name] = { input: x, inner, activated, output };
    return output;
  }

  /** The "Add & Norm" box of Figure 1: LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)) with pre-norm. */
  addNorm(name, x, sublayer, run, hasResidual) {
    const norm = (rows) => layerNorm(rows, this.at(`${name}.norm`), this.config.layer_norm_eps);
    const isPre = this.config.norm_position === "pre";
    const rows = sublayer(isPre ? norm(x) : x);
    const sum = hasResidual ? add(x, rows) : rows;
    const output = isPre ? sum : norm(sum);
    run.seen[name] = { sum, output };
    return output;
  }

  /** One layer of Figure 1: a decoder layer if the encoder's output `memory` is given. */
  layer(stack, layer, x, run, cache, memory) {
    const name = `${this.stacks[stack]}.layers.${layer}`;
    const box = (part, title, input, sublayer) => {
      const hasResidual = !isListed(run.changes.residuals_off, stack, layer, title);
      return this.addNorm(`${name}.${part}_add_norm`, input, (rows) => sublayer(`${name}.${part}`, rows), run, hasResidual);
    };
    const self = (at, rows) => this.attention(at, stack, layer, rows, rows, run, cache.self);
    const cross = (at, rows) => this.attention(at, "cross", layer, rows, memory, run, cache.cross);
    let out = box("self_attn", "self-attention", x, self);
    if (memory) out = box("cross_attn", "cross-attention", out, cross);
    out = box("feed_forward", "feed-forward", out, (at, rows) => this.feedForward(at, rows, run));
    return isListed(run.changes.layers_off, stack, layer) ? x : out;
  }

  /**
   * A stack: embedding * sqrt(d_model) + position (sections 3.4, 3.5), the layers, and the final norm of pre-norm.
   * In beam search, `places` are the positions of the tokens, and `sees` the rows of the cache that each attends to.
   */
  stack(stack, ids, run, cache = this.emptyCache(stack), memory = null, { places = null, sees = null } = {}) {
    const { d_model: width, scale_embedding: isScaled, position_offset: offset } = this.config;
    const prefix = this.stacks[stack];
    const row = (table, i, factor = 1) => table.slice(i * width, (i + 1) * width).map((value) => value * factor);
    const learned = this.weights[`${prefix}.embed_positions.weight`];
    const position = (i) => (learned ? row(learned, i) : sinusoids(i, width));
    const past = cache[0].self.keys.length;
    run.sees = sees;
    run.places = places ?? ids.map((_, t) => past + t);
    const tokens = ids.map((id, t) => row(this.embedding(stack), id, run.scales?.[t]));
    const positions = ids.map((_, t) =>
      run.changes.positions_off.includes(stack) ? new Float32Array(width) : position(run.places[t] + offset),
    );
    run.seen[`${prefix}.embed_tokens`] = { tokens, positions };
    const scale = isScaled ? Math.fround(Math.sqrt(width)) : 1;
    run.hidden[stack] = [add(tokens.map((token) => token.map((value) => value * scale)), positions)];
    for (let i = 0; i < this.layers[stack]; i++)
      run.hidden[stack].push(this.layer(stack, i, run.hidden[stack][i], run, cache[i], memory));
    return this.finalNorm(stack, run.hidden[stack].at(-1));
  }

  /** Apply the norm after the last layer, which exists only with pre-norm. */
  finalNorm(stack, x) {
    const { norm_position: kind, layer_norm_eps: epsilon } = this.config;
    return kind === "pre" ? layerNorm(x, this.at(`${this.stacks[stack]}.norm`), epsilon) : x;
  }

  emptyCache(stack) {
    const empty = () => ({ keys: [], values: [] });
    return Array.from({ length: this.layers[stack] }, () => ({ self: empty(), cross: empty() }));
  }

  /** Create the record of a run: its changes (see inside/interventions.py) and its results. */
  newRun(changes = {}, scales = null) {
    return { changes: { ...UNCHANGED, ...changes }, scales, attention: {}, hidden: {}, seen: {} };
  }

  /** Return the logits for a stack's output: [position][token or tag], [position][start, end], or a row of classes. */
  output(states, { temperature } = UNCHANGED) {
    const logits = this.logits(states);
    return temperature === 1 ? logits : logits.map((row) => row.map((logit) => logit / temperature));
  }

  logits(states) {
    if (this.head === "ForTokenClassification") return linear(states, this.at("classifier"));
    if (this.head === "ForQuestionAnswering") return linear(states, this.at("qa_outputs"));
    if (this.head === "ForSequenceClassification")
      return linear([pool(states, this.config.pooling)], this.at("classifier"));
    const weight = this.weights["lm_head.weight"] ?? this.embedding(this.last);
    return linear(states, { weight, bias: this.weights["lm_head.bias"] });
  }

  /**
   * Run the whole model on source ids, and on target ids if it is an encoder-decoder.
   *
   * Returns the record of the run: `logits`; attention weights in `attention[kind][layer][head][query][key]`;
   * `hidden[stack][layer]`, the rows before each layer and after the last; `seen`, the steps of each module by name.
   * `scales` multiplies the embedding of each source token; `memory` is the encoder's output if already computed.
   */
  forward(source, target = null, changes = {}, { scales = null, memory = null } = {}) {
    const run = this.newRun(changes, scales);
    const states = memory ?? this.stack(target ? "encoder" : this.last, source, run);
    const last = target ? this.stack("decoder", target, { ...run, scales: null }, undefined, states) : states;
    return Object.assign(run, { memory: states, logits: this.output(last, run.changes) });
  }

  /** Yield the next ids, up to and including the end token, but at most `most`. `choose` picks an id by its logits. */
  *generate(prompt, most, changes = {}, choose = (logits) => largest(logits, 1)[0]) {
    const run = this.newRun(changes);
    // without the causal mask, each new token changes earlier positions, so nothing can be cached
    const isWhole = run.changes.causal_off;
    const cache = this.emptyCache(this.last);
    for (let ids = prompt, count = 0; count < most; count++) {
      const states = this.stack(this.last, ids, run, isWhole ? undefined : cache);
      const next = choose(this.output(states.slice(-1), run.changes)[0]);
      yield next;
      if (next === this.config.eos_token_id) return;
      ids = isWhole ? [...ids, next] : [next];
    }
  }

  /**
   * Translate by beam search, like `generate`: with the length penalty of section 6.1 (Wu et al., 2016), until no
   * unfinished hypothesis can become better than the finished ones.
   *
   * Returns {ids, score} of each hypothesis, best first. `most` limits the number of ids, including the end token.
   */
  search(source, changes = {}, most = Math.min(source.length + 49, this.room)) {
    const { eos_token_id: end, decoder_start_token_id: start } = this.config;
    const { num_beams, length_penalty, early_stopping: early } = this.generation;
    const [beams, alpha] = [num_beams ?? 1, length_penalty ?? 1]; // a model saved without them may have null
    const penalty = (length) => (this.generation.gnmt_length_penalty ? (length + 5) / 6 : length) ** alpha;
    const run = this.newRun(changes);
    const isWhole = run.changes.causal_off;
    const memory = this.stack("encoder", source, run);
    const cache = this.emptyCache("decoder");
    let open = [{ ids: [], sum: 0, path: [] }]; // `path`: the rows of the cache that belong to the hypothesis
    let finished = [];
    for (let length = 1; length <= most; length++) {
      // The hypotheses are read at once, as one sequence of tokens that attend only to those of their own hypothesis.
      const past = cache[0].self.keys.length;
      const rows = open.flatMap(({ ids, path }, i) => {
        const places = isWhole ? [...ids.keys(), length - 1] : [length - 1];
        const sees = isWhole ? places.map((place) => i * length + place) : [...path, past + i];
        return places.map((place) => ({ id: ids[place - 1] ?? start, place, sees }));
      });
      const [ids, places, sees] = ["id", "place", "sees"].map((name) => rows.map((row) => row[name]));
      const states = this.stack("decoder", ids, run, isWhole ? undefined : cache, memory, { places, sees });
      const isLast = (_, row) => places[row] === length - 1;
      const paths = sees.filter(isLast);
      const candidates = this.output(states.filter(isLast), run.changes).flatMap((logits, i) => {
        const scores = logSoftmax(logits);
        const next = (id) => ({ ids: [...open[i].ids, id], sum: open[i].sum + scores[id], path: paths[i] });
        return largest(scores, 2 * beams).map(next);
      });
      const best = candidates.sort((a, b) => b.sum - a.sum).slice(0, 2 * beams);
      const hasEnded = ({ ids }) => ids.at(-1) === end;
      const ended = best.slice(0, beams).filter((each) => hasEnded(each) || length === most);
      finished.push(...ended.map(({ ids, sum }) => ({ ids, score: sum / penalty(length) })));
      finished = finished.sort((a, b) => b.score - a.score).slice(0, beams);
      open = best.filter((each) => !hasEnded(each)).slice(0, beams);
      const possible = open[0].sum / penalty(early === "never" && alpha > 0 ? most : length);
      if (finished.length === beams && (early === true || possible <= finished.at(-1).score)) break;
    }
    return finished;
  }
}
