// The explorer draws a model's forward pass on one text, from the JSON of `explore_data` (page.py). It contacts no other
// host. A shadow root isolates it from the styles of the surrounding page. markup.py concatenates the files of this
// folder into one function, mountExplorer(place, options):
//
//     style, data       draw the given data
//     models, saved     models that run in this page, and their files: notebooks, saved and static pages
//     served, runs      there is a server (app/app.py) with these models, and with these training runs
//     linked            whether the address of the page holds the state
//
// Events change `state`; `show` then redraws the parts that depend on it.
//
// This file: helpers for page elements, formatting and tables.

const SVG_TAGS = new Set("svg g path rect circle text title line image".split(" "));
const ICONS = {
  play: "M 7 4 L 19 12 L 7 20 Z",
  pause: "M 6 4 H 10 V 20 H 6 Z M 14 4 H 18 V 20 H 14 Z",
  back: "M 15 4 L 7 12 L 15 20",
  on: "M 9 4 L 17 12 L 9 20",
  end: "M 5 4 L 15 12 L 5 20 M 19 4 V 20",
  close: "M 5 5 L 19 19 M 19 5 L 5 19",
  power: "M 12 3 V 12 M 6.5 6.5 A 8 8 0 1 0 17.5 6.5",
};

/** Create an element. Attributes that are functions become event listeners; null or false children are skipped. */
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
/** Replace the children of an element. */
const fill = (element, ...children) => element.replaceChildren(...present(children));

const button = (label, click, attributes = {}) => make("button", { type: "button", click, ...attributes }, label);
const note = (...content) => make("p", { class: "note" }, content);

/** Draw an icon. */
const icon = (name) =>
  make("svg", { class: `icon ${name}`, viewBox: "0 0 24 24", "aria-hidden": "true" }, make("path", { d: ICONS[name] }));

/** Let the arrow keys move the focus between elements that share one tab stop; Enter and the space bar call `act`. */
function rove(event, elements, act = null) {
  const at = elements.indexOf(event.currentTarget);
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const to = elements[{ Home: 0, End: elements.length - 1 }[event.key] ?? at + (by ?? NaN)];
  if (act && ["Enter", " "].includes(event.key)) act();
  else if (to) {
    elements[at].setAttribute("tabindex", -1);
    to.setAttribute("tabindex", 0);
    to.focus();
  } else return;
  event.preventDefault();
}

/** Create a labelled switch. */
const toggle = (label, checked, change, attributes = {}) =>
  make("label", { class: "toggle" }, make("input", { type: "checkbox", checked, change, ...attributes }), label);

/** Create a row of buttons of which one is selected; `choices` are [value, text]. They share one tab stop. */
const segments = (label, choices, choose, attributes = () => ({})) =>
  make(
    "div",
    { class: "segments", role: "group", "aria-label": label },
    make("span", {}, label),
    choices.map(([value, text], i) =>
      button(text, () => choose(value), {
        tabindex: i === 0 ? 0 : -1,
        keydown: (event) =>
          event.key.startsWith("Arrow") && rove(event, [...event.currentTarget.parentElement.querySelectorAll("button")]),
        ...attributes(value),
      }),
    ),
  );

const KINDS = {
  encoder: { name: "encoder self-attention", short: "text → text", color: "var(--blue)" },
  cross: { name: "cross-attention", short: "answer → text", color: "var(--purple)" },
  decoder: { name: "masked self-attention", short: "answer → answer", color: "var(--green)" },
};
const TRAITS = {
  previous: "previous token",
  itself: "itself",
  next: "next token",
  onward: "next source token",
  same: "same token",
  special: "special tokens",
};
const TASKS = {
  translate: ["Translate", "Text to translate", "The translation"],
  generate: ["Continue", "Text to continue", "The continuation"],
  fill: ["Fill in", "Text with a blank, ___", "The filled text"],
  classify: ["Classify", "Text", "The class"],
  tag: ["Tag", "Text", "The tags"],
  answer: ["Answer", "Question", "The answer"],
};
/** Return the labels of a model's button, text field and answer. */
const wordsFor = ({ task, regression }) => (regression ? ["Estimate", "Text", "The estimate"] : TASKS[task]);
/** Return the answer, with true minus signs before negative numbers. */
const answerOf = ({ answer, model }) => (model.regression ? answer.replace(/-(?=[\d.]+(, |$))/g, "−") : answer);
const headSizes = ({ heads, d_k }) => `${plural(heads, "head")} of ${d_k}`;
const PART_SIZES = {
  "self-attention": headSizes,
  "cross-attention": headSizes,
  "feed-forward": ({ d_model, d_ff }) => `${d_model} → ${d_ff} → ${d_model}`,
};

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
/** Return a token's text without its leading space. */
const visible = (text) => text.trim() || text.replaceAll(" ", "␣").replaceAll("\n", "⏎") || "∅";
const percent = (p) =>
  p >= 0.9995
    ? "100 %"
    : p >= 0.1
      ? `${(100 * p).toFixed(1)} %`
      : p >= 0.0001
        ? `${(100 * p).toPrecision(2)} %`
        : "< 0.01 %";
/** Format a fraction given in thousandths. */
const share = (thousandths) =>
  thousandths >= 999.5 ? "100 %" : thousandths >= 0.5 ? `${(thousandths / 10).toFixed(1)} %` : "< 0.05 %";
/** Format a weight set by hand, rounded to a hundredth. */
const setTo = (weight) => `${Math.round(100 * weight)} %`;
/** Return blue for a positive and orange for a negative share (-1 to 1); `most` is the opacity at 1 in percent. */
const shade = (share, most) =>
  `color-mix(in srgb, var(--${share < 0 ? "orange" : "blue"}) ${Math.round(most * Math.abs(share))}%, transparent)`;
const decimals = (value, digits) => value.toFixed(digits).replace("-", "−");
const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Extended_Pictographic}\uff01-\uff60]/u;
/** Shorten a text to `most` characters; wide characters count twice. */
const shortened = (text, most = 13) => {
  const letters = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
  const room = (letter) => (WIDE.test(letter) ? 2 : 1);
  if (letters.reduce((sum, letter) => sum + room(letter), 0) <= most) return text;
  let left = most - 1;
  return `${letters.filter((letter) => (left -= room(letter)) >= 0).join("")}…`;
};

/** Create a collapsible table for a picture, filled when it is opened; `renew` refreshes an open table. */
function table(title, rows) {
  const place = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title });
  const details = make("details", { class: "table", toggle: () => details.renew() }, make("summary", {}, title), place);
  details.renew = () => (details.open ? fill(place, rows()) : fill(place));
  return details;
}

/** Create a table. Cells are contents or <td> elements; the first of each row is its header. `header` may be null. */
function grid(caption, header, rows) {
  const heading = (scope) => (content) => make("th", { scope }, content);
  const cell = (content) => (content?.tagName === "TD" ? content : make("td", {}, content));
  return make(
    "table",
    {},
    caption && make("caption", {}, caption),
    header && make("thead", {}, make("tr", {}, header.map(heading("col")))),
    make(
      "tbody",
      {},
      rows.map(([name, ...cells]) => make("tr", {}, heading("row")(name), cells.map(cell))),
    ),
  );
}
