// Attention weights set by hand.

const total = (numbers) => numbers.reduce((sum, each) => sum + each, 0);

/** Set some weights of a row, given by key, like `set_weights` in interventions.py. */
function withWeights(row, given, seen) {
  const left = 1000 - total([...given.values()]);
  const free = row.map((_, key) => seen[key] && !given.has(key));
  let others = row.map((weight, key) => (free[key] ? weight : 0));
  if (!total(others)) others = free.map(Number);
  if (!total(others) && left > 0.01) return row;
  return row.map((_, key) => given.get(key) ?? (others[key] * left) / Math.max(1e-9, total(others)));
}

/** Return the layer to show for a kind of attention. */
const layerSeen = (kind) => layerOn(stackWith(kind));
const headsSeen = () =>
  state.head === "mean" ? Array.from({ length: state.data.model.heads }, (_, head) => head) : [state.head];

/** Return the weights set by hand of a query, in the layer and heads shown. */
const weightsOf = (kind, query) =>
  (state.changes?.weights ?? []).filter(
    ([of, layer, head, q]) => of === kind && layer === layerSeen(kind) && headsSeen().includes(head) && q === query,
  );

/** Return a query's weights, including those set by hand. */
function rowSeen(kind, query) {
  const layer = layerSeen(kind);
  const set = weightsOf(kind, query);
  if (!set.length || state.data !== state.own) return weights(kind, layer)[query];
  const rows = headsSeen().map((head) => {
    const told = !breaking && state.beside?.rows?.find((each) => same(each.slice(0, 4), [kind, layer, head, query]));
    if (told) return told[4];
    const row = weights(kind, layer, head)[query];
    const given = set.filter((each) => each[2] === head).map(([, , , , key, weight]) => [key, 1000 * weight]);
    return withWeights(row, new Map(given), row.map((_, key) => sees(kind, query, key)));
  });
  return rows[0].map((_, key) => total(rows.map((row) => row[key])) / rows.length);
}

/** Return the weights of all queries, including those set by hand. */
const rowsSeen = (kind) => weights(kind, layerSeen(kind)).map((_, query) => rowSeen(kind, query));

/** Set the weight of a key in the heads shown, or reset it with null, and run the model again. */
function setWeight(kind, query, key, weight) {
  if (isBusy()) return;
  const layer = layerSeen(kind),
    heads = headsSeen();
  const own = weightsOf(kind, query);
  const kept = state.changes.weights.filter((each) => !own.includes(each) || each[4] !== key);
  // Weights sum to 1, and weights set earlier keep their values.
  const taken = (head) =>
    total(own.filter((each) => kept.includes(each) && each[2] === head).map((each) => each[5]));
  const left = 1 - Math.max(...heads.map(taken));
  const rounded = Math.round(100 * Math.min(left, Math.max(0, weight))) / 100;
  state.changes.weights = [
    ...kept,
    ...(weight === null ? [] : heads.map((head) => [kind, layer, head, query, key, rounded])),
  ];
  updateStage();
  breakIt();
}
