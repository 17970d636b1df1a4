// Handles for setting attention weights by hand.

let handles = null; // {group, of: id of the query and head, list}
const hint = note();
const STEP = 0.05; // weight change per press of an arrow key

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

/** Return the layer to show for a kind of attention; its stack may have fewer layers than the other stack. */
const layerSeen = (kind) => Math.min(state.layer, layersOf(kind) - 1);
const headsSeen = () =>
  state.head === "mean" ? Array.from({ length: state.data.model.heads }, (_, head) => head) : [state.head];

/** Return a query's weights, including those set by hand. */
function rowSeen(kind, query) {
  const layer = layerSeen(kind);
  const set = state.changes?.weights.filter((each) => each[0] === kind && each[1] === layer && each[3] === query);
  if (!set?.length || state.data !== state.own) return weights(kind)[query];
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
const rowsSeen = (kind) => weights(kind).map((_, query) => rowSeen(kind, query));

/** Return where a token's handle can be dragged: beside the token, at its attention arcs; `out` is the direction. */
function track(kind, key) {
  const { from, to } = columns(kind);
  const right = from !== to || from === "target";
  const out = right ? 1 : -1;
  return { out, x: geometry.x[to] + (right ? geometry.chip : 0) + 5 * out, y: geometry.y(key), length: geometry.track };
}

function setWeight(kind, query, key, weight) {
  if (isBusy()) return;
  const layer = layerSeen(kind),
    heads = headsSeen();
  const isOf = ([of, at, head, q]) => of === kind && at === layer && heads.includes(head) && q === query;
  const kept = state.changes.weights.filter((each) => !isOf(each) || each[4] !== key);
  // Weights sum to 1, and weights set earlier keep their values.
  const taken = (head) => total(kept.filter((each) => isOf(each) && each[2] === head).map((each) => each[5]));
  const left = 1 - Math.max(...heads.map(taken));
  const rounded = Math.round(100 * Math.min(left, Math.max(0, weight))) / 100;
  state.changes.weights = [
    ...kept,
    ...(weight === null ? [] : heads.map((head) => [kind, layer, head, query, key, rounded])),
  ];
  drawArcs();
  breakIt();
}

function drawHandles() {
  const free = host && state.data === state.own && !state.playing && state.revealed === Infinity;
  const of = free ? [...state.kinds].map((kind) => [kind, queryOf(kind)]).filter(([, query]) => query !== null) : [];
  const name = JSON.stringify([of, state.layer, state.head]);
  if (name !== handles.of) {
    handles.of = name;
    const keysOf = (kind, query) => [...weights(kind)[query].keys()].filter((key) => sees(kind, query, key));
    handles.list = of
      .filter((each) => keysOf(...each).length > 1) // a query with one visible key always has weight 1
      .flatMap((each) => keysOf(...each).map((key) => handle(...each, key)));
    fill(handles.group, handles.list.map(({ element }) => element));
    const strongest = handles.list.toSorted((a, b) => b.weight() - a.weight())[0];
    strongest?.element.setAttribute("tabindex", 0);
  }
  for (const each of handles.list) each.update();
  hint.textContent = handles.list.length
    ? `Drag a handle to set how much ${state.head === "mean" ? "all heads of this layer attend" : "this head attends"} to a token, or use the keys: ← → change the weight, ↑ ↓ choose another handle, Delete resets it. The other weights are rescaled to a sum of 1, and the model runs again.`
    : free
      ? "Click a token to see what it attends to, and to set its weights."
      : "";
}

/** Draw a slider next to an attended token. */
function handle(kind, query, key) {
  const { out, x, y, length } = track(kind, key);
  const { from, to, ahead } = columns(kind);
  const knob = make("circle", { class: "knob", cy: y, r: 5 });
  const reach = make("circle", { class: "reach", cy: y, r: 13 });
  const weight = () => rowSeen(kind, query)[key] / 1000;
  const layer = layerSeen(kind);
  const isSet = () =>
    state.changes.weights.some(
      ([of, at, head, q, k]) =>
        of === kind && at === layer && headsSeen().includes(head) && q === query && k === key,
    );
  const focus = (by) => {
    const other = handles.list[handles.list.findIndex((each) => each.element === element) + by]?.element;
    if (!other) return;
    element.setAttribute("tabindex", -1);
    other.setAttribute("tabindex", 0);
    other.focus();
  };
  const element = make(
    "g",
    {
      class: "handle",
      style: `--color:${KINDS[kind].color}`,
      tabindex: -1,
      role: "slider",
      "aria-label": `How much “${visible(tokens(from)[query + ahead].text)}” attends to token ${key + 1}, “${visible(tokens(to)[key].text)}”, ${KINDS[kind].name}, layer ${layer + 1}`,
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      pointerdown: (event) => {
        event.preventDefault();
        event.stopPropagation();
        drag(event);
      },
      click: (event) => event.stopPropagation(),
      keydown: (event) => {
        const by = { ArrowRight: STEP, ArrowLeft: -STEP, PageUp: 4 * STEP, PageDown: -4 * STEP }[event.key];
        if (by) setWeight(kind, query, key, weight() + by);
        else if (["Home", "End"].includes(event.key)) setWeight(kind, query, key, event.key === "End" ? 1 : 0);
        else if (["Delete", "Backspace"].includes(event.key)) setWeight(kind, query, key, null);
        else if (["ArrowUp", "ArrowDown"].includes(event.key)) focus(event.key === "ArrowDown" ? 1 : -1);
        else return;
        event.preventDefault();
      },
      dblclick: () => setWeight(kind, query, key, null),
    },
    make("line", { class: "rail", x1: x, x2: x + out * length, y1: y, y2: y }),
    knob,
    reach,
    make("title", {}),
  );

  /** Follow the pointer until it is released, keeping the same query. */
  function drag(begun) {
    const { ownerSVGElement: svg } = element;
    const follow = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      setWeight(kind, query, key, (out * (at.x - x)) / length);
    };
    const end = () => {
      removeEventListener("pointermove", follow);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
      state.dragging = false;
    };
    state.dragging = true;
    addEventListener("pointermove", follow);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
    element.focus({ preventScroll: true });
    if (begun.target === element.querySelector(".rail")) follow(begun);
  }

  const update = () => {
    const now = weight();
    for (const circle of [knob, reach]) circle.setAttribute("cx", x + out * length * now);
    element.classList.toggle("set", isSet());
    element.setAttribute("aria-valuenow", Math.round(100 * now));
    const told = isSet() ? setTo(now) : share(1000 * now);
    element.setAttribute("aria-valuetext", told);
    element.querySelector("title").textContent = told;
  };
  return { element, update, weight };
}
