// What the pointer or the keyboard finds on the stage: a number of a strip, or a cell of an attention matrix with the
// query and the key that it compares.

/** Return how far the area that can be clicked reaches beyond a column on either side. */
const marginOf = ({ type }) => (type === "matrix" ? 0 : compact ? 1.5 : 3);

/** Return the lane and the index along the row at a point of a column. */
function placeIn(column, event) {
  const box = event.currentTarget.getBoundingClientRect();
  const margin = (box.width * marginOf(column)) / (column.width + 2 * marginOf(column));
  const along = (size, from, length) => Math.min(size - 1, Math.max(0, Math.floor((size * from) / length)));
  return {
    lane: along(column.in.n, event.clientY - box.top, box.height),
    at: (size) => along(size, event.clientX - box.left - margin, box.width - 2 * margin),
  };
}

function overColumn(column, event) {
  const { lane, at } = placeIn(column, event);
  if (shownOf(column, lane) < 1) return leaveColumn();
  point({ column: columnOf(column.stack), index: lane + aheadOf(column.stack) });
  if (state.cell) return;
  if (column.type === "matrix") return showCell(column.kind, lane, at(keysOf(column.kind)));
  const step = stepOf(column.stack, layerOn(column.stack), column.part, column.step);
  if (!step) return;
  const rows = vectorsOf(step),
    pixels = Math.round(column.width * (devicePixelRatio || 1));
  const i = pixelIndex(rows[lane], at(pixels), pixels);
  const name = visible(lanesOf(column.stack)[lane].text);
  popUp(column, lane, [
    make("b", {}, `${capital(step.name)} of “${name}”`),
    make("p", {}, `number ${i + 1} of ${rows[lane].length}: ${decimals(rows[lane][i], 3)}`),
    note("Click to see the whole vector."),
  ]);
}

function leaveColumn() {
  point(null);
  if (!state.cell) scene.popover.hidden = true;
}

/** Place the popover beside a lane of a column, inside the stage. */
function popUp(column, lane, content, left = column.x + column.width + 10) {
  const { popover } = scene;
  popover.cell = null;
  fill(popover, content);
  popover.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = popover;
  const place = popover.parentElement.getBoundingClientRect(),
    origin = scene.canvas.getBoundingClientRect();
  const right = left + origin.left - place.left,
    x = right + width < place.width ? right : Math.max(0, Math.min(place.width, column.x + origin.left - place.left) - width - 10);
  const y = laneY(column.in, lane) + 0.8 * LANE;
  const isBelow = origin.top + y + height < innerHeight || y < height;
  Object.assign(popover.style, { left: `${x}px`, top: `${isBelow ? y : y - height - 1.6 * LANE}px` });
}

/** Return the head whose cell is explained: the chosen head, or the one that attends most to the key. */
function headFor(kind, query, key) {
  if (state.head !== "mean") return state.head;
  const heads = attention(kind).weights[layerSeen(kind)];
  return heads.reduce((best, rows, head) => (rows[query][key] > heads[best][query][key] ? head : best), 0);
}

/** Show how the weight of a cell comes about: the query and key, their products, the sum and the softmax. */
function showCell(kind, query, key) {
  const column = scene.columns.find((each) => each.kind === kind && each.type === "matrix");
  const { stack, part } = column,
    layer = layerOn(stack),
    head = headFor(kind, query, key);
  const [queries, keys] = ["queries", "keys"].map((name) => stepOf(stack, layer, part, name));
  const from = visible(lanesOf(stack)[query].text),
    to = visible(tokens(columns(kind).to)[key].text);
  const weight = rowSeen(kind, query)[key];
  const isPinned = Boolean(state.cell);
  const close = () => {
    state.cell = null;
    scene.popover.hidden = true;
    remember();
  };
  const isHidden = !sees(kind, query, key);
  popUp(
    column,
    query,
    [
      make(
        "header",
        {},
        isPinned ? cellChoices(kind, query, key) : make("b", {}, `“${from}” attends to “${to}”`),
        isPinned && button(icon("close"), close, { class: "round small", "aria-label": "Close" }),
      ),
      note(
        `${capital(KINDS[kind].name)}, layer ${layer + 1}, head ${head + 1}`,
        state.head === "mean" ? ", which attends most here" : "",
      ),
      queries && keys && products(queries.values[head][query], keys.values[head][key], attention(kind).weights[layer][head][query][key], isHidden),
      state.head === "mean" && make("p", {}, `Mean of all heads: ${share(weight)}`),
      host && isPinned && !isHidden && slider(kind, query, key, weight),
    ],
    column.x + column.width + 12,
  );
  scene.cursor.get(kind).move(query, key);
  scene.popover.cell = [kind, query, key]; // drawn again when the values of its layer arrive
}

/** Return a choice of the query and one of the key, because the cells of a matrix may be too small for a finger. */
function cellChoices(kind, query, key) {
  const choose = (i, label, list, chosen, pin) => {
    const change = ({ target }) => {
      pin(Number(target.value));
      scene.popover.querySelectorAll("select")[i].focus({ preventScroll: true });
    };
    const options = list.map(({ text }, n) => make("option", { value: n, selected: n === chosen }, visible(text)));
    return make("select", { "aria-label": label, change }, options);
  };
  const keys = tokens(columns(kind).to).slice(0, keysOf(kind));
  return make(
    "div",
    {},
    choose(0, "Query", lanesOf(stackWith(kind)), query, (other) => pinAt(kind, other, key)),
    " attends to ",
    choose(1, "Key", keys, key, (other) => pinAt(kind, query, other)),
  );
}

/** Draw a query and a key side by side, their products, and the steps from the sum to the weight. */
function products(query, key, weight, isHidden) {
  const each = [...query].map((value, i) => value * key[i]);
  const sum = total(each),
    { d_k } = state.data.model;
  const isScaled = !state.data.changes?.scaling_off;
  const row = (name, values) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${name}: ${values.length} numbers` });
    paintMap(canvas, [values]);
    return make("div", { class: "vector" }, make("span", {}, name), canvas);
  };
  return [
    row("q", [...query]),
    row("k", [...key]),
    row("q × k", each),
    make(
      "p",
      { class: "sum" },
      "sum ",
      make("b", {}, decimals(sum, 2)),
      isScaled && [` ÷ √${d_k} = `, make("b", {}, decimals(sum / Math.sqrt(d_k), 2))],
      isHidden ? ", hidden by the mask" : [" → softmax → ", make("b", {}, share(weight))],
    ),
  ];
}

/** Create a slider that sets a weight by hand. */
function slider(kind, query, key, weight) {
  const isSet = weightsOf(kind, query).some((each) => each[4] === key);
  const output = make("output", {}, isSet ? setTo(weight / 1000) : share(weight));
  const input = make("input", {
    type: "range",
    min: 0,
    max: 100,
    value: Math.round(weight / 10),
    "aria-label": "Set this attention weight by hand",
    input: () => {
      setWeight(kind, query, key, input.value / 100);
      output.textContent = setTo(rowSeen(kind, query)[key] / 1000);
      again.disabled = false;
    },
    change: () => (input.value = Math.round(rowSeen(kind, query)[key] / 10)), // other set weights limit it
  });
  const reset = () => {
    setWeight(kind, query, key, null);
    showCell(kind, query, key);
    scene.popover.querySelector(".slider input").focus({ preventScroll: true });
  };
  const again = button("Reset", reset, { class: "reset", disabled: !isSet });
  return make(
    "div",
    { class: "slider" },
    make("span", {}, state.head === "mean" ? "Set it in all heads" : "Set it by hand"),
    input,
    output,
    again,
  );
}

function pinCell(column, event) {
  const { lane, at } = placeIn(column, event);
  pause();
  pinAt(column.kind, lane, at(keysOf(column.kind)));
}

/** Keep a cell open. */
function pinAt(kind, query, key) {
  state.cell = [kind, query, key];
  state.kinds = new Set([kind]);
  lookAt(kind === "cross" ? "decoder" : kind, query);
  show("staging", "output", "lensing", "card");
  showCell(kind, query, key);
  remember();
}

/** Create the mark around the current cell of a matrix, which the arrow keys move. */
function matrixCursor(column) {
  const { kind, x, width } = column,
    keys = keysOf(kind);
  let [query, key] = [0, 0];
  const mark = make("rect", {
    class: "cursor",
    width: width / keys,
    height: LANE,
    rx: 3,
    tabindex: 0,
    role: "button",
    focus: () => !state.cell && look(),
    blur: () => leaveColumn(),
    click: () => pinAt(kind, query, key), // sent by screen readers
    keydown: (event) => {
      const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (by) {
        state.cell = null;
        query = Math.min(column.in.n - 1, Math.max(0, query + by[0]));
        key = Math.min(keys - 1, Math.max(0, key + by[1]));
        look();
      } else if (["Enter", " "].includes(event.key)) pinAt(kind, query, key);
      else if (event.key === "Escape") {
        state.cell = null;
        leaveColumn();
      } else return;
      event.preventDefault();
    },
  });
  const move = (toQuery, toKey) => {
    [query, key] = [toQuery, toKey];
    mark.setAttribute("x", x + (key * width) / keys);
    mark.setAttribute("y", laneY(column.in, query) - LANE / 2);
    const from = visible(lanesOf(column.stack)[query].text);
    const to = visible(tokens(columns(kind).to)[key].text);
    mark.setAttribute("aria-label", `${capital(KINDS[kind].name)}: “${from}” attends to “${to}”, ${share(rowSeen(kind, query)[key])}`);
  };
  const look = () => {
    move(query, key);
    point({ column: columnOf(column.stack), index: query + aheadOf(column.stack) });
    showCell(kind, query, key);
  };
  scene.cursor.set(kind, { move });
  move(0, 0);
  return mark;
}
