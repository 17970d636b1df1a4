// Curves over training steps.

/**
 * Draw curves over training steps.
 *
 * A series is {name, color, points: [[step, value]], least, shared, write}. Its scale ranges from 0, or the smallest
 * negative value, to the largest value or `least`, whichever is larger. All `shared` series have the same scale.
 */
function curves(series, steps) {
  const width = frame.clientWidth < 680 || state.presenting ? 330 : 520, // scales the drawing but not the text
    height = 200,
    left = 44,
    bottom = height - 24;
  const x = (step) => left + ((width - left - 10) * step) / Math.max(1, steps);
  const ends = ({ points, least = 0 }) => {
    const values = points.map(([, value]) => value);
    return [Math.min(0, ...values), Math.max(least, ...values)];
  };
  const [first] = series,
    shared = first.shared ? ends({ points: series.flatMap(({ points }) => points) }) : null;
  const line = (each) => {
    const [low, high] = shared ?? ends(each);
    const y = (value) => 10 + (bottom - 10) * (1 - (value - low) / Math.max(1e-12, high - low));
    const at = each.points.map(([step, value]) => [x(step).toFixed(1), y(value).toFixed(1)]);
    return [
      make("path", {
        class: "curve",
        style: `stroke:${each.color}`,
        d: at.map((point, i) => `${i ? "L" : "M"} ${point.join(" ")}`).join(" "),
      }),
      at.length < 40
        ? at.map(([cx, cy]) => make("circle", { cx, cy, r: at.length === 1 ? 3.5 : 2, style: `fill:${each.color}` }))
        : null,
    ];
  };
  const [low, high] = shared ?? ends(first);
  const last = ({ points, write }) => (points.length ? write(points.at(-1)[1]) : "–");
  const small = (attributes, text) => make("text", { class: "small", ...attributes }, text);
  return [
    make(
      "h3",
      {},
      series.map((each) => [make("span", { style: `color:${each.color}` }, `${each.name} `), last(each), "   "]),
    ),
    make(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `Curves up to step ${steps}: ${series.map((each) => `${each.name} ${last(each)}`).join(", ")}`,
      },
      make("line", { class: "pipe", x1: left, x2: width - 10, y1: bottom, y2: bottom }),
      make("line", { class: "pipe", x1: left, x2: left, y1: 10, y2: bottom }),
      small({ x: left, y: height - 6 }, "step 0"),
      small({ x: width - 10, y: height - 6, "text-anchor": "end" }, steps.toLocaleString("en")),
      small({ x: left - 6, y: 18, "text-anchor": "end" }, number(high)),
      small({ x: left - 6, y: bottom, "text-anchor": "end" }, number(low)),
      series.map(line),
    ),
  ];
}

/** Format a number with few digits. */
const number = (value) =>
  value === 0
    ? "0"
    : Math.abs(value) >= 1000 || Math.abs(value) < 0.01
      ? value.toExponential(1)
      : String(Number(value.toPrecision(3)));
