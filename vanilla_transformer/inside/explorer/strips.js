// Colour strips of vectors and attention matrices, painted on one canvas below the stage's drawing.

let inks = null; // colours of the current theme, as [red, green, blue]
const bitmaps = new WeakMap(); // rows of numbers -> their images, by width

function readInks() {
  const probe = make("span");
  frame.append(probe);
  const names = ["blue", "orange", "purple", "green", "soft", "paper", "ink"];
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    const [red, green, blue, ...more] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    // color-mix() is computed as color(srgb 0.9 0.9 0.9)
    return getComputedStyle(probe).color.startsWith("color(") ? [red, green, blue].map((x) => 255 * x) : [red, green, blue];
  };
  inks = Object.fromEntries(names.map((name) => [name, read(name)]));
  probe.remove();
}

const inkOf = (kind) => inks[KINDS[kind].color.match(/--(\w+)/)[1]];
const css = ([red, green, blue], alpha = 1) => `rgb(${red} ${green} ${blue} / ${alpha})`;

/** Return the index of the number with the largest magnitude that a pixel of a strip shows. */
function pixelIndex(row, pixel, pixels) {
  const from = Math.floor((pixel * row.length) / pixels),
    to = Math.max(from + 1, Math.floor(((pixel + 1) * row.length) / pixels));
  let best = from;
  for (let i = from + 1; i < to; i++) if (Math.abs(row[i]) > Math.abs(row[best])) best = i;
  return best;
}

/** Return an image of vectors, one pixel high each: blue for positive numbers, orange for negative ones. */
function strip(rows, pixels) {
  const key = `${pixels} ${inks.paper}`;
  if (!bitmaps.has(rows)) bitmaps.set(rows, new Map());
  const images = bitmaps.get(rows);
  if (images.has(key)) return images.get(key);
  const canvas = make("canvas", { width: pixels, height: rows.length }),
    context = canvas.getContext("2d"),
    image = context.createImageData(pixels, rows.length);
  let most = 1e-9;
  for (const row of rows) for (const value of row) most = Math.max(most, Math.abs(value ?? 0));
  rows.forEach((row, t) => {
    for (let x = 0; x < pixels; x++) {
      const value = (row[pixelIndex(row, x, pixels)] ?? 0) / most;
      image.data.set([...inks[value < 0 ? "orange" : "blue"], 255 * Math.abs(value) ** 0.7], 4 * (t * pixels + x));
    }
  });
  context.putImageData(image, 0, 0);
  images.set(key, canvas);
  return canvas;
}

/** Return how much of a column is shown in a lane, from 0 to 1, at the current moment of the film. */
function shownOf(column, lane) {
  if (state.revealed === Infinity) return 1;
  const { stack, answer, step } = phases()[state.phase];
  const parts = scene.columns.filter((each) => each.stack === column.stack && each.type !== "tokens");
  const start = (0.8 * parts.indexOf(column)) / parts.length;
  const after = (delay, length) => Math.min(1, Math.max(0, (state.progress - delay) / length));
  if (column.stack === "encoder" && growing()) {
    if (stack !== "encoder") return 1;
    return after(start + 0.12 * (lane / column.in.n), 0.14);
  }
  if (!growing()) return answer ? 1 : after(start + 0.12 * (lane / column.in.n), 0.14);
  if (stack === "encoder") return 0;
  const { query } = state.data.steps[step];
  if (lane !== query) return lane < query ? 1 : 0;
  return answer ? 1 : after(start, 0.16);
}

/** Paint the strips and matrices of the stage. */
function paintStage() {
  if (!scene?.canvas) return;
  if (!inks) readInks();
  const { canvas } = scene,
    ratio = devicePixelRatio || 1,
    context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, scene.width, scene.height);
  context.imageSmoothingEnabled = false;
  for (const column of scene.columns) {
    if (column.type === "strip") paintStrip(context, column, ratio);
    if (column.type === "matrix") paintMatrix(context, column, ratio);
  }
}

function paintStrip(context, column, ratio) {
  const { x, width, stack, part, step, pair } = column,
    band = column.in,
    layer = layerOn(stack),
    tall = LANE - 8;
  const pixels = Math.round(width * ratio);
  const draw = (name, top, height) => {
    const found = stepOf(stack, layer, part, name);
    const image = found && strip(vectorsOf(found), pixels);
    for (let lane = 0; lane < band.n; lane++) {
      const y = laneY(band, lane) - tall / 2 + top;
      context.globalAlpha = 1;
      context.fillStyle = css(inks.soft);
      context.fillRect(x, y, width, height);
      context.globalAlpha = shownOf(column, lane);
      if (image && context.globalAlpha && lane < image.height)
        context.drawImage(image, 0, lane, pixels, 1, x, y, width, height);
    }
  };
  if (pair) {
    draw(step, 0, tall / 2 - 0.5);
    draw(pair, tall / 2 + 0.5, tall / 2 - 0.5);
  } else draw(step, 0, tall);
  if (column.result) paintValues(context, column, ratio);
  context.globalAlpha = 1;
}

/** Paint the values V above the column of their weighted means: one row per key. */
function paintValues(context, column, ratio) {
  const { x, width, stack, part, kind } = column;
  const found = stepOf(stack, layerOn(stack), part, "values"),
    keys = keysOf(kind);
  context.globalAlpha = 1;
  context.fillStyle = css(inks.soft);
  context.fillRect(x, column.in.band, width, bandHeight());
  if (!found) return;
  const image = strip(vectorsOf(found), Math.round(width * ratio));
  for (let key = 0; key < keys; key++) {
    context.globalAlpha = keyShown(column, key);
    const height = bandHeight() / keys;
    context.drawImage(image, 0, key, image.width, 1, x, column.in.band + key * height, width, Math.max(1, height - 0.6));
  }
}

/** Return how much of a key and its value is shown: those of the encoder are there before the decoder runs. */
function keyShown(column, key) {
  if (column.kind === "cross") return state.revealed === Infinity || phases()[state.phase].stack !== "encoder" ? 1 : 0;
  const queries = scene.columns.find((each) => each.kind === column.kind && each.step === "queries");
  return shownOf(queries, key);
}

function paintMatrix(context, column, ratio) {
  const { x, width, stack, part, kind } = column,
    band = column.in,
    layer = layerOn(stack);
  const rows = rowsSeen(kind, layer),
    keys = rows[0].length,
    cell = width / keys,
    gap = cell > 9 ? 1.5 : cell > 5 ? 1 : 0;
  const color = inkOf(kind);
  for (let lane = 0; lane < band.n; lane++) {
    const y = laneY(band, lane) - LANE / 2 + 1.5;
    const shown = shownOf(column, lane);
    for (let key = 0; key < keys; key++) {
      const isSeen = sees(kind, lane, key);
      context.globalAlpha = isSeen ? 1 : 0.35;
      context.fillStyle = css(inks.soft);
      context.fillRect(x + key * cell, y, cell - gap, LANE - 3);
      // the row fills from left to right
      const filled = Math.min(1, Math.max(0, shown * (keys + 3) - key) / 3);
      if (!filled || !isSeen) continue;
      context.globalAlpha = filled * Math.sqrt(rows[lane][key] / 1000);
      context.fillStyle = css(color);
      context.fillRect(x + key * cell, y, cell - gap, LANE - 3);
    }
  }
  const found = stepOf(stack, layer, part, "keys");
  context.globalAlpha = 1;
  context.fillStyle = css(inks.soft);
  if (!found) return context.fillRect(x, band.band, width, bandHeight());
  // K transposed: one column per key
  const image = strip(vectorsOf(found), Math.round(bandHeight() * ratio));
  for (let key = 0; key < keys; key++) {
    context.globalAlpha = 1;
    context.fillRect(x + key * cell, band.band, cell - gap, bandHeight());
    context.globalAlpha = keyShown(column, key);
    context.save();
    context.translate(x + key * cell, band.band);
    context.transform(0, 1, 1, 0, 0, 0); // exchange x and y
    context.drawImage(image, 0, key, image.width, 1, 0, 0, bandHeight(), cell - gap);
    context.restore();
  }
  context.globalAlpha = 1;
}
