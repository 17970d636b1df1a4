// The explorer: a model's forward pass on one text, alive. It is drawn from the data that explore.py makes, needs no
// other file and no other host, and lives in a shadow root, so that no page's style reaches it. The files of this folder
// are the body of one function, which explore.py puts together:
//
//     mountExplorer(place, {style, data})    a picture of its own, as notebooks show it
//     mountExplorer(place, {style, host})    one that asks a server: see demo/explorer.py
//
// One direction: a wish changes `state`, `show` draws what depends on it.
//
// This file: elements of the page, words and numbers, and tables.

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
/** What a model's button, field and answer are called. */
const wordsFor = ({ task, regression }) => (regression ? ["Estimate", "Text", "Estimated"] : TASKS[task]);
/** What a model says, as it is shown. */
const answerOf = ({ answer, model }) => (model.regression ? answer.replace(/-(?=[\d.]+(, |$))/g, "−") : answer);
const headSizes = ({ heads, d_k }) => `${plural(heads, "head")} of ${d_k}`;
const PART_SIZES = {
  "self-attention": headSizes,
  "cross-attention": headSizes,
  "feed-forward": ({ d_model, d_ff }) => `${d_model} → ${d_ff} → ${d_model}`,
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
/** A share that is known in thousandths. */
const share = (thousandths) =>
  thousandths >= 999.5 ? "100 %" : thousandths >= 0.5 ? `${(thousandths / 10).toFixed(1)} %` : "< 0.05 %";
/** A weight that was set by hand, to a hundredth. */
const setTo = (weight) => `${Math.round(100 * weight)} %`;
const decimals = (value, digits) => value.toFixed(digits).replace("-", "−");
const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Extended_Pictographic}\uff01-\uff60]/u;
/** A text of at most so many letters, of which wide ones count twice. */
const shortened = (text, most = 13) => {
  const letters = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
  const room = (letter) => (WIDE.test(letter) ? 2 : 1);
  if (letters.reduce((sum, letter) => sum + room(letter), 0) <= most) return text;
  let left = most - 1;
  return `${letters.filter((letter) => (left -= room(letter)) >= 0).join("")}…`;
};

/** A table behind a picture, made when it is opened; `renew` makes that of an open one anew. */
function table(title, rows) {
  const place = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title });
  const details = make("details", { class: "table", toggle: () => details.renew() }, make("summary", {}, title), place);
  details.renew = () => (details.open ? fill(place, rows()) : fill(place));
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
