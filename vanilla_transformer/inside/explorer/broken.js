// Interventions: disabled parts, weights set by hand, and another model for comparison.

const unchanged = () => ({
  heads_off: [],
  layers_off: [],
  residuals_off: [],
  positions_off: [],
  causal_off: false,
  weights: [],
});
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const isOff = (name, item) => state.changes[name].some((each) => same(each, item));
const isChanged = () => !same(state.changes, unchanged());

function toggle(name, item) {
  const list = state.changes[name];
  state.changes[name] = isOff(name, item) ? list.filter((each) => !same(each, item)) : [...list, item];
  if (name === "heads_off") show("heads");
  remember(true);
  breakIt();
}

let broke = 0; // number of requests
let breaking = false;

/** Ask for the changed model's answer. Send one request at a time, and then the latest changes. */
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
      if (isChanged() && request === state.request) putBeside({ title: "Changed", data: changed, same: steps, rows });
    } catch (error) {
      if (number === broke) complain(error); // otherwise newer changes are requested next
    }
  }
  breaking = false;
  parts.beside.classList.remove("waits");
  show("flowing");
  remember();
}

/** Show a changed or another model next to the original; null removes it. */
function putBeside(beside) {
  const shown = state.data !== state.own;
  state.beside = beside;
  if (!shown) return show("flowing", "output", "beside");
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

/** The set weights, with equal weights of several heads grouped: [kind, layer, query, key, weight, all of them]. */
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
  state.changes.weights = state.changes.weights.filter((each) => !those.includes(each));
  show("flowing");
  breakIt();
}

function drawBroken() {
  parts.broken.hidden = !host && !isChanged();
  if (parts.broken.hidden) return;
  const { stacks } = state.own.model;
  const has = (stack) => [
    "self-attention",
    ...(stack === "decoder" && state.own.target ? ["cross-attention"] : []),
    "feed-forward",
  ];
  const columnsThere = ["self-attention", "cross-attention", "feed-forward"].filter((part) =>
    Object.keys(stacks).some((stack) => has(stack).includes(part)),
  );
  const on = (label, name, item) =>
    make(
      "label",
      { class: "toggle" },
      make("input", {
        type: "checkbox",
        "aria-label": label,
        checked: !isOff(name, item),
        change: () => toggle(name, item),
      }),
    );
  const rows = Object.entries(stacks).flatMap(([stack, layers]) =>
    Array.from({ length: layers }, (_, layer) => {
      const name = `${stack} layer ${layer + 1}`;
      return make(
        "tr",
        {},
        make("th", { scope: "row" }, capital(name)),
        make("td", {}, on(name, "layers_off", [stack, layer])),
        columnsThere.map((part) =>
          make(
            "td",
            {},
            has(stack).includes(part)
              ? on(`Residual connection around ${part}, ${name}`, "residuals_off", [stack, layer, part])
              : "",
          ),
        ),
      );
    }),
  );
  const wide = Object.keys(stacks).map((stack) =>
    make(
      "label",
      { class: "toggle" },
      make("input", {
        type: "checkbox",
        checked: !state.changes.positions_off.includes(stack),
        change: () => toggle("positions_off", stack),
      }),
      `Positions of the ${stack}`,
    ),
  );
  if (stacks.decoder)
    wide.push(
      make(
        "label",
        { class: "toggle" },
        make("input", {
          type: "checkbox",
          checked: !state.changes.causal_off,
          change: () => {
            state.changes.causal_off = !state.changes.causal_off;
            remember(true);
            breakIt();
          },
        }),
        "Causal mask",
      ),
    );
  const others = (host?.models ?? [])
    .map((each, i) => [each, i])
    .filter(([each, i]) => each.task === task() && i !== state.request.model);
  fill(
    parts.broken,
    make("h2", {}, host ? "Switch parts off" : "What was changed"),
    make(
      "p",
      { class: "note" },
      !host
        ? "These parts are off, or set, in the changed model."
        : "Switch a part off to see how the same model answers without it. Heads have switches under “All heads”; attention weights have handles under “Attention”.",
    ),
    make(
      "fieldset",
      { class: "switches", disabled: !host }, // a saved page has no model to run
      make(
        "div",
        {},
        wide,
        make(
          "p",
          { class: "off-heads" },
          state.changes.heads_off.map(([kind, layer, head]) =>
            make(
              "button",
              { type: "button", title: "Switch on", click: () => toggle("heads_off", [kind, layer, head]) },
              `${KINDS[kind].name} ${layer + 1}.${head + 1} off ×`,
            ),
          ),
          weightsSet().map(([kind, layer, query, key, weight, those]) =>
            make(
              "button",
              { type: "button", title: "Reset", click: () => forgetWeights(those) },
              `${KINDS[kind].name} ${layer + 1}${those.length > 1 ? "" : `.${those[0][2] + 1}`}: “${textOf(columns(kind).from, query + columns(kind).ahead)}” → “${textOf(columns(kind).to, key)}” ${setTo(weight)} ×`,
            ),
          ),
        ),
      ),
      make(
        "div",
        { class: "scroll" },
        make(
          "table",
          {},
          make(
            "thead",
            {},
            make(
              "tr",
              {},
              make("th"),
              ["layer", ...columnsThere.map((part) => `residual, ${part}`)].map((text) =>
                make("th", { scope: "col" }, text),
              ),
            ),
          ),
          make("tbody", {}, rows),
        ),
      ),
    ),
    make(
      "p",
      { class: "actions" },
      host && isChanged()
        ? make(
            "button",
            {
              type: "button",
              click: () => {
                state.changes = unchanged();
                remember(true);
                show("flowing", "heads");
                breakIt();
              },
            },
            "Reset all",
          )
        : null,
      host && state.beside && !state.beside.same
        ? make(
            "button",
            {
              type: "button",
              click: () => {
                putBeside(null);
                show("broken");
                remember(true);
              },
            },
            `Remove ${state.beside.title}`,
          )
        : null,
      others.map(([each, i]) =>
        make("button", { type: "button", click: () => setBeside(i, true) }, `Compare with ${each.name}`),
      ),
    ),
  );
}
