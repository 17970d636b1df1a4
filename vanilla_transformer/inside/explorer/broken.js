// Interventions: ablated parts, weights set by hand, and comparison with another model.

const unchanged = () => structuredClone(UNCHANGED);
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const isOff = (name, item) => state.changes[name].some((each) => same(each, item));
const isChanged = () => !same(state.changes, unchanged());

/** Update some of the changes, and request the changed model's prediction. */
function change(changes) {
  if (isBusy()) return show("broken", "heads"); // the pending response is for the unchanged model
  Object.assign(state.changes, changes);
  remember(true);
  breakIt();
}

function toggleOff(name, item) {
  const list = state.changes[name];
  change({ [name]: isOff(name, item) ? list.filter((each) => !same(each, item)) : [...list, item] });
  if (name === "heads_off") show("heads");
}

let broke = 0; // number of requests sent
let breaking = false;

/** Request the changed model's prediction. Send one request at a time, always with the latest changes. */
async function breakIt() {
  pause();
  broke++;
  show("broken");
  if (!isChanged()) {
    putBeside(null);
    return remember();
  }
  if (breaking) return;
  breaking = true;
  message.hidden = true;
  parts.beside.classList.add("waits");
  for (let number = null; isChanged() && number !== broke; ) {
    number = broke;
    const { request } = state,
      wish = { ...request, changes: structuredClone(state.changes) };
    try {
      const { changed, same: steps, rows } = await host.changed(wish);
      named(changed, wish, `${state.own.name}, changed`);
      breaking = number !== broke; // whether a request with newer changes follows
      if (isChanged() && request === state.request) putBeside({ title: "Changed", data: changed, same: steps, rows });
    } catch (error) {
      breaking = number !== broke;
      if (breaking) continue;
      complain(error);
      show("staging");
    }
  }
  breaking = false;
  parts.beside.classList.remove("waits");
  remember();
}

/** Show a changed model or another model next to the original; null removes the comparison. */
function putBeside(beside) {
  const shown = state.data !== state.own;
  state.beside = beside;
  if (!shown) return show("staging", "output", "beside");
  view(beside && beside.same ? beside.data : state.own);
  show(...Object.keys(DRAW));
}

async function setBeside(model, step = false) {
  pause();
  const number = ++broke,
    { asked, request } = state,
    wish = { ...request, model, target: null };
  try {
    const data = named(await host.explore(wish), wish);
    if (number !== broke || asked !== state.asked) return;
    state.changes = unchanged();
    putBeside({ title: data.name, data, same: null });
    remember(step);
    show("broken", "heads");
  } catch (error) {
    complain(error);
  }
}

const textOf = (column, index) => visible(state.own[column]?.[index]?.text ?? "");

/** Return the set weights, grouping equal ones of several heads: [kind, layer, query, key, weight, group]. */
function weightsSet() {
  const groups = new Map();
  for (const each of state.changes.weights) {
    const [kind, layer, , query, key, weight] = each;
    const name = JSON.stringify([kind, layer, query, key, weight]);
    groups.set(name, [kind, layer, query, key, weight, [...(groups.get(name)?.[5] ?? []), each]]);
  }
  return [...groups.values()];
}

function forgetWeights(those) {
  if (isBusy()) return;
  state.changes.weights = state.changes.weights.filter((each) => !those.includes(each));
  show("staging");
  breakIt();
}

function drawBroken() {
  parts.broken.hidden = !isChanged() && !state.beside && state.experiment !== "switches";
  if (parts.broken.hidden) return;
  const { stacks } = state.own.model;
  const sublayers = (stack) => [
    "self-attention",
    ...(stack === "decoder" && state.own.target ? ["cross-attention"] : []),
    "feed-forward",
  ];
  const columnsShown = sublayers("decoder" in stacks ? "decoder" : "encoder");
  const item = (name, what, label) =>
    toggle("", !isOff(name, what), () => toggleOff(name, what), { "aria-label": label });
  const rows = Object.entries(stacks).flatMap(([stack, layers]) =>
    Array.from({ length: layers }, (_, layer) => {
      const name = `${stack} layer ${layer + 1}`;
      const residual = (part) =>
        sublayers(stack).includes(part) &&
        item("residuals_off", [stack, layer, part], `Residual connection around ${part}, ${name}`);
      return [capital(name), item("layers_off", [stack, layer], name), ...columnsShown.map(residual)];
    }),
  );
  const wide = Object.keys(stacks).map((stack) =>
    toggle(`Positions of the ${stack}`, !isOff("positions_off", stack), () => toggleOff("positions_off", stack)),
  );
  const { causal_off: noMask } = state.changes;
  if (stacks.decoder) wide.push(toggle("Causal mask", !noMask, () => change({ causal_off: !noMask })));
  const { scaling_off: unscaled, temperature } = state.changes;
  wide.push(toggle("Division by √d_k", !unscaled, () => change({ scaling_off: !unscaled })));
  const warm = ({ target }) => change({ temperature: Number(target.value) });
  if (!state.own.model.regression)
    wide.push(
      make(
        "label",
        { class: "warmth" },
        `Temperature ${temperature}`,
        make("input", { type: "range", min: 0.25, max: 4, step: 0.25, value: temperature, change: warm }),
      ),
    );
  const headsOff = state.changes.heads_off.map(([kind, layer, head]) =>
    button(`${KINDS[kind].name} ${layer + 1}.${head + 1} off ×`, () => toggleOff("heads_off", [kind, layer, head]), {
      title: "Switch on",
    }),
  );
  const weightsOf = weightsSet().map(([kind, layer, query, key, weight, those]) => {
    const { from, to, ahead } = columns(kind);
    const head = those.length > 1 ? "" : `.${those[0][2] + 1}`;
    return button(
      `${KINDS[kind].name} ${layer + 1}${head}: “${textOf(from, query + ahead)}” → “${textOf(to, key)}” ${setTo(weight)} ×`,
      () => forgetWeights(those),
      { title: "Reset" },
    );
  });
  const reset = () => {
    change(unchanged());
    show("heads");
  };
  const remove = () => {
    putBeside(null);
    show("broken");
    remember(true);
  };
  fill(
    parts.broken,
    make("h2", {}, host ? "Switch parts off" : "What was changed"),
    note(
      host
        ? "Switch a part off to see how the same model answers without it. Heads have switches under “All heads”. " +
            "Click a cell of an attention matrix to set its weight."
        : "Disabled parts and set weights of the changed model.",
    ),
    make(
      "fieldset",
      { class: "switches", disabled: !host }, // a saved page has no model to run
      make("div", {}, wide, make("p", { class: "off-heads" }, headsOff, weightsOf)),
      make(
        "div",
        { class: "scroll" },
        grid(null, ["", "layer", ...columnsShown.map((part) => `residual, ${part}`)], rows),
      ),
    ),
    make(
      "p",
      { class: "actions" },
      host && isChanged() && button("Reset all", reset),
      host && state.beside && !state.beside.same && button(`Remove ${state.beside.title}`, remove),
      (host?.models ?? []).map(
        ({ name, task: other }, i) =>
          other === task() &&
          i !== state.request.model &&
          button(`Compare with ${name}`, () => setBeside(i, true)),
      ),
    ),
  );
}
