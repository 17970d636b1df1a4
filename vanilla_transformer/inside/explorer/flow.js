// The flow: tokens, with arcs to the tokens that they attend to.

let chips = {}; // by column (source or target): the page elements of its tokens
let arcs = null;
let geometry = null;

function drawFlow() {
  const names = twoStacks() ? ["source", "target"] : ["source"];
  const most = Math.max(...names.map((name) => tokens(name).length));
  const narrow = frame.clientWidth < 680;
  const side = names.length === 1 ? 96 : narrow ? 52 : 84,
    gap = narrow ? 64 : 150,
    chipWidth = narrow ? 98 : 118;
  const width = names.length === 2 ? 2 * side + 2 * chipWidth + gap : side + chipWidth + 160;
  const height = most * ROW + 34;
  geometry = {
    side,
    chip: chipWidth,
    track: narrow ? 34 : 44, // width of the handles
    x: { source: side, target: side + chipWidth + gap },
    y: (index) => 30 + index * ROW + ROW / 2,
  };
  arcs = make("g", { class: "arcs" });
  handles = { group: make("g", { class: "handles" }), of: "", list: [] };
  chips = {};
  const groups = names.map((name) => {
    chips[name] = tokens(name).map((token, index) => chip(name, token, index));
    const title = name === "target" ? "writes" : task() === "generate" ? "reads and writes" : "reads";
    return make(
      "g",
      {},
      make("text", { class: "small", x: geometry.x[name] + chipWidth / 2, y: 14, "text-anchor": "middle" }, title),
      chips[name],
    );
  });
  const svg = make(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      style: `max-width:${width * 1.15}px`,
      role: "group",
      "aria-label": "Tokens, and what each attends to",
    },
    arcs,
    groups,
    handles.group,
  );
  pressed = [];
  const pick = (label, choices, value, set) => {
    const group = segments(label, choices, (chosen) => {
      pause();
      set(chosen);
      chose();
    });
    group.querySelectorAll("button").forEach((each, i) => pressed.push([each, () => value() === choices[i][0]]));
    return group;
  };
  const legend = state.data.attention.map(({ kind }) => {
    const name = twoStacks() ? KINDS[kind].short : KINDS[kind].name.replace(/^encoder /, "");
    const choose = () => {
      if (!state.kinds.delete(kind)) state.kinds.add(kind);
      chose();
    };
    const each = button(capital(name), choose, {
      style: `--color:${KINDS[kind].color}`,
      title: capital(KINDS[kind].name),
    });
    pressed.push([each, () => state.kinds.has(kind)]);
    return each;
  });
  const layers = Array.from({ length: mostLayers() }, (_, i) => [i, String(i + 1)]);
  const heads = [["mean", "all"], ...Array.from({ length: state.data.model.heads }, (_, i) => [i, String(i + 1)])];
  fill(
    parts.flow,
    make("h2", {}, "Attention"),
    make("div", { class: "legend" }, legend),
    pick(
      "Layer",
      layers,
      () => state.layer,
      (layer) => (state.layer = layer),
    ),
    pick(
      "Head",
      heads,
      () => state.head,
      (head) => (state.head = head),
    ),
    make("div", { class: "scroll" }, svg),
    host ? hint : null,
    bytesNote(names),
    table("Weights as a table", flowTables),
  );
  updateFlow();
}

/** Return a note that explains tokens shown as bytes, if there are any. */
function bytesNote(names) {
  const part = names.flatMap((name) => tokens(name)).find((token) => token.bytes);
  if (!part) return null;
  return note(
    `Tokens such as ${part.text} are single bytes: the vocabulary has no token for their character, which was rare or missing in the training data.`,
  );
}

let pressed = []; // [button, whether it is pressed]

/** Redraw after a different layer, head or kind of attention is selected. */
function chose() {
  show("flowing", "mapping", "box", "heads", "beside");
  remember();
}

function updateFlow() {
  for (const [button, isPressed] of pressed) button.setAttribute("aria-pressed", String(isPressed()));
  parts.flow.querySelector(".table").renew();
  drawArcs();
}

function chip(column, token, index) {
  const {
      chip: chipWidth,
      x: { [column]: x },
    } = geometry,
    y = geometry.y(index) - ROW / 2 + 2;
  const over = (on) => () => {
    if (state.dragging) return;
    state.hover = on ? { column, index } : null;
    drawArcs();
    updateMap();
  };
  const step = state.data.steps.findIndex((each) => each.token === index && column === answers());
  const choose = () => {
    pause();
    if (step >= 0) {
      Object.assign(state, { step, hover: null, pinned: null });
      show("flowing", "mapping", "output", "lens");
      remember();
    } else {
      Object.assign(state, { pinned: { column, index }, hover: null });
      show("flowing", "mapping");
    }
  };
  // length of a word
  const begins = index === 0 || token.text.startsWith(" ") || state.data[column][index - 1]?.special;
  const tag = task() === "tag" && step >= 0 && begins ? state.data.steps[step].text.replace(/^O$/, "") : "";
  const name = visible(token.text);
  return make(
    "g",
    {
      class: `chip${token.special ? " special" : ""}${token.open ? " open" : ""}`,
      tabindex: 0,
      role: "button",
      "aria-label": [`Token ${index + 1}`, name, tag].filter(Boolean).join(", "),
      pointerenter: over(true),
      pointerleave: over(false),
      focus: over(true),
      blur: (event) => {
        const intoHandles = handles.group.contains(event.relatedTarget);
        over(false)();
        // a handle that had the focus has been replaced
        if (intoHandles) handles.group.querySelector("[tabindex='0']")?.focus();
      },
      click: choose,
      keydown: (event) => {
        const to = {
          ArrowDown: chips[column][index + 1],
          ArrowUp: chips[column][index - 1],
          ArrowRight: chips.target?.[index],
          ArrowLeft: chips.source?.[index],
        }[event.key];
        if (to) {
          event.preventDefault();
          to.focus();
        }
        if (["Enter", " "].includes(event.key)) {
          event.preventDefault();
          choose();
        }
      },
    },
    make("rect", { class: "back", x, y, width: chipWidth, height: ROW - 4, rx: 7 }),
    make("rect", { class: "tint", x, y, width: chipWidth, height: ROW - 4, rx: 7 }),
    make(
      "text",
      { x: x + chipWidth / 2, y: y + 17.5, "text-anchor": "middle" },
      shortened(name),
      make("title", {}, JSON.stringify(token.text)),
    ),
    tag ? make("text", { class: "tag", x: x + chipWidth + 10, y: y + 17.5 }, tag) : null,
  );
}

/** Draw arcs and tint attended tokens: for the current token, or for the largest weights of all tokens. */
function drawArcs() {
  const hidden = state.revealed,
    first = growing() ? firstWritten() : Infinity;
  const token = looking();
  const column = answers();
  const there = (name, index) =>
    !growing() ||
    name !== column ||
    state.data.steps.findIndex((step) => step.token === index) < Math.max(hidden, first) ||
    (!twoStacks() && index <= first);
  const tint = new Map();
  const paths = [];
  let kinds = [...state.kinds];
  const now = phases()[state.phase];
  if (hidden !== Infinity && now.stack === "encoder" && !(state.hover ?? state.pinned))
    kinds = kinds.filter((kind) => kind === "encoder");
  for (const kind of kinds) {
    const { from, to, ahead } = columns(kind),
      all = weights(kind);
    const overview =
      kind === "encoder" &&
      (!token ||
        token.column !== from ||
        (hidden !== Infinity && now.stack === "encoder" && !(state.hover ?? state.pinned)));
    const query = overview ? null : queryOf(kind);
    if (!overview && query === null) continue;
    const rows = query === null ? all.map((row, q) => [q, row]) : [[query, rowSeen(kind, query)]];
    if (query === null && twoStacks() && token && now.stack !== "encoder") continue; // no overview during decoding
    for (const [q, row] of rows)
      row.forEach((thousandths, key) => {
        const weight = thousandths / 1000;
        if (weight < (query === null ? Math.min(0.1, Math.max(...row) / 1000) : 0.012)) return;
        paths.push(arc(kind, from, q + ahead, to, key, weight, query === null));
        if (query !== null)
          tint.set(`${to} ${key}`, { weight: Math.max(weight, tint.get(`${to} ${key}`)?.weight ?? 0), kind });
      });
  }
  fill(arcs, ...paths);
  for (const [name, list] of Object.entries(chips))
    list.forEach((element, index) => {
      const seen = tint.get(`${name} ${index}`);
      const away = !there(name, index);
      element.classList.toggle("away", away);
      element.setAttribute("tabindex", away ? -1 : 0);
      element.setAttribute("aria-hidden", String(away));
      element.classList.toggle("tinted", Boolean(seen));
      element.classList.toggle("looks", token?.column === name && token.index === index && now.stack !== "encoder");
      element.classList.toggle(
        "own",
        growing() && name === column && index > first && !element.classList.contains("special"),
      );
      const back = element.querySelector(".tint");
      if (seen) back.style.fill = KINDS[seen.kind].color; // keep the colour while the background fades
      back.style.fillOpacity = seen ? 0.06 + 0.4 * seen.weight : 0;
    });
  drawHandles();
}

function arc(kind, from, start, to, end, weight, faint) {
  const chipWidth = geometry.chip,
    y1 = geometry.y(start),
    y2 = geometry.y(end);
  let d;
  if (from !== to) {
    const x1 = geometry.x.target,
      x2 = geometry.x.source + chipWidth,
      bend = (x1 - x2) / 2;
    d = `M ${x1} ${y1} C ${x1 - bend} ${y1} ${x2 + bend} ${y2} ${x2} ${y2}`;
  } else {
    const right = from === "target",
      x = geometry.x[from] + (right ? chipWidth : 0);
    const bulge = x + (right ? 1 : -1) * Math.min(1.25 * geometry.side, 20 + Math.abs(y2 - y1) * 0.42);
    d =
      y1 === y2
        ? `M ${x} ${y1 - 5} C ${bulge} ${y1 - 11} ${bulge} ${y1 + 11} ${x} ${y1 + 5}`
        : `M ${x} ${y1} C ${bulge} ${y1} ${bulge} ${y2} ${x} ${y2}`;
  }
  return make("path", {
    d,
    pathLength: 1,
    class: faint ? "faint" : "grow",
    style: `stroke:${KINDS[kind].color};stroke-width:${(faint ? 0.6 : 1) + 4.5 * weight};stroke-opacity:${faint ? 0.08 + 0.45 * weight : 0.2 + 0.75 * weight}`,
  });
}

/** Return the attention weights of one kind as a table. */
function weightTable(kind, data, caption, rows = weights(kind, state.layer, state.head, data)) {
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

const flowTables = () =>
  [...state.kinds].map((kind) => {
    const head = state.head === "mean" ? "mean of all heads" : `head ${state.head + 1}`;
    return weightTable(kind, state.data, `${capital(KINDS[kind].name)}, layer ${layerSeen(kind) + 1}, ${head}`, rowsSeen(kind));
  });
