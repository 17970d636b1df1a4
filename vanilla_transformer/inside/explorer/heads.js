// Thumbnails of the attention of all heads.

const headOf = (list, kind, layer, head) =>
  list?.find((each) => each.kind === kind && each.layer === layer && each.head === head);

/** Return the main property of a head in a few words. */
function trait(numbers) {
  const [name, most] = Object.keys(TRAITS)
    .filter((each) => each in numbers)
    .map((each) => [each, numbers[each]])
    .reduce((a, b) => (b[1] > a[1] ? b : a));
  return most >= 0.35 ? `${TRAITS[name]} ${Math.round(100 * most)} %` : `spread over ${numbers.tokens.toFixed(1)} tokens`;
}

function drawHeads() {
  const { attention: kinds, heads, effects, model } = state.data; // data of a changed model contain no effects
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
    const effect = worth ? `, effect ${decimals(worth.effect, 3)}` : "";
    const off = button(icon("power"), () => toggleOff("heads_off", [kind, layer, head]), {
      class: "off",
      "aria-pressed": String(isOff("heads_off", [kind, layer, head])),
      title: "Switch this head off",
      tabindex: -1, // Delete does the same on the head itself
      "aria-label": `Switch off ${KINDS[kind].name}, layer ${layer + 1}, head ${head + 1}`,
    });
    const pick = () => {
      pickHead(kind, layer, head);
      parts.stage.scrollIntoView({ behavior: state.motion ? "smooth" : "auto", block: "nearest" });
    };
    const content = [
      make("canvas", { "aria-hidden": "true" }),
      make("span", { class: "trait" }, make("b", {}, head + 1), " ", trait(numbers)),
      bar,
    ];
    const square = button(content, pick, {
      class: "head",
      "data-at": `${kind} ${layer} ${head}`,
      tabindex: -1,
      keydown: (event) => {
        if (host && ["Delete", "Backspace"].includes(event.key)) return toggleOff("heads_off", [kind, layer, head]);
        rove(event, [...parts.heads.querySelectorAll(".head")]);
      },
      "aria-label": `${capital(KINDS[kind].name)}, layer ${layer + 1}, head ${head + 1}: ${trait(numbers)}${effect}`,
    });
    return make("div", { class: "cell" }, host && off, square);
  };
  /** Return the number of columns, at most `most`, that gives rows of equal length. */
  const columnsOf = (most) => {
    const { heads: all } = state.data.model;
    for (let n = Math.min(most, all); n > 1; n--) if (all % n === 0) return n;
    return Math.min(most, all);
  };
  const largest = (effects ?? []).slice(0, 5).filter(({ effect }) => Math.abs(effect) > 1e-4);
  fill(
    parts.heads,
    make("h2", {}, "All heads"),
    note(
      `Each square is a head: rows attend to columns. The text below it says what the head mostly attends to. The bar shows the effect of switching it off: ${model.regression ? "how far the number moves" : "how much less probable the answer becomes (orange: more probable)"}. Click a head to show it above.`,
      host && " By keyboard, the arrow keys move between heads, and Delete switches one off.",
    ),
    largest.length > 0 &&
      make(
        "p",
        { class: "ranking" },
        make("b", {}, "Largest effect: "),
        largest.map(({ kind, layer, head, effect }) =>
          button(
            [`${KINDS[kind].name} ${layer + 1}.${head + 1} `, make("b", {}, decimals(effect, 2))],
            () => pickHead(kind, layer, head),
            { style: `--color:${KINDS[kind].color}` },
          ),
        ),
      ),
    make(
      "div",
      { class: "kinds" },
      kinds.map(({ kind, weights: layers }) =>
        make(
          "div",
          { class: "kind", style: `--color:${KINDS[kind].color};--heads:${columnsOf(8)};--few:${columnsOf(4)}` },
          make("h3", {}, capital(KINDS[kind].name)),
          layers.map((heads, layer) =>
            make(
              "div",
              { class: "row" },
              make("span", { class: "note" }, `layer ${layer + 1}`),
              make("div", { class: "cells" }, heads.map((_, head) => cell(kind, layer, head))),
            ),
          ),
        ),
      ),
    ),
    table("All heads as a table", () =>
      grid(
        `Each head: shares of its attention, entropy in bits, and effect of switching it off${model.regression ? "" : " in nats"}`,
        ["head", ...Object.values(TRAITS), "entropy", "effect"],
        heads.map((each) => [each, headOf(effects, each.kind, each.layer, each.head)]).map(([each, worth]) => [
          `${KINDS[each.kind].name} ${each.layer + 1}.${each.head + 1}`,
          ...Object.keys(TRAITS).map((name) => (name in each ? share(1000 * each[name]) : "–")),
          each.entropy.toFixed(2),
          worth ? decimals(worth.effect, 3) : "–",
        ]),
      ),
    ),
  );
  paintHeads();
  updateHeads();
}

/** Mark the chosen head. */
function updateHeads() {
  for (const button of parts.heads.querySelectorAll(".head")) {
    const [kind, layer, head] = button.dataset.at.split(" ");
    const isChosen = state.head === Number(head) && state.layers[stackWith(kind)] === Number(layer) && state.kinds.has(kind) && state.kinds.size === 1;
    button.setAttribute("aria-pressed", String(isChosen));
  }
  const stop = parts.heads.querySelector(".head[aria-pressed=true]") ?? parts.heads.querySelector(".head");
  for (const button of parts.heads.querySelectorAll(".head")) button.setAttribute("tabindex", button === stop ? 0 : -1);
}

/** Paint attention weights [query][key], one pixel each. */
function paint(canvas, rows, color) {
  if (!inks) readInks();
  const [red, green, blue] = inks[color.match(/--(\w+)/)[1]];
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
  showLayer(stackWith(kind), layer);
  Object.assign(state, { kinds: new Set([kind]), head, revealed: Infinity, phase: phases().length - 1 });
  show("player", "staging", "heading", "card", "output", "beside");
  if (host) remember();
}
