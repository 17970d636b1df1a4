// Continue a text by sampling. Temperature, top-k and top-p reshape the probabilities of the softmax.

const NEUTRAL = { temperature: 1, top_k: 0, top_p: 1 }; // leaves the probabilities as they are
const SAMPLED = 12; // number of tokens to add
const sampling = { ...NEUTRAL };
const SLIDERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.05 }, (value) => (value ? value.toFixed(2) : "0, likeliest")],
  ["top_k", "Top k", { min: 0, max: 100, step: 1 }, (value) => (value ? String(value) : "all tokens")],
  ["top_p", "Top p", { min: 0.05, max: 1, step: 0.05 }, (value) => (value < 1 ? value.toFixed(2) : "all tokens")],
];

/** Draw the controls of sampling below the bars of the current step. */
function samplingControls() {
  const remain = make("p", { class: "note", role: "status" });
  const slider = ([name, label, range, write]) => {
    const output = make("output", {}, write(sampling[name]));
    const change = ({ target }) => {
      sampling[name] = Number(target.value);
      output.textContent = write(sampling[name]);
      filterBars(remain);
    };
    const input = make("input", { type: "range", ...range, value: sampling[name], "aria-label": label, input: change });
    return make("label", {}, make("span", {}, label), input, output);
  };
  const draw = async () => {
    try {
      const { model, text } = state.request;
      const target = await host.sample({ model, text, count: SAMPLED, ...sampling });
      await ask({ ...state.request, target });
    } catch (error) {
      complain(error);
    }
  };
  filterBars(remain);
  return make(
    "fieldset",
    { class: "sampling" },
    make("legend", {}, "Sample the continuation"),
    SLIDERS.map(slider),
    remain,
    button("Continue by sampling", draw, { class: "plain" }),
  );
}

let filtering = 0; // number of requests

/** Show the probabilities of the current step after temperature, top-k and top-p. Only the page's models can. */
async function filterBars(remain) {
  const { request, data, step } = state,
    number = ++filtering;
  if (!host.runsHere(request.model) || data !== state.own) return;
  if (same(sampling, NEUTRAL) && !remain.textContent) return; // the bars show the probabilities already
  const { top, left } = await host.filter({ ...request, target: writtenIds(data), step, options: { ...sampling } });
  if (number !== filtering || !remain.isConnected) return;
  const { chosen, options, text } = data.steps[step];
  const drawn = bars(withChosen(top, chosen, text, 0), chosen, false);
  parts.output.querySelector(".bars").replaceWith(drawn);
  remain.textContent = `The bars show the probabilities after these settings: ${left.toLocaleString("en")} of ${plural(options, "token")} can be drawn.`;
}
