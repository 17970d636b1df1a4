// The map: Figure 1 of the paper with this model's layers and heads.

function drawMap() {
  const { stacks, heads, norm, positions, regression } = state.data.model;
  const names = Object.keys(stacks);
  const classes = regression ? "linear" : "classes";
  const output = { classify: classes, tag: classes, answer: "start, end" }[task()] ?? "linear + softmax";
  const wide = 158,
    gap = 26,
    left = 4;
  const rows = {
    encoder: [["self-attention", "encoder"], ["feed-forward"]],
    decoder: [
      ["self-attention", "decoder"],
      ...(twoStacks() ? [["cross-attention", "cross"]] : []),
      ["feed-forward"],
    ],
  };
  const blockOf = (name) => rows[name].length * 25 + 16;
  const tallest = Math.max(...names.map((name) => blockOf(name) * stacks[name]));
  const height = tallest + 176,
    width = names.length * wide + (names.length - 1) * gap + 2 * left;
  const bottom = height - 76;
  const items = [];
  mapped = { lit: [], boxes: [], dots: [] };

  /** Draw a box that opens on click. */
  const box = (x, y, w, h, label, id, extra, isLit = () => false, color = "var(--ink)") => {
    const open = async () => {
      if (await openBox(id)) remember(true);
    };
    const element = make(
      "g",
      {
        class: "box",
        style: `--color:${color}`,
        tabindex: 0,
        role: "button",
        "aria-label": `${label}, ${id[0]} layer ${id[1] + 1}: open`,
        click: open,
        keydown: (event) => {
          if (["Enter", " "].includes(event.key)) {
            event.preventDefault();
            open();
          }
        },
      },
      make("rect", { x, y, width: w, height: h, rx: 6 }),
      extra,
    );
    mapped.lit.push([element, isLit]);
    mapped.boxes.push([element, id]);
    return element;
  };

  names.forEach((name, column) => {
    const x = left + column * (wide + gap);
    const middle = x + wide / 2;
    const top = bottom - blockOf(name) * stacks[name];
    items.push(
      make("line", {
        class: "pipe",
        x1: middle,
        x2: middle,
        y1: height - 22,
        y2: top - (name === names.at(-1) ? 62 : 0),
      }),
    );
    const label = {
      encoder: twoStacks() ? "The text" : "Text",
      decoder: twoStacks() ? "Written so far" : "Text",
    }[name];
    items.push(make("text", { class: "small", x: middle, y: height - 6, "text-anchor": "middle" }, label));
    items.push(
      box(
        x + 14,
        bottom + 18,
        wide - 28,
        26,
        `Embedding + position (${positions})`,
        [name, 0, "embedding"],
        [make("text", { x: middle, y: bottom + 35, "text-anchor": "middle" }, "embedding + position")],
      ),
    );
    for (let layer = 0; layer < stacks[name]; layer++) {
      const y = bottom - (layer + 1) * blockOf(name);
      const isLit = (now) => now.stack === name && now.layer === layer;
      const back = make("rect", { class: "layer", x, y: y + 4, width: wide, height: blockOf(name) - 8, rx: 10 });
      mapped.lit.push([back, isLit]);
      items.push(back);
      items.push(
        make("text", { class: "tiny", x: x + 9, y: y + blockOf(name) / 2 + 3, "text-anchor": "middle" }, layer + 1),
      );
      rows[name].toReversed().forEach(([part, kind], i) => {
        const top = y + 9 + i * 25;
        const extra = kind
          ? headDots(kind, layer, x + 18, wide - 26, top + 10.5, heads)
          : [make("text", { x: x + 18 + (wide - 26) / 2, y: top + 15, "text-anchor": "middle" }, "feed-forward")];
        items.push(
          box(
            x + 18,
            top,
            wide - 26,
            21,
            capital(part),
            [name, layer, part],
            extra,
            isLit,
            kind ? KINDS[kind].color : "var(--grey)",
          ),
        );
      });
    }
    if (name === names.at(-1)) {
      items.push(
        box(
          x + 14,
          top - 42,
          wide - 28,
          26,
          `Output: ${output}`,
          [name, stacks[name] - 1, "output"],
          [make("text", { x: middle, y: top - 25, "text-anchor": "middle" }, output)],
          (now) => now.answer,
        ),
      );
      const out = regression ? "Numbers" : "Probabilities";
      items.push(make("text", { class: "small", x: middle, y: top - 66, "text-anchor": "middle" }, out));
    } else {
      const from = top - 10,
        to = bottom - 10;
      items.unshift(
        make("path", {
          class: "pipe",
          d: `M ${middle} ${top} V ${from} H ${x + wide + gap / 2} V ${to - blockOf("decoder") / 2 + 4} H ${x + wide + gap}`,
        }),
      );
    }
  });
  const svg = make(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      style: `max-width:${width * 1.15}px`,
      role: "group",
      "aria-label": "Map of the model; each box opens its numbers",
    },
    items,
  );
  fill(
    parts.map,
    make("h2", {}, state.data.name ? `The model: ${state.data.name}` : "The model"),
    note(
      `${plural(state.data.model.parameters, "parameter")}, ${plural(heads, "head")}, ${norm}-norm. Each dot is a head; a bright dot attends mainly to one token. Click a box to see its numbers.`,
    ),
    svg,
    table("The model as a table", () =>
      grid(
        "The layers in order",
        ["layer", ...Object.keys(PART_SIZES)],
        names.flatMap((name) =>
          Array.from({ length: stacks[name] }, (_, layer) => [
            `${name} ${layer + 1}`,
            ...Object.entries(PART_SIZES).map(([part, size]) =>
              rows[name].some(([each]) => each === part) ? size(state.data.model) : "–",
            ),
          ]),
        ),
      ),
    ),
  );
  updateMap();
}

let mapped = null; // elements of the map, with the parts of the model that they show

/** Highlight the current layer, and its heads by the current token's largest attention weight. */
function updateMap() {
  const now = phases()[state.phase];
  for (const [element, isLit] of mapped.lit)
    element.classList.toggle("lit", state.revealed !== Infinity && isLit(now));
  for (const [element, id] of mapped.boxes) element.classList.toggle("open", state.box?.join() === id.join());
  for (const [element, kind, layer, head] of mapped.dots) {
    const query = queryOf(kind);
    const sure = query === null ? 0.15 : Math.max(...weights(kind, layer, head)[query]) / 1000;
    element.style.fillOpacity = 0.12 + 0.88 * sure;
    element.classList.toggle("chosen", state.head === head && state.layer === layer && state.kinds.has(kind));
  }
}

/** Draw a dot for each head. */
function headDots(kind, layer, x, width, y, heads) {
  const distance = Math.min(15, width / heads),
    start = x + width / 2 - (distance * (heads - 1)) / 2;
  return Array.from({ length: heads }, (_, head) => {
    const name = `${capital(KINDS[kind].name)}, layer ${layer + 1}, head ${head + 1}`;
    const dot = make(
      "circle",
      {
        class: "dot",
        cx: start + head * distance,
        cy: y,
        r: Math.min(4.6, distance * 0.4),
        click: (event) => {
          event.stopPropagation();
          pickHead(kind, layer, head);
        },
      },
      make("title", {}, name),
    );
    mapped.dots.push([dot, kind, layer, head]);
    return dot;
  });
}

/** Return the current token's attention weights of one kind; null if it has none. */
function queryOf(kind) {
  const token = looking();
  const { from, ahead } = columns(kind);
  if (!token || token.column !== from) return null;
  const query = token.index - ahead;
  return query >= 0 && query < weights(kind, 0, 0).length ? query : null;
}
