// The layout of the stage: which parts of the model are drawn, and where.

const LANE = 24; // height of a lane, large enough for a finger
let compact = false; // whether the screen is as narrow as a phone
const tokenWidth = () => (compact ? 46 : 70);
const nextWidth = () => (compact ? 52 : 90);
/** Return the height of the keys and values, which are drawn above the attention matrix and its result. */
const bandHeight = () => (compact ? 26 : 54);

/** Return the column whose tokens a stack reads. */
const columnOf = (stack) => (twoStacks() && stack === "decoder" ? "target" : "source");
/** Return 1 if the attention of a lane belongs to the next token, which the lane predicts. */
const aheadOf = (stack) => (stack === "decoder" ? 1 : 0);

/** Return the tokens that a stack reads, one per lane. The last token of a translation is written, but not read. */
const lanesOf = (stack) => (columnOf(stack) === "target" ? state.data.target.slice(0, -1) : state.data.source);

/** Return the lane of a stack that is looked at; null if there is none. */
function laneSeen(stack) {
  const token = looking();
  if (!token || token.column !== columnOf(stack)) return null;
  const lane = token.index - aheadOf(stack);
  return lane >= 0 && lane < lanesOf(stack).length ? lane : null;
}

/** Look at a lane: at its prediction if it makes one. */
function lookAt(stack, lane) {
  const column = columnOf(stack),
    index = lane + aheadOf(stack);
  const step = state.data.steps.findIndex((each) => each.token === index && column === answers());
  Object.assign(state, step >= 0 ? { step, pinned: null } : { pinned: { column, index } }, { hover: null });
}

/** Return the layer of a stack to show. In the film, the encoder stays at its last layer while the decoder runs. */
function layerOn(stack) {
  const layers = state.data.model.stacks[stack];
  const now = phases()[state.phase];
  if (state.revealed !== Infinity && stack === "encoder" && now.stack !== "encoder") return layers - 1;
  return state.layers[stack];
}

/**
 * Return the parts of one layer of a stack from left to right, between its input and its output. A part is a column
 * of the stage: "strip" (a vector per lane) or "matrix" (attention weights), with the step that it shows.
 */
function partsOf(stack) {
  const pre = state.data.model.norm === "pre";
  const strip = (part, step, label, more = {}) => ({ type: "strip", stack, part, step, label, ...more });
  const sublayer = (part, inner) => [
    pre && strip(part, "layer norm", "Norm"),
    inner,
    strip(part, pre ? "residual" : "layer norm", pre ? "+" : "+ Norm", { adds: true }),
  ];
  const attends = (part, kind) =>
    sublayer(part, [
      strip(part, "queries", "Q", { kind, heads: true }),
      { type: "matrix", stack, part, step: "weights", label: "A", kind },
      strip(part, "heads", "A V", { kind, heads: true, result: true }),
    ]);
  return [
    attends("self-attention", stack),
    stack === "decoder" && twoStacks() && attends("cross-attention", "cross"),
    sublayer("feed-forward", strip("feed-forward", "activation", "ReLU", { wide: true })),
  ]
    .flat(Infinity)
    .filter(Boolean);
}

/** Return the columns of a band of the stage. A band is a stack, or on a narrow screen, part of one. */
function bandOf(stack, parts, isFirst, isLast) {
  const strip = (part, step, label, more) => ({ type: "strip", stack, part, step, label, ...more });
  const pre = state.data.model.norm === "pre";
  return [
    { type: "tokens", stack },
    isFirst && strip("embedding", "embeddings", compact ? "E" : "E + P", { pair: "positions" }),
    isFirst && strip("embedding", "layer input", "X", { frame: true }),
    parts.map((each) => ({ ...each, frame: true })),
    isLast && (pre || (twoStacks() && stack === "encoder")) && strip("output", "stack output", pre ? "Norm" : "Z"),
    isLast && stack === Object.keys(state.data.model.stacks).at(-1) && { type: "next", stack },
  ]
    .flat()
    .filter(Boolean);
}

const keysOf = (kind) => weights(kind, 0, 0)[0].length;
/** Return the space before a column; wider where lines run between the columns. */
function gapBefore({ type, adds, frame, step, part }, i) {
  if (i === 0) return 0;
  const isWide = type === "next" || step === "layer input" || step === "queries" || (!frame && part === "output");
  return (isWide ? 18 : adds ? 10 : 7) * (compact ? 0.5 : 1);
}
function columnWidth({ type, kind, wide }, stripWidth, cell) {
  if (type === "tokens") return tokenWidth();
  if (type === "next") return nextWidth();
  if (type === "matrix") return Math.max(compact ? 20 : 30, keysOf(kind) * cell);
  return wide ? Math.round(stripWidth * 1.3) : stripWidth;
}
const widthOf = (columns, stripWidth, cell) =>
  columns.reduce((sum, column, i) => sum + gapBefore(column, i) + columnWidth(column, stripWidth, cell), 0);

/** Place all columns in `room` pixels: the stacks side by side if they fit, otherwise one below the other. */
function layOut(room) {
  compact = room < 480;
  const stacks = Object.keys(state.data.model.stacks);
  const whole = stacks.map((stack) => bandOf(stack, partsOf(stack), true, true));
  const PAD = compact ? 5 : 14,
    BETWEEN = 22;
  const sizes = Array.from({ length: 37 }, (_, i) => [44 - i, Math.max(3, 26 - 0.75 * i)]); // strip and cell, largest first
  /** Cut a stack after its self-attention if it does not fit. */
  const split = stacks.flatMap((stack, i) => {
    if (widthOf(whole[i], ...sizes.at(-1)) + 2 * PAD <= room) return [whole[i]];
    const parts = partsOf(stack);
    const cut = parts.findIndex(({ part }) => part !== "self-attention");
    return [bandOf(stack, parts.slice(0, cut), true, false), bandOf(stack, parts.slice(cut), false, true)];
  });
  const sizeFor = (rows, least) =>
    sizes.slice(0, least).find(([strip, cell]) =>
      rows.every(
        (bands) =>
          bands.reduce((sum, columns) => sum + widthOf(columns, strip, cell) + 2 * PAD, BETWEEN * (bands.length - 1)) <=
          room,
      ),
    );
  const { focus } = state;
  const only = focus && partsOf(focus[0]).filter(({ part }) => part === focus[1]);
  const alone = focus && [bandOf(focus[0], only, focus[1] === "embedding", focus[1] === "output")];
  const choices = [
    ...(focus ? [[[alone], 33]] : []),
    [[whole], 26],
    [whole.map((band) => [band]), compact ? 37 : 26],
    [split.map((band) => [band]), 33],
  ];
  const [rows, [strip, cell]] = choices
    .map(([rows, least], i) => [rows, sizeFor(rows, least) ?? (i === choices.length - 1 ? sizes.at(-1) : null)])
    .find(([, size]) => size);
  const made = { columns: [], bands: [], strip };
  let top = 0;
  for (const bands of rows) {
    let x = 0;
    let tallest = 0;
    for (const columns of bands) {
      const { stack } = columns[0];
      const lanes = lanesOf(stack).length;
      const cable = Math.min(24, 8 + 1.6 * Math.max(...columns.map(({ kind }) => (kind ? keysOf(kind) : 0))));
      const band = { stack, x, top, cable: top + 30, band: top + 30 + cable, columns: [] };
      const above = columns.some(({ kind }) => kind) ? bandHeight() : 0; // room for keys and values
      Object.assign(band, { lanes: band.band + above + 22, n: lanes });
      let at = x + PAD;
      columns.forEach((column, i) => {
        at += gapBefore(column, i);
        const width = columnWidth(column, strip, cell);
        const placed = { ...column, x: at, width, in: band };
        band.columns.push(placed);
        made.columns.push(placed);
        at += width;
      });
      band.width = at + PAD - x;
      band.bottom = band.lanes + lanes * LANE + 30;
      made.bands.push(band);
      tallest = Math.max(tallest, band.bottom);
      x += band.width + BETWEEN;
    }
    made.width = Math.max(made.width ?? 0, x - BETWEEN);
    top = tallest + (compact ? 12 : 26);
  }
  return Object.assign(made, { height: Math.max(...made.bands.map(({ bottom }) => bottom)) + 8 });
}

/** Return the middle of a lane. */
const laneY = (band, lane) => band.lanes + (lane + 0.5) * LANE;
