// Links to the current state, and files to download.

const addressOf = (kept) => `#explore=${encodeURIComponent(JSON.stringify(kept))}`;

/** Encode the state as an address. */
function link() {
  if (!parts.train.hidden) return addressOf({ train: true });
  const { request, layer, head, kinds, step, changes, beside, box } = state;
  const kept = { ...request, model: host.models[request.model].name };
  // A link opens with the original model, whose steps, heads and boxes may differ from the other model's.
  if (state.data === state.own) Object.assign(kept, { layer, head, kinds: [...kinds], step, ...(box && { box }) });
  if (isChanged()) kept.changes = changes;
  else if (beside && !beside.same) kept.beside = beside.title;
  return addressOf(kept);
}

/** Put the state into the address. With `step`, the browser's Back returns to the state before. */
function remember(step = false) {
  if (!host || !state.request || location.hash === link()) return;
  try {
    history[(step || state.astray) && fromLink() ? "pushState" : "replaceState"](history.state, "", link());
    state.astray = false;
  } catch {
    // Some browsers allow only about a hundred history entries in a few seconds.
  }
}

/** Return the state in the address, or null. Of a damaged address, keep the fields that can be read. */
function fromLink() {
  let text = location.hash.match(/^#explore=(.*)$/)?.[1];
  for (let end = ""; text; end = "}") {
    try {
      return { ...JSON.parse(decodeURIComponent(text) + end), damaged: Boolean(end) };
    } catch {
      text = text.slice(0, Math.max(0, text.lastIndexOf("%2C"))); // drop the last, incomplete field
    }
  }
  return text === undefined ? null : { damaged: true };
}

/** Restore the state of a link, as far as the model allows. Returns whether all of it fits. */
function look(linked) {
  const { model, steps } = state.data;
  const isBelow = (end) => (number) => Number.isInteger(number) && number >= 0 && number < end;
  const has = (name) => name in model.stacks || Boolean(attention(name));
  const other = host.models.findIndex((each) => each.name === linked.beside && each.task === task());
  const fits = {
    layer: isBelow(mostLayers()),
    head: (head) => head === "mean" || isBelow(model.heads)(head),
    step: isBelow(steps.length),
    kinds: (kinds) => Array.isArray(kinds) && kinds.every((kind) => attention(kind)),
    changes: ({ causal_off: off = false, ...lists }) =>
      typeof off === "boolean" &&
      Object.entries(lists).every(
        ([name, list]) => name in unchanged() && list.every((each) => has(name === "positions_off" ? each : each[0])),
      ),
    beside: () => other >= 0,
    box: (box) => mapped.boxes.some(([, id]) => same(id, box)),
  };
  const wrong = Object.keys(fits).filter((name) => {
    try {
      return name in linked && !fits[name](linked[name]);
    } catch {
      return true; // fields of another type
    }
  });
  const { layer, head, step, kinds, changes, beside, box } = Object.fromEntries(
    Object.entries(linked).filter(([name]) => !wrong.includes(name)),
  );
  Object.assign(state, {
    layer: layer ?? state.layer,
    head: head ?? state.head,
    step: step ?? state.step,
    kinds: new Set(kinds ?? state.kinds),
    changes: { ...unchanged(), ...changes },
  });
  show(...Object.keys(DRAW));
  if (changes) breakIt();
  else if (beside) setBeside(other);
  if (box) openBox(box).then(() => remember());
  remember();
  return !wrong.length;
}

function download(name, content, type) {
  const url =
    content instanceof Blob ? URL.createObjectURL(content) : URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Return all shown data: that of the original model, and that of the model next to it. */
const seen = () =>
  state.beside ? { ...state.own, beside: { ...state.beside, above: state.data !== state.own } } : state.own;

/** Save a self-contained page. */
async function savePage() {
  const all = seen(); // the state may change during the requests below
  for (const each of all.beside ? [all, all.beside.data] : [all])
    for (const [stack, layers] of Object.entries(each.model.stacks))
      for (let layer = 0; layer < layers; layer++)
        (each.values ??= {})[`${stack} ${layer}`] ??= await layerOf(stack, layer, each);
  const script = (value) => JSON.stringify(value).replaceAll("<", "\\u003c");
  const end = "</scr" + "ipt>";
  const page = `<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n${make("title", {}, `${all.name}: ${all.text}`).outerHTML}\n<style>html { color-scheme: light dark; background: light-dark(#fff, #0d1117) } body { margin: 0 }</style>\n<div id="explorer"></div>\n<script>\n${mountExplorer.toString()}\nmountExplorer(document.getElementById("explorer"), {style: ${script(style)}, data: ${script(all)}});\n${end}\n</html>\n`;
  download("explorer.html", page, "text/html");
}

/** Save the tokens and arcs as a picture. */
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

/** Save the drawn weights, one row per query. */
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
    make("h2", {}, "Save and share"),
    make(
      "p",
      { class: "actions" },
      host
        ? button("Copy link", async ({ target }) => {
            remember();
            await navigator.clipboard?.writeText(location.href);
            target.textContent = navigator.clipboard ? "Copied" : "See the address bar";
            setTimeout(() => {
              target.textContent = "Copy link";
            }, 1500);
          })
        : null,
      host ? button("Page (HTML)", savePage) : null,
      button("Picture (PNG)", savePicture),
      button("All data (JSON)", () =>
        download("explorer.json", JSON.stringify(seen(), null, 1), "application/json"),
      ),
      button("Weights (CSV)", saveTable),
    ),
    make(
      "p",
      { class: "note" },
      host
        ? "The saved page has all numbers for this text and works offline. Other texts, other models and switching parts off need the model; the link opens it here."
        : "This page works offline: play it, point at tokens, open boxes and heads. Other texts, other models and switching parts off need the model: run vanilla-transformer demo.",
    ),
  );
}
