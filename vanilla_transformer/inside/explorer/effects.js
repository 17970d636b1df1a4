// What heads do and how much they matter, and which words mattered, like inside/effects.py.

const mean = (numbers) => (numbers.length ? numbers.reduce((sum, number) => sum + number, 0) / numbers.length : 0);

/** Return statistics of one head, averaged over queries, like `head_statistics` in inside/effects.py. */
function headStatistics(kind, weights, queries, keys, isSpecial) {
  const sum = (row, wanted) => row.reduce((total, weight, s) => (wanted(s) ? total + weight : total), 0);
  const along = (offset) =>
    weights.flatMap((row, t) => (t + offset >= 0 && t + offset < row.length ? [row[t + offset]] : []));
  const found = {};
  if (kind === "cross") {
    const onward = (row) => Math.min(row.indexOf(Math.max(...row)) + 1, keys.length - 1);
    found.onward = weights.slice(1).map((row, t) => row[onward(weights[t])]);
  } else {
    Object.assign(found, { itself: along(0), previous: along(-1) });
    if (kind === "encoder") found.next = along(1);
  }
  found.same = weights.map((row, t) => sum(row, (s) => keys[s] === queries[t] && (kind === "cross" || s !== t)));
  found.special = weights.map((row) => sum(row, (s) => isSpecial(keys[s])));
  found.entropy = weights.map((row) => -row.reduce((total, p) => total + (p > 0 ? p * Math.log2(p) : 0), 0));
  found.tokens = found.entropy.map((entropy) => 2 ** entropy);
  return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, rounded(mean(values), 3)]));
}

/**
 * Return gradient times input of the highest logit for each piece of the text. The gradient is approximated by finite
 * differences: how fast the logit grows when a token's embedding is scaled.
 */
function mattered(model, { source, text, run, changes }) {
  const step = 2e-3;
  const [top] = largest(run.logits[0], 1);
  const logit = (t, size) =>
    model.forward(source, null, changes, { scales: source.map((_, i) => (i === t ? size : 1)) }).logits[0][top];
  const values = source.map((_, t) => (logit(t, 1 + step) - logit(t, 1 - step)) / (2 * step));
  const pieces = [];
  let end = 0;
  tokenEnds(model.tokenizer, text, source).forEach((next, t) => {
    if (next < 0) pieces.push({ text: model.tokenizer.tokens.get(source[t]), share: values[t] });
    else if (next === end) pieces.at(-1).share += values[t];
    else {
      pieces.push({ text: text.slice(end, next), share: values[t] });
      end = next;
    }
  });
  const most = Math.max(1e-9, ...pieces.map(({ share }) => Math.abs(share)));
  return pieces.map((piece) => ({ ...piece, share: rounded(piece.share / most, 3) }));
}

/**
 * Return how much log-probability the prediction loses without each head, largest first. See inside/effects.py.
 * `isStale` returns true when the page no longer waits for the answer.
 */
async function ablationEffects(model, prediction, isStale) {
  const { source, read, run, positions, regression } = prediction;
  const values = (changed) => {
    const scores = scoresOf(model, prediction, changed);
    return answered(prediction).map((i) => scores[i][positions[i].chosen]);
  };
  const intact = values(run);
  const effects = [];
  for (const [kind, layers] of Object.entries(run.attention)) {
    const known = read && kind !== "encoder" ? { memory: run.memory } : {};
    for (const layer of layers.keys())
      for (const head of layers[layer].keys()) {
        const without = values(model.forward(source, read, { heads_off: [[kind, layer, head]] }, known));
        const losses = intact.map((score, i) => (regression ? Math.abs(score - without[i]) : score - without[i]));
        effects.push({ kind, layer, head, effect: rounded(mean(losses), 5) });
        await new Promise((done) => setTimeout(done)); // answer other requests in between
        if (isStale()) throw new Error("The page has asked for another text.");
      }
  }
  return effects.sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
}
