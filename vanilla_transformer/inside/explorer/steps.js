// The steps of a layer, with the values that the stage and the step card show.

const layerOf = (stack, layer, data) => host.layer({ ...data.request, target: writtenIds(data), stack, layer });

/** Return the ids of the generated tokens; null for models that do not generate text. */
function writtenIds({ model, steps, source, written }) {
  if (model.task === "translate") return steps.map((step) => step.chosen);
  return model.task === "generate" ? source.slice(source.length - written).map((token) => token.id) : null;
}

const loading = new Map(); // of data: the layers that have been requested

/** Return the steps of a layer, in order; an empty list while they are being computed. */
function layerSteps(stack, layer, data = state.data) {
  const name = `${stack} ${layer}`;
  const steps = data.values?.[name];
  if (steps || !host) return steps ?? [];
  const requested = loading.get(data) ?? new Set();
  if (!requested.has(name)) {
    loading.clear(); // only the data shown are of interest
    loading.set(data, requested.add(name));
    layerOf(stack, layer, data).then((found) => {
      (data.values ??= {})[name] = found;
      if (data === state.data) show("staging", "card", "tour");
      const cell = state.cell ?? (scene && !scene.popover.hidden && scene.popover.cell);
      if (data === state.data && cell) showCell(...cell);
    }).catch((error) => {
      requested.delete(name);
      if (data !== state.data) return;
      pause();
      state.card = null;
      show("card");
      complain(error);
    });
  }
  return [];
}

/** Whether a layer's numbers are still being computed. */
const isLoading = (stack, layer) => Boolean(host) && !layerSteps(stack, layer).length;

/** Return the recorded name of a step: the first layer's input is the embedding with its position. */
const nameIn = (layer, name) => (name === "layer input" && layer === 0 ? "embedding + position" : name);

/** Return a step of a layer; undefined while the layer is being computed. */
function stepOf(stack, layer, part, name, data = state.data) {
  const steps = layerSteps(stack, layer, data);
  const wanted = nameIn(layer, name);
  return steps.find((step) => step.part === part && step.name === wanted);
}

const joined = new WeakMap();

/** Return the vectors of a step, one per lane: those of the chosen head, or all heads concatenated. */
function vectorsOf(step, head = state.head) {
  if (step.axes[0] !== "heads") return step.values;
  if (head !== "mean") return step.values[head];
  const { values } = step;
  if (!joined.has(values))
    joined.set(
      values,
      values[0].map((_, row) => values.flatMap((rows) => [...rows[row]])),
    );
  return joined.get(values);
}
