// Links to the current state, and downloads.

const addressOf = (kept) => `#explore=${encodeURIComponent(JSON.stringify(kept))}`;

/** Encode the state as a URL. */
function link() {
  const { tour, presenting, request, layers, head, kinds, step, changes, beside, card, cell, experiment } = state;
  const named = { ...request, model: host.models[request.model].name };
  const mode = { ...(tour && { tour }), ...(presenting && { present: true }) };
  if (!parts.train.hidden) return addressOf({ ...(tour && named), ...mode, train: true });
  const kept = { ...named, ...mode, ...(experiment && { experiment }) };
  // A link opens on the original model, whose steps and heads may differ from the other model's.
  if (state.data === state.own) Object.assign(kept, { layers, head, kinds: [...kinds], step, ...(card && { card }), ...(cell && { cell }) });
  if (isChanged()) kept.changes = changes;
  else if (beside && !beside.same) kept.beside = beside.title;
  return addressOf(kept);
}

/** Write the state to the address bar. With `step`, the browser's Back button returns to the previous state. */
function remember(step = false) {
  if (!host || !linked || !state.request || location.hash === link()) return;
  try {
    history[(step || state.astray) && fromLink() ? "pushState" : "replaceState"](history.state, "", link());
    state.astray = false;
  } catch {
    // Some browsers limit history entries to about a hundred within a few seconds.
  }
}

/** Return the state in the address; null if there is none. */
function fromLink() {
  const [, tour, present] = location.hash.match(/^#tour=([a-z-]+)(&present)?$/) ?? [];
  if (tour) return { tour, present: Boolean(present) };
  const text = location.hash.match(/^#explore=(.*)$/)?.[1];
  if (text === undefined) return null;
  try {
    return { ...JSON.parse(decodeURIComponent(text)) };
  } catch {
    return {};
  }
}

/** Restore the state of a link, and return whether it fits the model; otherwise, keep the default view. */
function look(linked) {
  const { layers, head, step, kinds, changes, beside, card, cell, experiment = null, tour, present } = linked;
  const usual = { ...state };
  const other = host.models.findIndex((each) => each.name === beside && each.task === task());
  const fits = (number, end) => number === undefined || (Number.isInteger(number) && number >= 0 && number < end);
  try {
    const { stacks } = state.data.model;
    const isThere = Object.entries(layers ?? {}).every(([stack, layer]) => fits(layer, stacks[stack] ?? 0));
    if (!isThere || !fits(step, state.data.steps.length)) throw new Error("no such layer or step");
    if (head !== "mean" && !fits(head, state.data.model.heads)) throw new Error("no such head");
    Object.assign(state, {
      layers: { ...state.layers, ...layers },
      head: head ?? state.head,
      step: step ?? state.step,
      kinds: new Set(kinds ?? state.kinds),
      changes: { ...unchanged(), ...changes },
      experiment,
      presenting: Boolean(tour && present),
    });
    state.tour = tour ? nearestStop(tour) : null;
    placeTour();
    show(...Object.keys(DRAW));
    if (beside && other < 0) throw new Error(`${beside} is not loaded`);
    if (card && !(card[0] in stacks && fits(card[1], stacks[card[0]])))
      throw new Error(`no step ${card}`);
    if (cell && weights(cell[0], 0, 0)[cell[1]][cell[2]] === undefined) throw new Error(`no cell ${cell}`);
  } catch {
    Object.assign(state, usual);
    show(...Object.keys(DRAW));
    remember();
    return false;
  }
  if (tour && layers === undefined) {
    visit(state.tour, false);
    scrollToStop();
    return true;
  }
  if (changes) breakIt();
  else if (beside) setBeside(other);
  if (card) Object.assign(state, { card });
  if (cell) pinAt(...cell);
  show("card");
  remember();
  return true;
}

function download(name, content, type) {
  const url =
    content instanceof Blob ? URL.createObjectURL(content) : URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Convert typed arrays, for JSON.stringify, to arrays of rounded numbers. */
const plain = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value, (x) => Number(x.toFixed(4))) : value);

/** Return all data shown: that of the original model, and of the model compared with it. */
const seen = () =>
  state.beside ? { ...state.own, beside: { ...state.beside, above: state.data !== state.own } } : state.own;

/** Save a self-contained page, in which the shown models run if they run here; otherwise, with all values of layers. */
async function savePage() {
  const all = structuredClone(seen()); // the state may change during the requests below
  const shown = all.beside ? [all, all.beside.data] : [all];
  const numbers = [...new Set(shown.map(({ request }) => request.model))];
  const files = await Promise.all(numbers.map(host.saved));
  for (const each of shown) {
    if (files.every(Boolean)) delete each.values;
    else
      for (const [stack, layers] of Object.entries(each.model.stacks))
        for (let layer = 0; layer < layers; layer++)
          (each.values ??= {})[`${stack} ${layer}`] ??= await layerOf(stack, layer, each);
  }
  for (const { request } of shown) request.model = numbers.indexOf(request.model);
  const kept = numbers.map((number) => host.models[number]);
  const live = files.every(Boolean) && {
    models: kept,
    saved: Object.fromEntries(kept.map(({ name }, i) => [name, files[i]])),
  };
  const script = (value) => JSON.stringify(value, plain).replaceAll("<", "\\u003c");
  const end = "</scr" + "ipt>";
  const page = `<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n${make("title", {}, `${all.name}: ${all.text}`).outerHTML}\n<style>html { color-scheme: light dark; background: light-dark(#fff, #0d1117) } body { margin: 0 }</style>\n<div id="explorer"></div>\n<script>\n${pageModels}\n${mountExplorer}\nmountExplorer(document.getElementById("explorer"), ${script({ style, data: all, ...live })});\n${end}\n</html>\n`;
  download("explorer.html", page, "text/html");
}

/** Save the displayed attention weights as CSV, one row per query. */
function saveTable() {
  const cell = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = [...state.kinds].flatMap((kind) => {
    const { from, to, ahead } = columns(kind),
      all = rowsSeen(kind);
    const layer = layerSeen(kind) + 1,
      head = state.head === "mean" ? "mean" : state.head + 1;
    return [
      ["attention", "layer", "head", "query", ...all[0].map((_, key) => tokens(to)[key].text)],
      ...all.map((row, query) => [
        KINDS[kind].name,
        layer,
        head,
        tokens(from)[query + ahead].text,
        ...row.map((weight) => Math.round(weight) / 1000),
      ]),
    ];
  });
  download("attention.csv", `${lines.map((line) => line.map(cell).join(",")).join("\r\n")}\r\n`, "text/csv");
}

function drawSave() {
  const save = (text, act) =>
    button(text, async (event) => {
      try {
        await act(event);
      } catch (error) {
        complain(error);
      }
    });
  const copyLink = async ({ target }) => {
    remember();
    await navigator.clipboard?.writeText(location.href);
    target.textContent = navigator.clipboard ? "Copied" : "See the address bar";
    setTimeout(() => {
      target.textContent = "Copy link";
    }, 1500);
  };
  const saveData = () => download("explorer.json", JSON.stringify(seen(), plain, 1), "application/json");
  fill(
    parts.save,
    make("h2", {}, "Save and share"),
    make(
      "p",
      { class: "actions" },
      host && [save("Copy link", copyLink), save("Page (HTML)", savePage)],
      save("Picture (PNG)", savePicture),
      save("Picture (SVG)", saveDrawing),
      save("All data (JSON)", saveData),
      save("Weights (CSV)", saveTable),
    ),
    note(
      host
        ? "The saved page works offline. It includes a model of up to 20 MB, so other texts and switches work, too."
        : "This page works offline: play it, point at tokens, and open steps and heads. Its model is too large for a page: other texts and switches need vanilla-transformer demo.",
    ),
  );
}
