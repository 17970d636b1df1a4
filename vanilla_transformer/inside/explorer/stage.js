// The stage: Figure 1 of the paper with this model's numbers, drawn along the flow of the data. Each token is a lane.

let scene = null; // the layout (layout.js), the canvas, and elements that change

function drawStage() {
  const room = Math.max(320, parts.stage.clientWidth || 1060);
  const ratio = devicePixelRatio || 1;
  scene = layOut(room);
  const { width, height } = scene;
  const canvas = make("canvas", { width: width * ratio, height: height * ratio, "aria-hidden": "true" });
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  Object.assign(scene, { canvas, room, lit: [], lines: [], tokens: [], rows: [], openers: [], cursor: new Map() });
  const back = make("svg", { ...size, "aria-hidden": "true" }, scene.bands.map(drawBand), drawCables());
  const front = make(
    "svg",
    { ...size, role: "group", "aria-label": "The model: each row is a token, and the data flow from left to right" },
    scene.bands.map(drawLanes),
    scene.columns.map(drawColumn),
  );
  const popover = make("div", { class: "cell-card", hidden: true });
  scene.popover = popover;
  fill(
    parts.stage,
    drawChoices(),
    make(
      "div",
      { class: "scene-place" },
      make(
        "div",
        { class: "scroll" },
        make("div", { class: "scene", style: `width:${width}px;height:${height}px` }, back, canvas, front),
      ),
      popover,
    ),
    bytesNote(),
    table("Attention weights as a table", weightTables),
  );
  updateStage();
}

/** Draw the controls for the layer and the head. */
function drawChoices() {
  scene.pressed = [];
  const pick = (label, choices, value, set) => {
    const group = segments(label, choices, (chosen) => {
      pause();
      set(chosen);
      chose();
    });
    group.querySelectorAll("button").forEach((each, i) => scene.pressed.push([each, () => value() === choices[i][0]]));
    return group;
  };
  const { model, name } = state.data;
  const numbered = (length) => Array.from({ length }, (_, i) => [i, String(i + 1)]);
  const heads = [["mean", "all"], ...numbered(model.heads)];
  const layersOfStack = ([stack, count]) => {
    const label = twoStacks() ? `${capital(stack)} layer` : "Layer";
    return pick(label, numbered(count), () => state.layers[stack], (layer) => showLayer(stack, layer));
  };
  return make(
    "header",
    { class: "choices" },
    make("h2", {}, name ? `The model: ${name}` : "The model"),
    note(`${plural(model.parameters, "parameter")}, ${plural(model.heads, "head")}, ${model.norm}-norm`),
    Object.entries(model.stacks).map(layersOfStack),
    pick("Head", heads, () => state.head, (head) => (state.head = head)),
  );
}

function showLayer(stack, layer) {
  state.layers = { ...state.layers, [stack]: layer };
}

/** Redraw after a different layer, head or kind of attention is selected. */
function chose() {
  state.revealed = Infinity;
  state.phase = phases().length - 1;
  show("player", "staging", "card", "heading", "output", "beside");
  remember();
}

/** Draw what lies behind the strips: the frame of the layers, the lanes and the residual connections. */
function drawBand(band) {
  const { stack, n } = band;
  const layers = state.data.model.stacks[stack];
  const inside = band.columns.filter(({ frame }) => frame);
  const [first, last] = [inside[0], inside.at(-1)];
  const frameAt = { x: first.x - 10, y: band.top + 22, width: last.x + last.width - first.x + 20, height: band.bottom - band.top - 22 };
  const sheets = Array.from({ length: Math.min(layers, 4) }, (_, i) => i).toReversed();
  const start = band.columns[0].x + tokenWidth();
  const end = band.columns.at(-1).x + (band.columns.at(-1).type === "next" ? 0 : band.columns.at(-1).width);
  const lanes = Array.from({ length: n }, (_, lane) =>
    make("line", { class: "lane", x1: start, x2: end, y1: laneY(band, lane), y2: laneY(band, lane) }),
  );
  const title = make("text", { class: "small", x: frameAt.x + 2, y: band.top + 13 });
  scene.lit.push(() => (title.textContent = `${capital(stack)}, layer ${layerOn(stack) + 1} of ${layers}`));
  return make(
    "g",
    {},
    sheets.map((i) =>
      make("rect", { class: "frame", ...frameAt, x: frameAt.x + 3 * i, y: frameAt.y - 3 * i, rx: 12 }),
    ),
    lanes,
    title,
    band.columns.filter(({ adds }) => adds).map((column) => residual(band, column)),
  );
}

/** Draw the residual connection that ends in a column: the input of its sub-layer is added to the output. */
function residual(band, column) {
  const at = band.columns.indexOf(column);
  const from = band.columns.slice(0, at).findLast(({ adds, step, type }) => adds || step === "layer input" || type === "tokens");
  const y = band.lanes + band.n * LANE + 3,
    low = y + 14,
    x1 = from.x + from.width / 2,
    x2 = column.x + column.width / 2;
  return make(
    "g",
    { class: "residual" },
    make("path", { d: `M ${x1} ${y} V ${low - 7} Q ${x1} ${low} ${x1 + 7} ${low} H ${x2 - 7} Q ${x2} ${low} ${x2} ${low - 7} V ${y + 2}` }),
    make("path", { d: `M ${x2 - 3} ${y + 5} L ${x2} ${y + 1} L ${x2 + 3} ${y + 5}` }),
    make("title", {}, "Residual connection: the input is added to the output"),
  );
}

/** Draw the lines that carry keys and values from their tokens to each attention matrix, over the lanes. */
function drawCables() {
  return scene.columns
    .filter(({ type, kind }) => type === "matrix" && (kind !== "cross" || scene.bands.length > 1))
    .map((matrix) => {
      const { kind } = matrix,
        band = matrix.in;
      const isCross = kind === "cross";
      const from = isCross ? scene.bands.findLast(({ stack }) => stack === "encoder") : band;
      const queries = band.columns.find((each) => each.kind === kind && each.step === "queries");
      const start = isCross ? from.columns.at(-1) : band.columns[band.columns.indexOf(queries) - 1];
      const result = band.columns.find((each) => each.kind === kind && each.result);
      const keys = keysOf(kind),
        cell = matrix.width / keys,
        x1 = start.x + start.width;
      const step = Math.min(1.6, 16 / keys);
      return make(
        "g",
        { class: "cable", style: `--color:${KINDS[kind].color}` },
        Array.from({ length: keys }, (_, key) => {
          const y1 = laneY(from, key),
            x2 = matrix.x + (key + 0.5) * cell,
            rise = x1 + 3 + (isCross ? 12 + key * step : key * Math.min(step, 12 / keys)),
            top = band.cable + 4 + key * step;
          const beside = from === band || from.top === band.top; // otherwise, the encoder is drawn above
          const d = beside
            ? `M ${x1} ${y1} H ${rise - 2} Q ${rise} ${y1} ${rise} ${y1 - 3} V ${top + 5} Q ${rise} ${top} ${rise + 5} ${top} H ${x2 - 4} Q ${x2} ${top} ${x2} ${top + 4} V ${band.band - 1}`
            : `M ${x1} ${y1} H ${rise - 2} Q ${rise} ${y1} ${rise} ${y1 + 3} V ${top - 5} Q ${rise} ${top} ${rise - 5} ${top} H ${x2 + 4} Q ${x2} ${top} ${x2} ${top + 4} V ${band.band - 1}`;
          const line = make("path", { d });
          scene.lines.push([line, kind, key]);
          return line;
        }),
        make("path", {
          class: "ribbon",
          d: `M ${matrix.x + matrix.width} ${band.cable + 4 + keys * step} H ${result.x + result.width / 2 - 6} q 6 0 6 6 V ${band.band - 2}`,
        }),
      );
    });
}

/** Draw a row for each token of a band: pointing at it shows what it attends to. */
function drawLanes(band) {
  const { stack, x, width } = band;
  const column = columnOf(stack),
    ahead = aheadOf(stack);
  return lanesOf(stack).map((token, lane) => {
    const index = lane + ahead;
    const row = make("rect", {
      class: "lane-row",
      x: x + 4,
      width: width - 8,
      y: laneY(band, lane) - LANE / 2,
      height: LANE,
      rx: 6,
    });
    scene.rows.push([row, stack, lane]);
    return make("g", {}, row, tokenAt(band, token, lane, column, index));
  });
}

/** Draw the token of a lane as a button that selects the lane. */
function tokenAt(band, token, lane, column, index) {
  const { x } = band.columns[0],
    y = laneY(band, lane),
    name = visible(token.text);
  const step = state.data.steps.findIndex((each) => each.token === index && column === answers());
  const over = (on) => () => point(on ? { column, index } : null);
  const choose = () => {
    pause();
    lookAt(band.stack, lane);
    show("staging", "output", "lensing", "card");
    remember();
  };
  const begins = lane === 0 || token.text.startsWith(" ") || state.data[column][lane - 1]?.special;
  const tag = task() === "tag" && step >= 0 && begins ? state.data.steps[step].text.replace(/^O$/, "") : "";
  const tint = make("rect", { class: "tint", x, y: y - LANE / 2 + 2, width: tokenWidth(), height: LANE - 4, rx: 6 });
  const element = make(
    "g",
    {
      class: `token${token.special ? " special" : ""}`,
      role: "button",
      "aria-label": [`Token ${lane + 1}`, name, tag].filter(Boolean).join(", "),
      tabindex: -1,
      pointerenter: over(true),
      pointerleave: over(false),
      focus: over(true),
      blur: over(false),
      click: choose,
      keydown: (event) => {
        const inBand = scene.tokens.filter((each) => each.band === band).map((each) => each.element);
        rove(event, inBand, choose);
      },
    },
    tint,
    make("rect", { class: "back", x, y: y - LANE / 2 + 2, width: tokenWidth(), height: LANE - 4, rx: 6 }),
    make("text", { x: x + 8, y: y + 4.5 }, shortened(name, compact ? 6 : 9), make("title", {}, JSON.stringify(token.text))),
    hitArea(x, y, tokenWidth()),
  );
  scene.tokens.push({ element, tint, band, column, index, lane, stack: band.stack, of: columnOf(band.stack) });
  return element;
}

/** Draw the area of a lane that can be clicked, which is higher than what is seen. */
const hitArea = (x, y, width) =>
  make("rect", { class: "hit", x, y: y - LANE / 2, width, height: LANE });

/** Show what a token attends to while it is pointed at. */
function point(token) {
  if (state.playing) return;
  state.hover = token;
  updateStage();
}

/** Draw the labels of a column, and the area that can be clicked; tokens are drawn by their lanes. */
function drawColumn(column) {
  const { type, x, width, label, stack, part, step, kind, result } = column,
    band = column.in;
  if (type === "tokens") return compact ? null : make("text", { class: "small", x: x + 4, y: band.lanes - 8 }, stack === "decoder" && twoStacks() ? "written" : "tokens");
  if (type === "next") return drawNext(column);
  const middle = x + width / 2;
  /** Draw a button that opens a step of the column. */
  const opens = (name, text, bottom, height) => {
    const open = () => openCard([stack, layerOn(stack), part, nameIn(layerOn(stack), name)]);
    return opener(`${capital(name)}, ${part}, ${stack}`, text, middle, width, bottom, open, height);
  };
  const area = make("rect", {
    class: "area",
    x: x - marginOf(column),
    width: width + 2 * marginOf(column),
    y: band.lanes,
    height: band.n * LANE,
    pointermove: (event) => overColumn(column, event),
    pointerleave: () => leaveColumn(),
    click: (event) => (type === "matrix" ? pinCell(column, event) : openStrip(column, event)),
  });
  const above = (name) => opens(name, "", band.band + bandHeight(), bandHeight());
  const text = width < 20 ? label.replace("Norm", "N").replace("ReLU", "R").replaceAll(" ", "") : label;
  return make(
    "g",
    {},
    opens(step, text, band.lanes + 1),
    type === "matrix" && [
      make("text", { class: "tiny", x: x - 4, y: band.band + bandHeight() / 2 + 4, "text-anchor": "end" }, "Kᵀ"),
      above("keys"),
    ],
    result && [above("values"), make("text", { class: "tiny", x: x + width + 3, y: band.band + bandHeight() / 2 + 4 }, "V")],
    area,
    type === "matrix" && matrixCursor(column),
    kind && type === "matrix" && make("text", { class: "sublayer", x, y: band.cable - 4, style: `fill:${KINDS[kind].color}` }, shortKind(kind)),
    part === "feed-forward" && step === "activation" && feedForwardTitle(column),
  );
}

/** Draw a button above a column; the arrow keys move between these buttons. */
function opener(name, text, middle, width, bottom, open, height = 24) {
  const wide = Math.max(compact ? scene.strip + 3 : 24, width);
  const element = make(
    "g",
    {
      class: "opener",
      role: "button",
      tabindex: scene.openers.length ? -1 : 0,
      "aria-label": `${name}: open`,
      click: open,
      keydown: (event) => rove(event, scene.openers, open),
    },
    make("rect", { x: middle - wide / 2, y: bottom - height, width: wide, height, rx: 5 }),
    make("title", {}, name),
    make("text", { x: middle, y: bottom - 8, "text-anchor": "middle" }, text),
  );
  scene.openers.push(element);
  return element;
}

/** Draw the title of the feed-forward network, unless that of the attention before it needs the room. */
function feedForwardTitle({ x, width, in: band }) {
  const right = x + width + 40,
    matrix = band.columns.findLast(({ type }) => type === "matrix");
  if (matrix && right - matrix.x < 90 + 7.2 * shortKind(matrix.kind).length) return null;
  return make("text", { class: "sublayer", x: right, y: band.cable - 4, "text-anchor": "end" }, "feed-forward");
}

const shortKind = (kind) => {
  const name = { encoder: "self-attention", decoder: "masked self-attention", cross: "cross-attention" }[kind];
  return compact ? name.replace(/.self-attention|-attention/, "") : name;
};

/** Draw the predictions at the end of the lanes. */
function drawNext(column) {
  const { x, width, stack } = column,
    band = column.in;
  const text = !growing() ? "output" : compact ? "next" : "next token";
  const hasLogits = ["translate", "generate", "fill"].includes(task());
  const id = [stack, state.data.model.stacks[stack] - 1, "output", "logits"];
  const title = hasLogits
    ? opener("Logits and softmax", text, x + width / 2, width, band.lanes + 1, () => openCard(id))
    : make("text", { class: "small", x: x + 4, y: band.lanes - 8 }, text);
  const { steps } = state.data;
  const list = steps.map((step, i) => {
    const lane = step.query ?? (task() === "answer" ? step.token : 0);
    const y = laneY(band, lane);
    const text = shortened(visible(step.text), compact ? 7 : 11);
    const choose = () => {
      pause();
      Object.assign(state, { step: i, hover: null, pinned: null });
      show("staging", "output", "lensing", "card");
      remember();
    };
    const bar = make("rect", { class: "chance", x, y: y - LANE / 2 + 2, width: width * Math.min(1, Math.max(0, step.p)), height: LANE - 4, rx: 6 });
    const element = make(
      "g",
      { class: "next", click: choose },
      make("rect", { class: "back", x, y: y - LANE / 2 + 2, width, height: LANE - 4, rx: 6 }),
      bar,
      make("text", { x: x + 8, y: y + 4.5 }, text, make("title", {}, `${visible(step.text)}: ${percent(step.p)}`)),
      hitArea(x, y, width),
    );
    scene.lit.push(() => {
      const shown = nextShown(i);
      element.classList.toggle("away", shown === 0);
      bar.style.width = `${width * shown * Math.min(1, Math.max(0, step.p))}px`;
      element.classList.toggle("now", state.step === i && shown > 0);
    });
    return element;
  });
  return make("g", {}, title, list);
}

/** Return how much of a prediction is shown: none before its softmax. */
function nextShown(i) {
  if (state.revealed === Infinity) return 1;
  const { answer, step } = phases()[state.phase];
  if (!growing()) return answer ? 1 : 0;
  return i < firstWritten() || i < step ? 1 : answer && i === step ? 1 : 0;
}

/** Update all that depends on the token looked at, the layer, the head or the moment of the film. */
function updateStage() {
  if (!scene) return;
  for (const [button, isPressed] of scene.pressed) button.setAttribute("aria-pressed", String(isPressed()));
  for (const update of scene.lit) update();
  parts.stage.querySelector(".table").renew();
  const seen = new Map(); // "column index" -> {weight, kind} of the tokens attended to
  for (const { kind } of state.data.attention) {
    const stack = kind === "cross" ? "decoder" : kind;
    const lane = laneSeen(stack);
    const column = scene.columns.find((each) => each.kind === kind && each.type === "matrix");
    const isOn = column && lane !== null && shownOf(column, lane) > 0.3;
    const row = isOn ? rowSeen(kind, lane) : null;
    for (const [line, of, key] of scene.lines) {
      if (of !== kind) continue;
      const weight = row ? row[key] / 1000 : 0;
      line.style.strokeWidth = 0.7 + 3.2 * weight;
      line.style.strokeOpacity = (row ? 0.8 * weight : 0) + Math.min(0.3, 2 / keysOf(kind));
    }
    row?.forEach((weight, key) => {
      const name = `${columns(kind).to} ${key}`;
      if (weight > (seen.get(name)?.weight ?? 0)) seen.set(name, { weight, kind });
    });
  }
  for (const [row, stack, lane] of scene.rows) row.classList.toggle("seen", laneSeen(stack) === lane);
  const first = new Set();
  for (const { element, tint, band, lane, of, stack } of scene.tokens) {
    const found = seen.get(`${of} ${lane}`);
    if (found) tint.style.fill = KINDS[found.kind].color; // keep the colour while it fades
    tint.style.fillOpacity = found ? (0.5 * found.weight) / 1000 : 0;
    const isAway = tokenAway(stack, lane);
    element.classList.toggle("away", isAway);
    element.setAttribute("aria-hidden", String(isAway));
    const isFirst = !first.has(band) && !isAway;
    if (isFirst) first.add(band);
    element.setAttribute("tabindex", isFirst ? 0 : -1);
    element.classList.toggle("looks", laneSeen(stack) === lane);
  }
  paintStage();
}

/** Whether a token of the decoder has not been written yet. */
function tokenAway(stack, lane) {
  if (state.revealed === Infinity || stack === "encoder") return false;
  const { stack: running, step } = phases()[state.phase];
  if (running === "encoder") return lane > 0;
  return lane > state.data.steps[step].query;
}

/** Return a note that explains tokens shown as bytes, if there are any. */
function bytesNote() {
  const part = [...state.data.source, ...(state.data.target ?? [])].find((token) => token.bytes);
  if (!part) return null;
  return note(
    `Tokens such as ${part.text} are single bytes: the vocabulary has no token for their character, which was rare or missing in the training data.`,
  );
}

/** Return the attention weights of one kind as a table. */
function weightTable(kind, data, caption, rows = weights(kind, layerSeen(kind), state.head, data)) {
  const { from, to, ahead } = columns(kind);
  return grid(
    `${caption}: rows attend to columns`,
    ["", ...rows[0].map((_, key) => visible(tokens(to, data)[key].text))],
    rows.map((row, query) => [
      visible(tokens(from, data)[query + ahead].text),
      ...row.map((weight, key) => (sees(kind, query, key, data) ? share(weight) : "0")),
    ]),
  );
}

const weightTables = () =>
  [...state.kinds].map((kind) => {
    const head = state.head === "mean" ? "mean of all heads" : `head ${state.head + 1}`;
    return weightTable(kind, state.data, `${capital(KINDS[kind].name)}, layer ${layerSeen(kind) + 1}, ${head}`, rowsSeen(kind));
  });

new ResizeObserver(() => {
  if (scene && state.data && Math.abs(scene.room - Math.max(320, parts.stage.clientWidth)) > 4) drawStage();
}).observe(parts.stage);
