// The explorer: a model's forward pass on one text, alive. It is drawn from the data that explore.py makes, needs no
// other file and no other host, and lives in a shadow root, so that no page's style reaches it. All of it is one
// function, so that a saved page can hold its text.
//
//     mountExplorer(place, {style, data})    a picture of its own, as notebooks show it
//     mountExplorer(place, {style, host})    one that asks a server: see demo/explorer.py
//
// One direction: a wish changes `state`, `show` draws what depends on it.
function mountExplorer(place, { style, data = null, host = null }) {
  const SVG_TAGS = new Set("svg g path rect circle text title line".split(" "));

  /** An element with attributes, of which functions are listeners, and children. What is null or false is left out. */
  function make(tag, attributes = {}, ...children) {
    const element = SVG_TAGS.has(tag)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== null && value !== undefined && value !== false)
        element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...present(children));
    return element;
  }

  const present = (children) =>
    children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  /** Give an element other children. */
  const fill = (element, ...children) => element.replaceChildren(...present(children));

  const KINDS = {
    encoder: { name: "encoder self-attention", short: "text → text", color: "var(--blue)" },
    cross: { name: "cross-attention", short: "answer → text", color: "var(--purple)" },
    decoder: { name: "masked self-attention", short: "answer → answer", color: "var(--green)" },
  };
  const TRAITS = {
    previous: "one before",
    itself: "its own place",
    next: "one after",
    onward: "on in source order",
    same: "same token",
    special: "special tokens",
  };
  const TASKS = {
    translate: ["Translate", "Text to translate", "The translation"],
    generate: ["Write on", "Text to go on from", "How it goes on"],
    fill: ["Fill in", "Text with a blank, ___", "Filled in"],
    classify: ["Classify", "Text", "The class"],
    tag: ["Tag", "Text", "The tags"],
    answer: ["Answer", "Question", "The answer"],
  };
  const ROW = 30; // height of a token

  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  /** A token as it is written: without the space before it, which most have. */
  const visible = (text) => text.trim() || text.replaceAll(" ", "␣").replaceAll("\n", "⏎") || "∅";
  const percent = (p) =>
    p >= 0.9995
      ? "100 %"
      : p >= 0.1
        ? `${(100 * p).toFixed(1)} %`
        : p >= 0.0001
          ? `${(100 * p).toPrecision(2)} %`
          : "< 0.01 %";
  const shortened = (text, most = 13) => {
    const letters = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
    return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
  };

  const root = place.shadowRoot ?? place.attachShadow({ mode: "open" });
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const state = {
    data: null, // that is drawn
    own: null, // of the model as it is
    beside: null, // {title, data, same}: a changed model, or another one
    changes: null, // what is switched off
    request: null, // what it was asked for
    kinds: new Set(), // of attention that are drawn
    layer: 0,
    head: "mean",
    step: 0,
    hover: null, // {column, index}
    phase: 0,
    revealed: Infinity, // tokens of the answer that are there already
    playing: false,
    motion: !still.matches,
    box: null, // [stack, layer, part] that is open
    asked: 0,
  };
  const parts = Object.fromEntries(
    "top player map flow output box broken beside heads lens save train"
      .split(" ")
      .map((name) => [name, make("section", { class: name })]),
  );
  const live = make("p", { class: "unseen", "aria-live": "polite" });
  const message = make("p", { class: "message", role: "alert", hidden: true });
  const frame = make(
    "div",
    { class: "explorer" },
    parts.top,
    message,
    make(
      "div",
      { class: "whole", hidden: true },
      parts.player,
      make("div", { class: "stage" }, parts.map, parts.flow, parts.output),
      parts.box,
      parts.broken,
      parts.beside,
      parts.heads,
      parts.lens,
      parts.save,
    ),
    parts.train,
    live,
  );
  fill(root, make("style", {}, style), frame);
  const whole = frame.querySelector(".whole");
  parts.train.hidden = true;

  // --------------------------------------------------------------------------------------------------------------- //
  // Light and dark, motion
  // --------------------------------------------------------------------------------------------------------------- //

  function adoptTheme() {
    const { classList, dataset } = document.body;
    const dark =
      classList.contains("dark") ||
      document.documentElement.classList.contains("dark") ||
      dataset.jpThemeLight === "false" ||
      classList.contains("vscode-dark");
    const light =
      dataset.jpThemeLight === "true" ||
      classList.contains("vscode-light") ||
      document.querySelector("gradio-app, .gradio-container");
    place.style.colorScheme = dark ? "dark" : light ? "light" : "light dark";
    if (state.data) paintHeads();
  }
  new MutationObserver(adoptTheme).observe(document.body, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", adoptTheme);

  function setMotion(on) {
    state.motion = on;
    frame.classList.toggle("still", !on);
    if (!on) pause();
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // What the data say
  // --------------------------------------------------------------------------------------------------------------- //

  const twoStacks = () => state.data.target !== null;
  const task = () => state.data.model.task;
  const attention = (kind) => state.data.attention.find((each) => each.kind === kind);
  const layersOf = (kind) => attention(kind)?.weights.length ?? 0;
  const mostLayers = () => Math.max(...state.data.attention.map((each) => each.weights.length));
  const means = new WeakMap();

  /** The weights of one head [query][key], or the mean of all, in thousandths. */
  function weights(kind, layer = state.layer, head = state.head) {
    const heads = attention(kind).weights[Math.min(layer, layersOf(kind) - 1)];
    if (head !== "mean") return heads[head];
    if (!means.has(heads)) {
      means.set(
        heads,
        heads[0].map((row, q) => row.map((_, k) => heads.reduce((sum, each) => sum + each[q][k], 0) / heads.length)),
      );
    }
    return means.get(heads);
  }

  /** The column that queries or keys of a kind stand in, and by how many places the one that looks stands further. */
  const columns = (kind) =>
    ({
      encoder: { from: "source", to: "source", ahead: 0 },
      cross: { from: "target", to: "source", ahead: 1 },
      decoder: twoStacks() ? { from: "target", to: "target", ahead: 1 } : { from: "source", to: "source", ahead: 1 },
    })[kind];

  /** The tokens of a column, with what comes after the last of a language model. */
  function tokens(column) {
    const list = state.data[column];
    const last = state.data.steps.at(-1);
    return task() === "generate" && column === "source"
      ? [...list, { text: last.text, special: false, open: true }]
      : list;
  }

  const answers = () => (twoStacks() ? "target" : "source"); // the column in which the answer is written
  const growing = () => ["translate", "generate"].includes(task());
  const firstWritten = () =>
    task() === "generate" ? Math.max(0, state.data.steps.length - 1 - state.data.written) : 0;

  /** The token that looks: under the pointer, or what the step is about. */
  function looking() {
    if (state.hover) return state.hover;
    const { token } = state.data.steps[state.step];
    return token === null ? null : { column: answers(), index: token };
  }

  /** What happens, one after the other: the layers of the encoder; for each token, those of the decoder; the answer. */
  function phases() {
    const { stacks } = state.data.model;
    const through = (stack, step) =>
      Array.from({ length: stacks[stack] ?? 0 }, (_, layer) => ({ stack, layer, step }));
    if (!growing()) return [...through("encoder", 0), { answer: true, step: 0 }];
    const list = through("encoder", 0);
    for (let step = firstWritten(); step < state.data.steps.length; step++)
      list.push(...through("decoder", step), { answer: true, step });
    return list;
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // Playing
  // --------------------------------------------------------------------------------------------------------------- //

  let timer = null;

  function pause() {
    clearTimeout(timer);
    if (state.playing) {
      state.playing = false;
      show("player");
    }
  }

  function play() {
    const last = phases().length - 1;
    if (state.phase >= last) goTo(0);
    state.playing = true;
    const next = () => {
      if (state.phase >= last) return finish();
      goTo(state.phase + 1);
      const { stack, answer } = phases()[state.phase];
      timer = setTimeout(next, !place.isConnected ? 1e9 : answer ? 620 : stack === "encoder" ? 650 : 320);
    };
    timer = setTimeout(next, 500);
    show("player");
  }

  function finish() {
    pause();
    state.phase = phases().length - 1;
    state.revealed = Infinity;
    show("player", "flowing", "mapping", "output");
  }

  function goTo(number) {
    const { stack, layer, step, answer } = phases()[number];
    Object.assign(state, { phase: number, step, hover: null });
    if (layer !== undefined) state.layer = layer;
    if (stack === "encoder" && growing()) state.revealed = firstWritten();
    else if (growing()) state.revealed = step + (answer ? 1 : 0);
    else state.revealed = answer ? Infinity : 0;
    show("player", "flowing", "mapping", "output");
  }

  /** One sentence that says what is seen. */
  function caption() {
    const { stack, layer, step, answer } = phases()[state.phase];
    const { steps, model } = state.data;
    if (state.revealed === Infinity && !state.playing)
      return `${capital(TASKS[task()][2].toLowerCase())}: ${state.data.answer}`;
    const written = growing() ? steps[step] : null;
    const more = `layer ${layer + 1} of ${model.stacks[stack]}`;
    if (stack === "encoder")
      return `The encoder reads, ${more}: every token looks at all others, and takes from each what its attention says.`;
    if (stack === "decoder") {
      const at = twoStacks() ? "what is written and at the text" : "what stands before";
      return `To write ${written.name}, ${more} looks at ${at}.`;
    }
    if (!written) return `The answer comes out: ${state.data.answer}`;
    return `Out falls a probability for each of ${plural(written.options, "token")}; “${visible(written.text)}” gets ${percent(written.p)} and is written.`;
  }

  const scrubber = make("input", {
    type: "range",
    min: 0,
    "aria-label": "Moment of the forward pass",
    input: () => {
      pause();
      goTo(Number(scrubber.value));
    },
  });
  const round = (label, text, click) =>
    make("button", { type: "button", class: "round", "aria-label": label, title: label, click }, text);
  const step = (by) => () => {
    pause();
    goTo(Math.min(phases().length - 1, Math.max(0, state.phase + by)));
  };
  const controls = {
    back: round("One step back", "‹", step(-1)),
    play: round("Play", "▶", () => (state.playing ? pause() : play())),
    on: round("One step on", "›", step(1)),
    all: round("Show all of it", "⤓", () => finish()),
    motion: make("input", {
      type: "checkbox",
      checked: state.motion,
      change: () => setMotion(controls.motion.checked),
    }),
  };
  const told = make("p", { class: "caption" });
  parts.player.append(
    make(
      "div",
      { class: "controls" },
      controls.back,
      controls.play,
      controls.on,
      scrubber,
      controls.all,
      make("label", { class: "switch" }, controls.motion, "Motion"),
    ),
    told,
  );

  function drawPlayer() {
    const last = phases().length - 1;
    scrubber.max = last;
    scrubber.value = state.phase;
    scrubber.style.setProperty("--done", `${(100 * state.phase) / Math.max(1, last)}%`);
    controls.back.disabled = state.phase === 0;
    controls.on.disabled = state.phase === last;
    controls.all.disabled = state.revealed === Infinity && !state.playing;
    const label = state.playing ? "Pause" : "Play";
    if (controls.play.title !== label) {
      fill(controls.play, state.playing ? "❚❚" : "▶");
      controls.play.title = label;
      controls.play.setAttribute("aria-label", label);
    }
    told.textContent = caption();
    if (!state.playing) live.textContent = told.textContent;
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // The map: Figure 1 with this model's layers and heads
  // --------------------------------------------------------------------------------------------------------------- //

  function drawMap() {
    const { stacks, heads, norm, positions } = state.data.model;
    const names = Object.keys(stacks);
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

    /** A box that can be opened. */
    const box = (x, y, w, h, label, id, extra, isLit = () => false, color = "var(--ink)") => {
      const open = () => openBox(id);
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
        decoder: twoStacks() ? "What is written so far" : "Text",
      }[name];
      items.push(make("text", { class: "small", x: middle, y: height - 6, "text-anchor": "middle" }, label));
      items.push(
        box(
          x + 14,
          bottom + 18,
          wide - 28,
          26,
          `Embedding + ${positions} positions`,
          [name, 0, "embedding"],
          [make("text", { x: middle, y: bottom + 35, "text-anchor": "middle" }, `embedding + position`)],
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
            "Output: linear and softmax",
            [name, stacks[name] - 1, "output"],
            [
              make(
                "text",
                { x: middle, y: top - 25, "text-anchor": "middle" },
                { classify: "classes", tag: "classes", answer: "start, end" }[task()] ?? "linear + softmax",
              ),
            ],
            (now) => now.answer,
          ),
        );
        items.push(make("text", { class: "small", x: middle, y: top - 66, "text-anchor": "middle" }, "Probabilities"));
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
        "aria-label": "Map of the model: each box opens",
      },
      items,
    );
    fill(
      parts.map,
      make("h2", {}, "The model"),
      make(
        "p",
        { class: "note" },
        `${plural(state.data.model.parameters, "parameter")}, ${plural(heads, "head")}, ${norm}-norm. Each dot is a head, the brighter the surer it looks. Open a box to see its numbers.`,
      ),
      svg,
    );
    updateMap();
  }

  let mapped = null; // elements of the map, and what they stand for

  /** Light up what runs, and the heads that are sure of where the token looks that is looking. */
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

  /** The heads of an attention. */
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

  /** Which row of a kind's attention the token that looks is; null where it has none. */
  function queryOf(kind) {
    const token = looking();
    const { from, ahead } = columns(kind);
    if (!token || token.column !== from) return null;
    const query = token.index - ahead;
    return query >= 0 && query < weights(kind, 0, 0).length ? query : null;
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // The flow: tokens, and whom each looks at
  // --------------------------------------------------------------------------------------------------------------- //

  let chips = {}; // column -> elements of its tokens
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
      x: { source: side, target: side + chipWidth + gap },
      y: (index) => 30 + index * ROW + ROW / 2,
    };
    arcs = make("g", { class: "arcs" });
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
        "aria-label": "Tokens, and whom each looks at",
      },
      arcs,
      groups,
    );
    const pick = (label, values, value, set) =>
      make(
        "div",
        { class: "segments", role: "group", "aria-label": label },
        make("span", {}, label),
        values.map(([key, text]) => {
          const button = make(
            "button",
            {
              type: "button",
              click: () => {
                pause();
                set(key);
              },
            },
            text,
          );
          pressed.push([button, () => value() === key]);
          return button;
        }),
      );
    pressed = [];
    const layers = Array.from({ length: mostLayers() }, (_, i) => [i, String(i + 1)]);
    const heads = [["mean", "all"], ...Array.from({ length: state.data.model.heads }, (_, i) => [i, String(i + 1)])];
    fill(
      parts.flow,
      make("h2", {}, "Who looks at whom"),
      make(
        "div",
        { class: "legend" },
        state.data.attention.map(({ kind }) => {
          const name = twoStacks() ? KINDS[kind].short : KINDS[kind].name.replace(/^encoder /, "");
          const button = make(
            "button",
            {
              type: "button",
              style: `--color:${KINDS[kind].color}`,
              title: capital(KINDS[kind].name),
              click: () => {
                state.kinds.has(kind) ? state.kinds.delete(kind) : state.kinds.add(kind);
                chose();
              },
            },
            capital(name),
          );
          pressed.push([button, () => state.kinds.has(kind)]);
          return button;
        }),
      ),
      pick(
        "Layer",
        layers,
        () => state.layer,
        (layer) => {
          state.layer = layer;
          chose();
        },
      ),
      pick(
        "Head",
        heads,
        () => state.head,
        (head) => {
          state.head = head;
          chose();
        },
      ),
      make("div", { class: "scroll" }, svg),
      table("These weights as a table", flowTables),
    );
    updateFlow();
  }

  let pressed = []; // buttons, and whether each is

  /** After another layer, head or kind of attention was chosen. */
  function chose() {
    forgetTable();
    show("flowing", "mapping", "box", "broken", "heads");
  }

  /** What a table shows has changed: it is made anew when it is opened. */
  const forgetTable = () => {
    const details = parts.flow.querySelector(".table");
    details.open = false;
    details.querySelector(".scroll")?.remove();
  };

  function updateFlow() {
    for (const [button, isPressed] of pressed) button.setAttribute("aria-pressed", String(isPressed()));
    drawArcs();
  }

  function chip(column, token, index) {
    const {
        chip: chipWidth,
        x: { [column]: x },
      } = geometry,
      y = geometry.y(index) - ROW / 2 + 2;
    const over = (on) => () => {
      state.hover = on ? { column, index } : null;
      drawArcs();
      updateMap();
    };
    const step = state.data.steps.findIndex((each) => each.token === index && column === answers());
    const choose = () => {
      pause();
      if (step >= 0) {
        Object.assign(state, { step, hover: null });
        show("flowing", "mapping", "output", "lens", "broken");
      } else {
        state.hover = { column, index };
        drawArcs();
        updateMap();
      }
    };
    const begins = index === 0 || token.text.startsWith(" ") || state.data[column][index - 1]?.special; // a word
    const label = task() === "tag" && step >= 0 && begins ? state.data.steps[step].text : "";
    const name = visible(token.text);
    return make(
      "g",
      {
        class: `chip${token.special ? " special" : ""}${token.open ? " open" : ""}`,
        tabindex: 0,
        role: "button",
        "aria-label": `Token ${index + 1}, ${name}`,
        pointerenter: over(true),
        pointerleave: over(false),
        focus: over(true),
        blur: over(false),
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
      label && label !== "O" ? make("text", { class: "tag", x: x + chipWidth + 10, y: y + 17.5 }, label) : null,
    );
  }

  /** Arcs, and tints of what is looked at; of one token, or where none looks, the strongest of all. */
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
    if (hidden !== Infinity && now.stack === "encoder" && state.hover === null)
      kinds = kinds.filter((kind) => kind === "encoder");
    for (const kind of kinds) {
      const { from, to, ahead } = columns(kind),
        all = weights(kind);
      const overview =
        kind === "encoder" &&
        (!token || token.column !== from || (hidden !== Infinity && now.stack === "encoder" && !state.hover));
      const query = overview ? null : queryOf(kind);
      if (!overview && query === null) continue;
      const rows = query === null ? all.map((row, q) => [q, row]) : [[query, all[query]]];
      if (query === null && twoStacks() && token && now.stack !== "encoder") continue; // the encoder rests while the decoder writes
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
        element.classList.toggle("away", !there(name, index));
        element.classList.toggle("looks", token?.column === name && token.index === index && now.stack !== "encoder");
        element.classList.toggle(
          "own",
          growing() && name === column && index > first && !element.classList.contains("special"),
        );
        const back = element.querySelector(".tint");
        back.style.fill = seen ? KINDS[seen.kind].color : "";
        back.style.fillOpacity = seen ? 0.06 + 0.6 * seen.weight : 0;
      });
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

  /** A table behind a picture, made when it is opened. */
  function table(title, rows) {
    const details = make(
      "details",
      {
        class: "table",
        toggle: () => {
          if (details.open && !details.querySelector("table"))
            details.append(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, rows()));
        },
      },
      make("summary", {}, title),
    );
    return details;
  }

  function grid(caption, header, rows) {
    return make(
      "table",
      {},
      make("caption", {}, caption),
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          header.map((text) => make("th", { scope: "col" }, text)),
        ),
      ),
      make(
        "tbody",
        {},
        rows.map(([name, ...cells]) =>
          make(
            "tr",
            {},
            make("th", { scope: "row" }, name),
            cells.map((cell) => make("td", {}, cell)),
          ),
        ),
      ),
    );
  }

  function flowTables() {
    return [...state.kinds].map((kind) => {
      const { from, to, ahead } = columns(kind);
      const keys = weights(kind)[0].map((_, key) => visible(tokens(to)[key].text));
      const rows = weights(kind).map((row, query) => [
        visible(tokens(from)[query + ahead].text),
        ...row.map((weight) => percent(weight / 1000)),
      ]);
      const head = state.head === "mean" ? "mean of all heads" : `head ${state.head + 1}`;
      return grid(
        `${capital(KINDS[kind].name)}, layer ${Math.min(state.layer, layersOf(kind) - 1) + 1}, ${head}: each row looks at the columns`,
        ["", ...keys],
        rows,
      );
    });
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // What comes out
  // --------------------------------------------------------------------------------------------------------------- //

  function drawOutput() {
    const { steps, model, hypotheses } = state.data;
    const step = steps[state.step];
    const shown = task() === "answer" ? steps : [step];
    const { regression } = model;
    const content = shown.map((each) => {
      const rows = each.top.some((option) => option.id === each.chosen)
        ? each.top
        : [...each.top, { id: each.chosen, text: each.text, p: each.p }];
      return [
        make(
          "h3",
          {},
          task() === "classify" ? "" : capital(each.name),
          growing() || task() === "fill" ? make("span", { class: "note" }, ` of ${steps.length}`) : null,
        ),
        make(
          "ol",
          { class: "bars" },
          rows.map((option) => bar(option, option.id === each.chosen, regression)),
        ),
        growing()
          ? make(
              "p",
              { class: "note" },
              `${each.rank === 1 ? "The most probable" : `Number ${each.rank.toLocaleString("en")}`} of ${plural(each.options, "token")}.`,
            )
          : null,
      ];
    });
    const pending = growing() && state.revealed <= state.step;
    parts.output.classList.toggle("pending", pending);
    fill(
      parts.output,
      make("h2", {}, "What comes out"),
      make("p", { class: "answer", lang: "und" }, answerText()),
      ...content.flat(),
      hypotheses.length > 1
        ? make(
            "div",
            {},
            make("h3", {}, "Beam search kept"),
            make(
              "ol",
              { class: "hypotheses" },
              hypotheses.map(({ text, score, ids }) =>
                make(
                  "li",
                  {},
                  host
                    ? make("button", { type: "button", click: () => ask({ ...state.request, target: ids }) }, text)
                    : text,
                  make("span", { class: "note" }, ` ${score.toFixed(3)}`),
                ),
              ),
            ),
          )
        : null,
    );
  }

  function bar({ text, p }, chosen, regression) {
    const item = make(
      "li",
      { class: chosen ? "chosen" : "" },
      make("span", { class: "name" }, shortened(visible(text), 22)),
      make("span", { class: "track" }, make("span", { class: "fill" })),
      make("span", { class: "number" }, regression ? p.toFixed(3) : percent(p)),
    );
    item.querySelector(".fill").style.width = `${regression ? 0 : 100 * p}%`;
    return item;
  }

  /** The answer as far as it is written. */
  function answerText() {
    const { steps, written } = state.data;
    if (!growing()) return state.revealed === Infinity || phases()[state.phase].answer ? state.data.answer : "…";
    if (state.revealed === Infinity) {
      if (task() === "translate" || !written) return state.data.answer;
      const [begun] = state.data.answer.startsWith(state.data.text) ? [state.data.text] : [""];
      return [begun, make("mark", {}, state.data.answer.slice(begun.length))];
    }
    const done = Math.max(state.revealed, firstWritten());
    return [done ? steps[done - 1].so_far : "", make("span", { class: "caret" })];
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // A box, open: equations with numbers, shapes and the line of code
  // --------------------------------------------------------------------------------------------------------------- //

  const layerOf = (stack, layer) => host.layer({ ...state.request, target: writtenIds(state.own), stack, layer });

  async function openBox(id) {
    pause();
    if (state.data !== state.own) {
      view(state.own); // recorded is the model as it is
      show(...Object.keys(DRAW));
    }
    state.box = state.box?.join() === id.join() ? null : id;
    if (state.box && id[2].endsWith("attention")) {
      state.kinds = new Set([id[2] === "cross-attention" ? "cross" : id[0]]);
      state.layer = id[1];
      forgetTable();
      updateFlow();
    }
    updateMap();
    fill(parts.box, state.box ? make("p", { class: "note" }, "The numbers come …") : "");
    if (!state.box) return;
    const name = `${id[0]} ${id[1]}`;
    const values = (state.data.values ??= {});
    try {
      values[name] ??= await layerOf(id[0], id[1]);
    } catch (error) {
      return complain(error);
    }
    drawBox();
    parts.box.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "nearest" });
  }

  /** What a model that writes has written, as ids; null of others. */
  function writtenIds({ model, steps, source, written }) {
    if (model.task === "translate") return steps.map((step) => step.chosen);
    return model.task === "generate" ? source.slice(source.length - written).map((token) => token.id) : null;
  }

  function drawBox() {
    if (!state.box) return fill(parts.box);
    const [stack, layer, part] = state.box;
    const steps = (state.data.values?.[`${stack} ${layer}`] ?? []).filter((step) => step.part === part);
    const title =
      part === "embedding"
        ? `What enters the ${stack}`
        : part === "output"
          ? "What leaves the last layer"
          : `${capital(part)}, ${stack} layer ${layer + 1}`;
    fill(
      parts.box,
      make(
        "header",
        {},
        make("h2", {}, title),
        make(
          "button",
          {
            type: "button",
            class: "round",
            "aria-label": "Close",
            click: () => {
              state.box = null;
              drawBox();
              updateMap();
            },
          },
          "×",
        ),
      ),
      make("div", { class: "steps" }, steps.map(stepCard)),
    );
  }

  function stepCard(step) {
    const hasHeads = step.axes[0] === "heads";
    const head = state.head === "mean" ? 0 : state.head;
    const values = hasHeads ? step.values[head] : step.values;
    const [, , part] = state.box;
    const column = state.box[0] === "encoder" || !twoStacks() ? "source" : "target";
    const axes = hasHeads ? step.axes.slice(1) : step.axes;
    const label = (axis, i) =>
      ["length", "queries", "keys"].includes(axis)
        ? visible(tokens(part === "cross-attention" && axis === "keys" ? "source" : column)[i]?.text ?? "")
        : "";
    const wide = axes[1] === "keys";
    const largest = Math.max(1e-9, ...values.flat().map((value) => Math.abs(value ?? 0)));
    const cell = (value) => {
      const td = make(
        "td",
        {},
        value === null ? "−∞" : Number.isInteger(value) ? String(value) : value.toFixed(3).replace("-", "−"),
      );
      td.style.background =
        value === null
          ? ""
          : `color-mix(in srgb, var(--${value < 0 ? "orange" : "blue"}) ${Math.round((45 * Math.abs(value)) / largest)}%, transparent)`;
      return td;
    };
    const shape = step.axes.map((axis, i) => `${axis} ${step.shape[i]}`).join(" × ");
    return make(
      "article",
      {},
      make("h3", {}, capital(step.name)),
      make("p", { class: "equation" }, step.equation),
      make(
        "p",
        { class: "note" },
        shape,
        hasHeads ? `, here head ${head + 1}` : "",
        step.source ? make("code", {}, step.source) : null,
      ),
      make(
        "div",
        { class: "scroll" },
        make(
          "table",
          {},
          wide
            ? make(
                "thead",
                {},
                make(
                  "tr",
                  {},
                  make("th"),
                  values[0].map((_, j) => make("th", { scope: "col" }, label("keys", j))),
                ),
              )
            : null,
          make(
            "tbody",
            {},
            values.map((row, i) =>
              make(
                "tr",
                {},
                make("th", { scope: "row" }, label(axes[0], i)),
                row.map(cell),
                row.length < step.shape.at(-1) ? make("td", { class: "more" }, "…") : null,
              ),
            ),
          ),
        ),
      ),
    );
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // All heads
  // --------------------------------------------------------------------------------------------------------------- //

  const headOf = (list, kind, layer, head) =>
    list?.find((each) => each.kind === kind && each.layer === layer && each.head === head);

  /** What a head does, in few words. */
  function trait(numbers) {
    const [name, share] = Object.keys(TRAITS)
      .filter((each) => each in numbers)
      .map((each) => [each, numbers[each]])
      .reduce((a, b) => (b[1] > a[1] ? b : a));
    return share >= 0.35 ? `${TRAITS[name]} ${Math.round(100 * share)} %` : `spread over ${numbers.tokens.toFixed(1)}`;
  }

  function drawHeads() {
    const { attention: kinds, heads } = state.data,
      { effects } = state.own;
    const most = Math.max(1e-9, ...(effects ?? []).map(({ effect }) => Math.abs(effect)));
    const cell = (kind, layer, head) => {
      const numbers = headOf(heads, kind, layer, head),
        worth = headOf(effects, kind, layer, head);
      const bar = make("span", { class: "worth" }, make("span", {}));
      if (worth)
        Object.assign(bar.firstChild.style, {
          width: `${(100 * Math.abs(worth.effect)) / most}%`,
          background: `var(--${worth.effect < 0 ? "orange" : "blue"})`,
        });
      const effect = worth ? `, worth ${worth.effect.toFixed(3)}` : "";
      const off = make(
        "button",
        {
          type: "button",
          class: "off",
          "aria-pressed": String(isOff("heads_off", [kind, layer, head])),
          title: "Switch this head off",
          "aria-label": `Switch off ${KINDS[kind].name}, layer ${layer + 1}, head ${head + 1}`,
          click: () => toggle("heads_off", [kind, layer, head]),
        },
        "⏻",
      );
      return make(
        "div",
        { class: "cell" },
        host ? off : null,
        make(
          "button",
          {
            type: "button",
            class: "head",
            "data-at": `${kind} ${layer} ${head}`,
            "aria-pressed": String(
              state.head === head && state.layer === layer && state.kinds.has(kind) && state.kinds.size === 1,
            ),
            "aria-label": `${capital(KINDS[kind].name)}, layer ${layer + 1}, head ${head + 1}: ${trait(numbers)}${effect}`,
            click: () => {
              pickHead(kind, layer, head);
              parts.flow.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "nearest" });
            },
          },
          make("canvas", { "aria-hidden": "true" }),
          make("span", { class: "trait" }, make("b", {}, head + 1), " ", trait(numbers)),
          bar,
        ),
      );
    };
    const best = (effects ?? []).slice(0, 5).filter(({ effect }) => Math.abs(effect) > 1e-4);
    fill(
      parts.heads,
      make("h2", {}, "All heads at a glance"),
      make(
        "p",
        { class: "note" },
        "Each square is a head: its rows look at its columns. Under it, what it mostly looks at, and as a bar, what it is worth: how much less probable the answer gets when it is switched off (orange: more probable). Click one to open it above.",
      ),
      best.length
        ? make(
            "p",
            { class: "ranking" },
            make("b", {}, "Worth most: "),
            best.map(({ kind, layer, head, effect }) =>
              make(
                "button",
                { type: "button", style: `--color:${KINDS[kind].color}`, click: () => pickHead(kind, layer, head) },
                `${KINDS[kind].name} ${layer + 1}.${head + 1} `,
                make("b", {}, effect.toFixed(2)),
              ),
            ),
          )
        : null,
      make(
        "div",
        { class: "kinds" },
        kinds.map(({ kind, weights: layers }) =>
          make(
            "div",
            { class: "kind", style: `--color:${KINDS[kind].color};--heads:${state.data.model.heads}` },
            make("h3", {}, capital(KINDS[kind].name)),
            layers.map((_, layer) =>
              make(
                "div",
                { class: "row" },
                make("span", { class: "note" }, `layer ${layer + 1}`),
                make(
                  "div",
                  { class: "cells" },
                  layers[layer].map((__, head) => cell(kind, layer, head)),
                ),
              ),
            ),
          ),
        ),
      ),
      table("All heads as a table", () =>
        grid(
          "What each head does: shares of its attention, entropy in bits, and its worth in nats",
          ["head", ...Object.values(TRAITS), "entropy", "worth"],
          heads.map((each) => [
            `${KINDS[each.kind].name} ${each.layer + 1}.${each.head + 1}`,
            ...Object.keys(TRAITS).map((name) => (name in each ? percent(each[name]) : "–")),
            each.entropy.toFixed(2),
            headOf(effects, each.kind, each.layer, each.head)?.effect.toFixed(3) ?? "–",
          ]),
        ),
      ),
    );
    paintHeads();
  }

  /** A picture of weights [query][key], one pixel for each. */
  function paint(canvas, rows, color) {
    const probe = make("span", { style: `color:${color}` });
    frame.append(probe);
    const [red, green, blue] = getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      .map(Number);
    probe.remove();
    Object.assign(canvas, { width: rows[0].length, height: rows.length });
    const context = canvas.getContext("2d"),
      image = context.createImageData(canvas.width, canvas.height);
    rows.flat().forEach((weight, i) => image.data.set([red, green, blue, 255 * Math.sqrt(weight / 1000)], 4 * i));
    context.putImageData(image, 0, 0);
  }

  function paintHeads() {
    for (const button of parts.heads.querySelectorAll(".head")) {
      const [kind, layer, head] = button.dataset.at.split(" ");
      paint(button.querySelector("canvas"), weights(kind, Number(layer), Number(head)), KINDS[kind].color);
    }
  }

  function pickHead(kind, layer, head) {
    pause();
    Object.assign(state, { kinds: new Set([kind]), layer, head, revealed: Infinity, phase: phases().length - 1 });
    forgetTable();
    show("player", "flowing", "mapping", "heads", "box", "output", "broken", "beside");
    if (host) remember();
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // The logit lens
  // --------------------------------------------------------------------------------------------------------------- //

  function drawLens() {
    const { lens, steps } = state.data;
    const rows = lens.map((places, layers) => ({ places, layers })).toReversed();
    const cell = ({ top, p }, i) => {
      const td = make(
        "td",
        {
          class: i === state.step ? "now" : "",
          title: top.map((option) => `${visible(option.text)} ${percent(option.p)}`).join("\n"),
        },
        make("span", {}, shortened(visible(top[0].text), 12)),
        make("small", {}, percent(top[0].p)),
      );
      td.style.background = `color-mix(in srgb, var(--blue) ${Math.round(50 * Math.min(1, top[0].p))}%, transparent)`;
      if (top[0].id === steps[i].chosen) td.classList.add("agrees");
      return td;
    };
    fill(
      parts.lens,
      make("h2", {}, "What each layer would answer"),
      make(
        "p",
        { class: "note" },
        "The same model with its last layers left out: from the bottom, where only the embedding is there, to the top, where all of it is. Underlined: already the final answer.",
      ),
      make(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Answers of each layer" },
        make(
          "table",
          {},
          make("caption", { class: "unseen" }, "The most probable answer after each layer"),
          make(
            "thead",
            {},
            make(
              "tr",
              {},
              make("th", {}),
              steps.map((step, i) =>
                make(
                  "th",
                  { scope: "col" },
                  make(
                    "button",
                    {
                      type: "button",
                      "aria-pressed": String(i === state.step),
                      click: () => {
                        pause();
                        Object.assign(state, { step: i, hover: null });
                        show("flowing", "mapping", "output", "lens", "broken");
                      },
                    },
                    task() === "classify"
                      ? "the text"
                      : shortened(visible(task() === "tag" ? state.data.source[step.token].text : step.text), 12),
                  ),
                ),
              ),
            ),
          ),
          make(
            "tbody",
            {},
            rows.map(({ places, layers }) =>
              make(
                "tr",
                {},
                make("th", { scope: "row" }, layers === 0 ? "embedding" : `layer ${layers}`),
                places.map(cell),
              ),
            ),
          ),
        ),
      ),
    );
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // Break it
  // --------------------------------------------------------------------------------------------------------------- //

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
    breakIt();
  }

  let broke = 0;

  /** Ask what the model says with its changes. */
  async function breakIt() {
    pause();
    const number = ++broke;
    show("broken", "heads");
    remember();
    if (!isChanged()) {
      state.beside = null;
      view(state.own);
      return show(...Object.keys(DRAW));
    }
    message.hidden = true;
    parts.beside.classList.add("waits");
    try {
      const { changed, same: steps } = await host.changed({ ...state.request, changes: state.changes });
      if (number !== broke) return; // another wish came meanwhile
      const shown = state.data !== state.own;
      state.beside = { title: "Changed", data: changed, same: steps };
      if (shown) {
        view(changed);
        show("player", "map", "flow", "output", "heads", "lens");
      }
      show("beside");
    } catch (error) {
      complain(error);
    } finally {
      if (number === broke) parts.beside.classList.remove("waits");
    }
  }

  async function setBeside(model) {
    pause();
    state.changes = unchanged();
    const number = ++broke,
      { text, context } = state.request;
    try {
      const data = await host.explore({ model, text, context, target: null });
      if (number !== broke) return;
      state.beside = { title: host.models[model].name, data, same: null };
      show("broken", "beside", "heads");
    } catch (error) {
      complain(error);
    }
  }

  function drawBroken() {
    parts.broken.hidden = !host;
    if (!host) return;
    const { stacks, heads } = state.own.model;
    const has = (stack) => [
      "self-attention",
      ...(stack === "decoder" && state.own.target ? ["cross-attention"] : []),
      "feed-forward",
    ];
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
          ["self-attention", "cross-attention", "feed-forward"].map((part) =>
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
              breakIt();
            },
          }),
          "Causal mask",
        ),
      );
    const others = host.models
      .map((each, i) => [each, i])
      .filter(([each, i]) => each.task === task() && i !== state.request.model);
    fill(
      parts.broken,
      make("h2", {}, "Break it"),
      make(
        "p",
        { class: "note" },
        "Everything here is on. Switch something off, and the same model runs without it: did the answer need what it looked at? Heads have their switch in the pictures below.",
      ),
      make(
        "div",
        { class: "switches" },
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
            state.changes.weights.map((weight) =>
              make(
                "button",
                { type: "button", title: "As it was", click: () => toggle("weights", weight) },
                `${KINDS[weight[0]].name} ${weight[1] + 1}.${weight[2] + 1}: “${visible(tokens(columns(weight[0]).to)[weight[4]]?.text ?? "")}” ${percent(weight[5])} ×`,
              ),
            ),
          ),
          weightSetter(),
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
                ["the layer", "+ X, self-attention", "+ X, cross-attention", "+ X, feed-forward"].map((text) =>
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
        isChanged()
          ? make(
              "button",
              {
                type: "button",
                click: () => {
                  state.changes = unchanged();
                  breakIt();
                },
              },
              "Everything on again",
            )
          : null,
        others.map(([each, i]) =>
          make("button", { type: "button", click: () => setBeside(i) }, `Set ${each.name} beside it`),
        ),
      ),
    );
  }

  /** A slider for the weight with which the token that looks sees another one. */
  function weightSetter() {
    const [kind] = state.kinds;
    const query = kind ? queryOf(kind) : null;
    if (state.kinds.size !== 1 || state.head === "mean" || query === null || state.data !== state.own)
      return make("p", { class: "note" }, "To set an attention weight, choose one head, and a token.");
    const { from, to, ahead } = columns(kind),
      row = weights(kind)[query];
    const key = make(
      "select",
      {
        "aria-label": "Token looked at",
        change: () => {
          slider.value = row[key.value] / 10;
          told.textContent = percent(slider.value / 100);
        },
      },
      row.map((_, i) => make("option", { value: i }, `${i + 1} ${visible(tokens(to)[i].text)}`)),
    );
    key.value = row.indexOf(Math.max(...row));
    const told = make("output", {}, percent(row[key.value] / 1000));
    const slider = make("input", {
      type: "range",
      min: 0,
      max: 100,
      value: row[key.value] / 10,
      "aria-label": "Attention weight",
      input: () => {
        told.textContent = percent(slider.value / 100);
      },
      change: () => {
        const at = [kind, state.layer, state.head, query, Number(key.value)];
        state.changes.weights = [
          ...state.changes.weights.filter((each) => !same(each.slice(0, 5), at)),
          [...at, slider.value / 100],
        ];
        breakIt();
      },
    });
    return make(
      "div",
      { class: "setter" },
      make(
        "span",
        {},
        `Head ${state.layer + 1}.${state.head + 1}: “${visible(tokens(from)[query + ahead].text)}” looks at`,
      ),
      key,
      slider,
      told,
    );
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // Side by side
  // --------------------------------------------------------------------------------------------------------------- //

  /** Which of two lists' items are in their longest common part: two sets of indices. */
  function common(one, other) {
    const lengths = Array.from({ length: one.length + 1 }, () => new Array(other.length + 1).fill(0));
    for (let i = one.length - 1; i >= 0; i--)
      for (let j = other.length - 1; j >= 0; j--)
        lengths[i][j] =
          one[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    const found = [new Set(), new Set()];
    for (let i = 0, j = 0; i < one.length && j < other.length;) {
      if (one[i] === other[j]) {
        found[0].add(i++);
        found[1].add(j++);
      } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
      else j++;
    }
    return found;
  }

  function drawBeside() {
    parts.beside.hidden = !state.beside;
    if (!state.beside) return;
    const { title, data, same: kept } = state.beside,
      { own } = state;
    const texts = [own, data].map((each) => each.steps.map((step) => step.text));
    const shared = common(...texts);
    const words = (each, i) =>
      make(
        "p",
        { class: "answer" },
        ["translate", "generate"].includes(each.model.task)
          ? each.steps
              .filter((step) => step.chosen !== each.model.eos)
              .map((step, n) => (shared[i].has(n) ? step.text : make("mark", {}, step.text)))
          : own.answer === data.answer
            ? each.answer
            : make("mark", {}, each.answer),
      );
    const steps = kept ?? data.steps;
    const log = (list) => list.reduce((sum, step) => sum + Math.log(Math.max(step.p, 1e-9)), 0);
    const stays = own.answer === data.answer;
    const { regression } = own.model;
    const [before, after] = [own.steps, kept ?? []].map(log);
    const goes = `from ${percent(Math.exp(before))} to ${percent(Math.exp(after))}`;
    let verdict = null;
    if (kept && regression) {
      verdict = `The number goes from ${own.steps[0].p.toFixed(3)} to ${kept[0].p.toFixed(3)}.`;
    } else if (kept && !stays) {
      verdict = `The answer changes; the probability of the old one goes ${goes}: here the model did use what is missing.`;
    } else if (kept) {
      const lost = before - after > Math.log(2);
      verdict = lost
        ? `The answer stays, but its probability goes ${goes}: what is missing spoke for it.`
        : `The answer stays, and its probability goes ${goes}: whatever the missing parts looked at, it does not hang on them.`;
    }
    const count = Math.max(own.steps.length, steps.length);
    const value = (p) => (p === undefined ? "" : regression ? p.toFixed(3) : percent(p));
    const rows = Array.from({ length: count }, (_, i) => {
      const [a, b] = [own.steps[i], steps[i]];
      const cells = kept
        ? [value(a?.p), value(b?.p), b?.rank.toLocaleString("en") ?? "", b ? visible(b.top[0].text) : ""]
        : [value(a?.p), b ? visible(b.text) : "", value(b?.p)];
      const about = a && a.token !== null && own.model.task === "tag" ? `${visible(own.source[a.token].text)} ` : "";
      return [a ? about + visible(a.text) : "", ...cells];
    });
    const kind = [...state.kinds][0] ?? own.attention[0].kind;
    const square = (each) => {
      const list = each.attention.find((item) => item.kind === kind);
      if (!list) return null;
      const canvas = make("canvas", { role: "img", "aria-label": `${KINDS[kind].name}, layer ${state.layer + 1}` });
      const heads = list.weights[Math.min(state.layer, list.weights.length - 1)];
      paint(
        canvas,
        state.head === "mean" || state.head >= heads.length
          ? heads[0].map((row, q) =>
              row.map((_, k) => heads.reduce((sum, head) => sum + head[q][k], 0) / heads.length),
            )
          : heads[state.head],
        KINDS[kind].color,
      );
      return canvas;
    };
    const side = (name, each, i) =>
      make(
        "div",
        { class: "side" },
        make("h3", {}, name),
        words(each, i),
        make(
          "div",
          { class: "square" },
          square(each),
          make("span", { class: "note" }, `${capital(KINDS[kind].name)}, layer ${state.layer + 1}`),
        ),
        make(
          "button",
          {
            type: "button",
            "aria-pressed": String(state.data === each),
            click: () => {
              pause();
              view(each);
              show(...Object.keys(DRAW));
              parts.player.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "nearest" });
            },
          },
          state.data === each ? "Shown above" : "Show it above",
        ),
      );
    fill(
      parts.beside,
      make("h2", {}, "Side by side"),
      verdict ? make("p", { class: "verdict", "aria-live": "polite" }, verdict) : "",
      make(
        "div",
        { class: "sides" },
        side(host ? host.models[state.request.model].name : "As it is", own, 0),
        side(title, data, 1),
      ),
      make(
        "div",
        { class: "scroll" },
        grid(
          kept ? "The usual answer, place by place" : "The answers, place by place",
          kept ? ["", "as it is", "changed", "rank then", "first then"] : ["", "probability", title, "probability"],
          rows,
        ),
      ),
    );
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // A link, and files
  // --------------------------------------------------------------------------------------------------------------- //

  /** The state as the address has it. */
  function link() {
    const { request, layer, head, kinds, step, changes } = state;
    const kept = { ...request, model: host.models[request.model].name, layer, head, kinds: [...kinds], step };
    if (isChanged()) kept.changes = changes;
    return `#explore=${encodeURIComponent(JSON.stringify(kept))}`;
  }

  const remember = () => host && history.replaceState(history.state, "", link());

  function fromLink() {
    try {
      return JSON.parse(decodeURIComponent(location.hash.match(/^#explore=(.*)$/)?.[1] ?? "null"));
    } catch {
      return null;
    }
  }

  function download(name, content, type) {
    const url =
      content instanceof Blob ? URL.createObjectURL(content) : URL.createObjectURL(new Blob([content], { type }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  /** A page that needs nothing else. */
  async function savePage() {
    for (const [stack, layers] of Object.entries(state.own.model.stacks))
      for (let layer = 0; layer < layers; layer++)
        (state.own.values ??= {})[`${stack} ${layer}`] ??= await layerOf(stack, layer);
    const script = (value) => JSON.stringify(value).replaceAll("<", "\\u003c");
    const end = "</scr" + "ipt>";
    const page = `<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Explorer</title>\n<style>html { color-scheme: light dark; background: light-dark(#fff, #0d1117) } body { margin: 0 }</style>\n<div id="explorer"></div>\n<script>\n${mountExplorer.toString()}\nmountExplorer(document.getElementById("explorer"), {style: ${script(style)}, data: ${script(state.own)}});\n${end}\n</html>\n`;
    download("explorer.html", page, "text/html");
  }

  /** The tokens and arcs as they are seen. */
  async function savePicture() {
    const shown = parts.flow.querySelector("svg"),
      copy = shown.cloneNode(true);
    const originals = [shown, ...shown.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
      const seen = getComputedStyle(originals[i]);
      for (const name of "fill fill-opacity stroke stroke-width stroke-opacity stroke-linecap font-family font-size font-weight opacity text-anchor".split(
        " ",
      ))
        element.style.setProperty(name, seen.getPropertyValue(name));
      element.style.animation = "none";
    });
    const { width, height } = shown.viewBox.baseVal;
    Object.entries({ width: 2 * width, height: 2 * height, xmlns: "http://www.w3.org/2000/svg" }).forEach(
      ([name, value]) => copy.setAttribute(name, value),
    );
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    await picture.decode();
    const canvas = make("canvas", { width: 2 * width, height: 2 * height }),
      context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(frame).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(picture, 0, 0);
    canvas.toBlob((blob) => download("attention.png", blob), "image/png");
  }

  /** The weights that are drawn, a row for each query. */
  function saveTable() {
    const cell = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const lines = [...state.kinds].flatMap((kind) => {
      const { from, to, ahead } = columns(kind),
        all = weights(kind);
      const head = state.head === "mean" ? "mean" : state.head + 1;
      return [
        ["attention", "layer", "head", "looks", ...all[0].map((_, key) => tokens(to)[key].text)],
        ...all.map((row, query) => [
          KINDS[kind].name,
          state.layer + 1,
          head,
          tokens(from)[query + ahead].text,
          ...row.map((weight) => weight / 1000),
        ]),
      ];
    });
    download("attention.csv", `${lines.map((line) => line.map(cell).join(",")).join("\r\n")}\r\n`, "text/csv");
  }

  function drawSave() {
    const button = (text, act) =>
      make(
        "button",
        {
          type: "button",
          click: async (event) => {
            try {
              await act(event);
            } catch (error) {
              complain(error);
            }
          },
        },
        text,
      );
    fill(
      parts.save,
      make("h2", {}, "Take it with you"),
      make(
        "p",
        { class: "actions" },
        host
          ? button("Copy link", async ({ target }) => {
              remember();
              await navigator.clipboard?.writeText(location.href);
              target.textContent = navigator.clipboard ? "Copied" : "It is in the address bar";
              setTimeout(() => {
                target.textContent = "Copy link";
              }, 1500);
            })
          : null,
        host ? button("Page (HTML)", savePage) : null,
        button("Picture (PNG)", savePicture),
        button("All data (JSON)", () =>
          download("explorer.json", JSON.stringify(state.data, null, 1), "application/json"),
        ),
        button("These weights (CSV)", saveTable),
      ),
    );
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // One that learns
  // --------------------------------------------------------------------------------------------------------------- //

  const lesson = {
    options: { heads: 4, positions: true, warmup: true, mask: true, norm: "post" },
    frames: [],
    running: null,
    controls: null,
    picture: null,
  };

  function stopTraining() {
    lesson.running?.stop();
    lesson.running = null;
  }

  async function startTraining() {
    stopTraining();
    lesson.frames = [];
    message.hidden = true;
    const frames = lesson.frames;
    const running = host.train({ ...lesson.options }, (frame) => {
      frames.push(frame);
      if (lesson.frames === frames && !parts.train.hidden) drawTrain();
    });
    lesson.running = running;
    drawTrain();
    try {
      await running.ended;
    } catch (error) {
      if (lesson.running === running) complain(error);
    }
    if (lesson.running === running) {
      lesson.running = null;
      drawTrain();
    }
  }

  /** What is seen in a run, and why it may fail. */
  function moral() {
    const { positions, warmup, mask, norm } = lesson.options,
      last = lesson.frames.at(-1);
    if (!last) return "It begins …";
    const learned = last.right > 0.9;
    if (!positions)
      return "Without positions it sees a bag of digits: it knows which there are, and not where. Nothing can be written backwards.";
    if (!mask)
      return "Without the causal mask it is shown what it has to write, and copies that: the loss goes to nothing. When it writes by itself there is nothing to copy, and it fails.";
    if (learned)
      return `It has learned it, in ${last.step} steps: the squares have turned into anti-diagonals, since the first digit that it writes has to look at the last that it reads.`;
    if (!warmup && lesson.running === null)
      return norm === "post"
        ? "With the full learning rate from the first step, the post-norm of the paper does not find its way. Try pre-norm, or the warm-up."
        : "Without warm-up it learns worse. The warm-up is what the paper does about it.";
    if (lesson.running === null) return "It has not learned it in these steps.";
    return last.step < 60
      ? "Grey squares: it looks everywhere a little, and guesses."
      : "It begins to look somewhere: watch the squares.";
  }

  /** What stays while the picture changes. */
  function drawLessonControls() {
    const { options } = lesson;
    lesson.controls = [];
    const kept = (element, update) => {
      lesson.controls.push([element, update]);
      return element;
    };
    const set = (name, value) => {
      options[name] = value;
      startTraining();
    };
    const segments = (label, name, values) =>
      make(
        "div",
        { class: "segments", role: "group", "aria-label": label },
        make("span", {}, label),
        values.map(([value, text]) =>
          kept(make("button", { type: "button", click: () => set(name, value) }, text), (button) =>
            button.setAttribute("aria-pressed", String(options[name] === value)),
          ),
        ),
      );
    const yes = (label, name) =>
      make(
        "label",
        { class: "toggle" },
        make("input", {
          type: "checkbox",
          checked: options[name],
          change: (event) => set(name, event.target.checked),
        }),
        label,
      );
    const stop = () => {
      stopTraining();
      drawTrain();
    };
    lesson.picture = make("div");
    fill(
      parts.train,
      make("h2", {}, "A Transformer learns to write six digits backwards"),
      make(
        "p",
        { class: "note" },
        "One encoder layer, one decoder layer, 64 wide: it is trained on the server now, from nothing. Change something, and it begins again.",
      ),
      make(
        "div",
        { class: "switches" },
        segments(
          "Heads",
          "heads",
          [1, 2, 4, 8].map((n) => [n, String(n)]),
        ),
        segments("Norm", "norm", [
          ["post", "post"],
          ["pre", "pre"],
        ]),
        yes("Positions", "positions"),
        yes("Warm-up", "warmup"),
        yes("Causal mask", "mask"),
        kept(
          make("button", { type: "button", class: "go", click: () => (lesson.running ? stop() : startTraining()) }),
          (button) => {
            button.textContent = lesson.running ? "Stop" : "Train again";
          },
        ),
      ),
      lesson.picture,
    );
  }

  function drawTrain() {
    const { frames } = lesson,
      last = frames.at(-1);
    const width = 520,
      height = 200,
      total = last?.steps ?? 500;
    const x = (step) => 34 + ((width - 44) * step) / total;
    const lossTop = Math.max(2.6, ...frames.map((each) => each.loss ?? 0));
    const line = (name, top, color) =>
      make("path", {
        class: "curve",
        style: `stroke:${color}`,
        d: frames
          .filter((each) => each[name] !== null)
          .map(
            (each, i) =>
              `${i ? "L" : "M"} ${x(each.step).toFixed(1)} ${(10 + (height - 34) * (1 - Math.min(1, each[name] / top))).toFixed(1)}`,
          )
          .join(" "),
      });
    const chart = make(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": last
          ? `Step ${last.step}: loss ${last.loss ?? "none yet"}, ${percent(last.right)} right`
          : "Nothing yet",
      },
      make("line", { class: "pipe", x1: 34, x2: width - 10, y1: height - 24, y2: height - 24 }),
      make("line", { class: "pipe", x1: 34, x2: 34, y1: 10, y2: height - 24 }),
      make("text", { class: "small", x: 34, y: height - 6 }, "step 0"),
      make("text", { class: "small", x: width - 10, y: height - 6, "text-anchor": "end" }, String(total)),
      make("text", { class: "small", x: 28, y: 18, "text-anchor": "end" }, lossTop.toFixed(1)),
      make("text", { class: "small", x: 28, y: height - 24, "text-anchor": "end" }, "0"),
      line("loss", lossTop, "var(--orange)"),
      line("right", 1, "var(--blue)"),
    );
    const goal = last ? [...last.text].reverse() : [];
    const squares = last?.attention.map((rows, head) => {
      const canvas = make("canvas", {
        role: "img",
        "aria-label": `Head ${head + 1}: each digit written looks at the digits read`,
      });
      paint(canvas, rows, "var(--purple)");
      return make("figure", {}, canvas, make("figcaption", { class: "note" }, `head ${head + 1}`));
    });
    if (!lesson.controls) drawLessonControls();
    for (const [element, update] of lesson.controls) update(element);
    fill(
      lesson.picture,
      make("p", { class: "caption" }, moral()),
      make(
        "div",
        { class: "lesson" },
        make(
          "div",
          {},
          make(
            "h3",
            {},
            make("span", { style: "color:var(--orange)" }, "loss "),
            last?.loss?.toFixed(3) ?? "–",
            make("span", { style: "color:var(--blue)" }, "   right "),
            last ? percent(last.right) : "–",
          ),
          chart,
          last
            ? make(
                "p",
                { class: "digits" },
                last.text,
                " → ",
                [...last.written].map((digit, i) =>
                  make("span", { class: digit === goal[i] ? "right" : "wrong" }, digit),
                ),
              )
            : "",
        ),
        make(
          "div",
          {},
          make("h3", {}, "Cross-attention: rows write, columns are read"),
          make("div", { class: "squares" }, squares ?? ""),
        ),
      ),
      last
        ? table("The curves as a table", () =>
            grid(
              "Loss and share of right answers by step",
              ["step", "loss", "right"],
              frames.map((each) => [each.step, each.loss?.toFixed(3) ?? "–", percent(each.right)]),
            ),
          )
        : "",
    );
  }

  // --------------------------------------------------------------------------------------------------------------- //
  // Asking
  // --------------------------------------------------------------------------------------------------------------- //

  function complain(error) {
    message.textContent = error.message ?? String(error);
    message.hidden = false;
  }

  async function ask(request, then = null) {
    const number = ++state.asked;
    pause();
    message.hidden = true;
    frame.classList.add("busy");
    try {
      const answer = await host.explore(request);
      if (number !== state.asked) return; // another wish came meanwhile
      take(answer, request);
      if (state.motion && growing() && !then) play();
      then?.();
    } catch (error) {
      if (number === state.asked) complain(error);
      return;
    } finally {
      if (number === state.asked) frame.classList.remove("busy");
    }
    try {
      const effects = await host.effects({ ...request, target: writtenIds(state.own) });
      if (number !== state.asked) return;
      state.own.effects = effects;
      drawHeads();
    } catch {
      // the picture is whole without them
    }
  }

  function take(answer, request) {
    broke++;
    Object.assign(state, { own: answer, request, beside: null, changes: unchanged(), box: null, head: "mean" });
    view(answer);
    whole.hidden = false;
    show(...Object.keys(DRAW));
    if (request) remember();
  }

  /** Draw these data: of the model as it is, or of what is beside it. */
  function view(data) {
    Object.assign(state, { data, step: 0, hover: null, revealed: Infinity });
    state.kinds = new Set(data.attention.map(({ kind }) => kind));
    state.layer = Math.min(state.head === "mean" ? Infinity : state.layer, mostLayers() - 1);
    if (state.head !== "mean" && state.head >= data.model.heads) state.head = "mean";
    state.phase = phases().length - 1;
    if (growing()) state.step = Math.min(data.steps.length - 1, firstWritten());
    frame.classList.toggle("other", data !== state.own);
  }

  const DRAW = {
    player: drawPlayer,
    map: drawMap,
    flow: drawFlow,
    mapping: updateMap,
    flowing: updateFlow,
    output: drawOutput,
    box: drawBox,
    broken: drawBroken,
    beside: drawBeside,
    heads: drawHeads,
    lens: drawLens,
    save: drawSave,
  };
  const show = (...names) => names.forEach((name) => DRAW[name]());

  function drawTop() {
    const models = host.models;
    let chosen = 0;
    const fields = make("form", {
      submit: (event) => {
        event.preventDefault();
        ask(wish());
      },
    });
    const field = (label, name, value, extra = {}) =>
      make(
        "label",
        { class: name },
        make("span", {}, label),
        make(extra.tag ?? "input", { name, value, maxlength: 2000, autocomplete: "off", ...extra, tag: null }),
      );
    const value = (name) => fields.elements[name]?.value.trim() || null;
    const wish = () => ({
      model: chosen,
      text: value("text") ?? "",
      context: value("context"),
      target: value("target"),
    });
    const pick = (number) => {
      chosen = number;
      learning(false);
      const model = models[number];
      const [verb, label] = TASKS[model.task];
      const [example] = model.examples;
      fill(
        chips,
        ...models.map((each, i) =>
          make(
            "button",
            {
              type: "button",
              "aria-pressed": String(i === number),
              click: () => {
                pick(i);
                ask(wish());
              },
            },
            make("b", {}, TASKS[each.task][0]),
            make("span", {}, each.name),
          ),
        ),
        learner,
      );
      const forced = {
        translate: ["Make it write something of your own", "your own translation"],
        generate: ["Make it go on with words of your own", "your own words"],
      }[model.task];
      const run = ({ text, context = "" }) => {
        for (const [name, content] of Object.entries({ text, context, target: "" }))
          if (fields.elements[name]) fields.elements[name].value = content;
        ask(wish());
      };
      fill(
        fields,
        field(label, "text", example.text),
        model.task === "answer" ? field("Text with the answer", "context", example.context) : "",
        make("button", { type: "submit", class: "go" }, verb),
        make(
          "div",
          { class: "examples" },
          model.examples.length > 1
            ? [
                make("span", {}, "Try "),
                model.examples.map((each) => make("button", { type: "button", click: () => run(each) }, each.text)),
              ]
            : "",
        ),
        forced
          ? make(
              "details",
              { class: "force" },
              make("summary", {}, forced[0]),
              field("It is shown token by token, with the probability and the rank of each", "target", "", {
                placeholder: forced[1],
              }),
            )
          : "",
      );
    };
    const learner = make(
      "button",
      { type: "button", "aria-pressed": "false", click: () => learning(true) },
      make("b", {}, "Train"),
      make("span", {}, "watch one learn"),
    );
    const learning = (on) => {
      fields.hidden = on;
      whole.hidden = on || !state.data;
      if (on) message.hidden = true;
      parts.train.hidden = !on;
      for (const button of chips.children)
        button.setAttribute(
          "aria-pressed",
          String(on ? button === learner : button === chips.children[chosen] && button !== learner),
        );
      if (on) {
        pause();
        startTraining();
      } else stopTraining();
    };
    const chips = make("div", { class: "models", role: "group", "aria-label": "Models" });
    fill(parts.top, chips, fields);
    if (!models.length) {
      fill(chips, learner);
      return learning(true);
    }
    const linked = fromLink();
    const number = Math.max(
      0,
      models.findIndex((each) => each.name === linked?.model),
    );
    pick(number);
    if (!linked) return ask(wish());
    for (const name of ["text", "context", "target"])
      if (fields.elements[name]) fields.elements[name].value = typeof linked[name] === "string" ? linked[name] : "";
    ask({ model: number, text: linked.text, context: linked.context ?? null, target: linked.target ?? null }, () => {
      Object.assign(state, {
        layer: Math.min(linked.layer ?? 0, mostLayers() - 1),
        head: linked.head ?? "mean",
        step: Math.min(linked.step ?? 0, state.data.steps.length - 1),
      });
      if (linked.kinds) state.kinds = new Set(linked.kinds.filter(attention));
      show(...Object.keys(DRAW));
      if (linked.changes) {
        state.changes = { ...unchanged(), ...linked.changes };
        breakIt();
      }
    });
  }

  adoptTheme();
  setMotion(state.motion);
  if (host) drawTop();
  else take(data, null);
}
