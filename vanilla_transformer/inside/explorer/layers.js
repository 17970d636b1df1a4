// The steps of a layer: their values in a run of the model, and the learned matrices that they use.

const MODULES = { "self-attention": "self_attn", "cross-attention": "cross_attn", "feed-forward": "feed_forward" };
// The projections of each step: the index of its matrix W in the equation, and the module's name.
const PROJECTIONS = {
  queries: ["Q", "q_proj"],
  keys: ["K", "k_proj"],
  values: ["V", "v_proj"],
  "output projection": ["O", "o_proj"],
  hidden: ["1", "fc1"],
  "feed-forward output": ["2", "fc2"],
};

/** Return the steps of a layer as `described` (inside/explanations.py), with whole values. */
function layerValues(model, described, run, stack, layer, ids) {
  const { config } = model,
    prefix = model.stacks[stack],
    at = `${prefix}.layers.${layer}`;
  const split = (rows, width) =>
    Array.from({ length: config.num_heads }, (_, h) => rows.map((row) => row.slice(h * width, (h + 1) * width)));
  const pre = config.norm_position === "pre";
  const values = (part, name) => {
    const module = run.seen[`${at}.${MODULES[part]}`],
      box = run.seen[`${at}.${MODULES[part]}_add_norm`];
    const kind = part === "cross-attention" ? "cross" : stack;
    const hidden = (t, s) => kind === "decoder" && !run.changes.causal_off && s > t;
    const scores = (number) =>
      split(module.queries, config.d_k).map((queries, h) => {
        const keys = split(module.keys, config.d_k)[h];
        return queries.map((query, t) =>
          keys.map((key, s) =>
            number(
              query.reduce((sum, x, i) => sum + x * key[i], 0),
              t,
              s,
            ),
          ),
        );
      });
    const scale = run.changes.scaling_off ? 1 : Math.sqrt(config.d_k);
    const embedded = () => run.seen[`${prefix}.embed_tokens`];
    return {
      tokens: () => ids,
      embeddings: () => embedded().tokens,
      positions: () => embedded().positions,
      "embedding + position": () => run.hidden[stack][0],
      "layer input": () => run.hidden[stack][layer],
      "layer norm": () => (pre ? module.input : box.output),
      "encoder output": () => module.source,
      queries: () => split(module.queries, config.d_k),
      keys: () => split(module.keys, config.d_k),
      values: () => split(module.values, config.d_v),
      scores: () => scores((score) => score),
      "scaled scores": () => scores((score) => score / scale),
      mask: () => scores((_, t, s) => (hidden(t, s) ? null : 0)),
      "masked scores": () => scores((score, t, s) => (hidden(t, s) ? null : score / scale)),
      weights: () => module.weights,
      heads: () => split(module.joined, config.d_v),
      concatenation: () => module.joined,
      "output projection": () => module.output,
      hidden: () => module.inner,
      activation: () => module.activated,
      "feed-forward output": () => module.output,
      residual: () => box.sum,
      "layer output": () => run.hidden[stack][layer + 1],
      "stack output": () => model.finalNorm(stack, run.hidden[stack].at(-1)),
      logits: () => run.logits,
    }[name]?.();
  };
  return described.flatMap((step) => {
    const found = values(step.part, step.name);
    if (!found) return [];
    const depth = step.axes.length;
    const shape = [found.length, ...(depth > 1 ? [found[0].length] : []), ...(depth > 2 ? [found[0][0].length] : [])];
    const rows = depth === 1 ? found.map((x) => [x]) : found;
    return [{ ...step, shape, ...(step.axes.includes("vocab") ? {} : { values: rows }) }]; // logits would be large
  });
}

/** Return the learned matrix W [input][output] and the bias b of a step, by name, such as W_Q. */
function learnedMatrices(model, stack, layer, part, name) {
  if (!(name in PROJECTIONS)) return {};
  const [letter, projection] = PROJECTIONS[name];
  const { weight, bias } = model.at(`${model.stacks[stack]}.layers.${layer}.${MODULES[part]}.${projection}`);
  const { d_model, d_ff, d_v, num_heads: heads } = model.config;
  const inputs = { O: heads * d_v, 2: d_ff }[letter] ?? d_model;
  const outputs = weight.length / inputs;
  const rows = Array.from({ length: inputs }, (_, i) =>
    Float32Array.from({ length: outputs }, (_, o) => weight[o * inputs + i]),
  );
  return { [`W_${letter}`]: rows, ...(bias ? { [`b_${letter}`]: [bias] } : {}) };
}
