// A link, and files.

/** The state as the address has it. */
function link() {
  const { request, layer, head, kinds, step, changes, beside, box } = state;
  const kept = { ...request, model: host.models[request.model].name, layer, head, kinds: [...kinds], step };
  if (isChanged()) kept.changes = changes;
  else if (beside) kept.beside = beside.title;
  if (box) kept.box = box;
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

/** All data that are seen: of the model as it is, with what is beside it. */
const seen = () =>
  state.beside ? { ...state.own, beside: { ...state.beside, above: state.data !== state.own } } : state.own;

/** A page that needs nothing else. */
async function savePage() {
  const all = seen(); // somebody may ask anew meanwhile
  for (const each of all.beside ? [all, all.beside.data] : [all])
    for (const [stack, layers] of Object.entries(each.model.stacks))
      for (let layer = 0; layer < layers; layer++)
        (each.values ??= {})[`${stack} ${layer}`] ??= await layerOf(stack, layer, each);
  const script = (value) => JSON.stringify(value).replaceAll("<", "\\u003c");
  const end = "</scr" + "ipt>";
  const page = `<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n${make("title", {}, `${all.name}: ${all.text}`).outerHTML}\n<style>html { color-scheme: light dark; background: light-dark(#fff, #0d1117) } body { margin: 0 }</style>\n<div id="explorer"></div>\n<script>\n${mountExplorer.toString()}\nmountExplorer(document.getElementById("explorer"), {style: ${script(style)}, data: ${script(all)}});\n${end}\n</html>\n`;
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
      all = rowsSeen(kind);
    const layer = layerSeen(kind) + 1,
      head = state.head === "mean" ? "mean" : state.head + 1;
    return [
      ["attention", "layer", "head", "looks", ...all[0].map((_, key) => tokens(to)[key].text)],
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
        download("explorer.json", JSON.stringify(seen(), null, 1), "application/json"),
      ),
      button("These weights (CSV)", saveTable),
    ),
    make(
      "p",
      { class: "note" },
      host
        ? "The page holds this text with all its numbers and works without a network. Breaking the model, other texts and other models need the model itself: the link brings you back to it here."
        : "All that is shown is in this page, which works without a network: play it, point at tokens, open boxes and heads. Breaking the model, other texts and other models need the model itself: make demo opens it on them.",
    ),
  );
}
