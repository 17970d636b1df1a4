// Save the stage as a picture, SVG or PNG, with a caption.

const STYLES =
  "fill fill-opacity stroke stroke-width stroke-opacity font-family font-size font-weight font-style opacity text-anchor".split(" ");

/** Return the stage as one SVG element that needs no style sheet. */
function pictureOfStage() {
  const { width, height, canvas } = scene;
  const drawings = [...parts.stage.querySelectorAll(".scene > svg")].map((shown) => {
    const copy = shown.cloneNode(true);
    const originals = shown.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((element, i) => {
      const seen = getComputedStyle(originals[i]);
      for (const name of STYLES) element.style.setProperty(name, seen.getPropertyValue(name));
      element.style.transition = "none";
    });
    return make("g", {}, [...copy.childNodes]);
  });
  const style = getComputedStyle(frame);
  const image = make("image", { width, height, href: canvas.toDataURL() });
  const room = 44;
  const caption = make(
    "text",
    { x: 14, y: height + 24, fill: style.color, style: `font: 14px ${style.fontFamily}` },
    captionOfPicture(),
  );
  return make(
    "svg",
    { width, height: height + room, viewBox: `0 0 ${width} ${height + room}`, xmlns: "http://www.w3.org/2000/svg" },
    make("rect", { width, height: height + room, fill: style.backgroundColor }),
    drawings[0],
    image,
    drawings[1],
    caption,
  );
}

/** Return one line that says which model, layer and head the picture shows, and on which text. */
function captionOfPicture() {
  const { name, text, model } = state.data;
  const layers = Object.keys(model.stacks).map((stack) => `${stack} layer ${layerOn(stack) + 1}`);
  const head = state.head === "mean" ? "mean of all heads" : `head ${state.head + 1}`;
  return [name ?? "Vanilla Transformer", ...layers, head, `“${shortened(text, 60)}” → “${shortened(answerOf(state.data), 60)}”`].join(" · ");
}

const serialised = () => new XMLSerializer().serializeToString(pictureOfStage());
const saveDrawing = () => download("transformer.svg", serialised(), "image/svg+xml");

async function savePicture() {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(serialised())}`;
  await picture.decode();
  const canvas = make("canvas", { width: 2 * picture.width, height: 2 * picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download("transformer.png", blob), "image/png");
}
