// Break it.

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

let broke = 0; // wishes so far
let breaking = false;

/** Ask what the model says with its changes: one question at a time, and after it what was wished meanwhile. */
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
      if (number === broke) complain(error); // else what was wished meanwhile is asked
    }
  }
  breaking = false;
  parts.beside.classList.remove("waits");
  show("flowing");
  remember();
}

/** Set something beside the model as it is; or nothing. */
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

/** The weights that are set: those of all heads of a layer as one, [kind, layer, query, key, weight, each of them]. */
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
              ? on(`X added around ${part}, ${name}`, "residuals_off", [stack, layer, part])
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
    make("h2", {}, host ? "Break it" : "What is changed"),
    make(
      "p",
      { class: "note" },
      !host
        ? "What is off here, or set, is so in the changed model."
        : "Everything here is on. Switch something off, and the same model runs without it: did the answer need what it looked at? Heads have their switch in the pictures below; the weights of attention have handles above, under “Who looks at whom”.",
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
              { type: "button", title: "Switch it on again", click: () => toggle("heads_off", [kind, layer, head]) },
              `${KINDS[kind].name} ${layer + 1}.${head + 1} off ×`,
            ),
          ),
          weightsSet().map(([kind, layer, query, key, weight, those]) =>
            make(
              "button",
              { type: "button", title: "As it was", click: () => forgetWeights(those) },
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
              ["the layer", ...columnsThere.map((part) => `+ X, ${part}`)].map((text) =>
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
            "Everything on again",
          )
        : null,
      others.map(([each, i]) =>
        make("button", { type: "button", click: () => setBeside(i, true) }, `Set ${each.name} beside it`),
      ),
    ),
  );
}
