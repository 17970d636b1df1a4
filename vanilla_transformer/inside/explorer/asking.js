// Send requests, draw the responses, and start the page.

/** Show an error message below the focused control, and scroll it into view. */
function complain(error) {
  const place = root.activeElement?.closest("fieldset, .row, .front, section") ?? parts.top;
  message.textContent = error.message ?? String(error);
  message.hidden = false;
  place.after(message);
  message.scrollIntoView({ block: "nearest" });
}

/** Add the model's name and the request to the data, so that all are saved together. */
const named = (data, request, name = host.models[request.model].name) => Object.assign(data, { name, request });

/**
 * Send a request and draw the response.
 * then: called on success, instead of adding a history entry and playing. failed: called if the request fails.
 */
async function ask(request, then = null, failed = null) {
  const number = ++state.asked;
  pause();
  message.hidden = true;
  frame.classList.remove("stale");
  setBusy(true);
  try {
    const answer = await host.explore(request);
    if (number !== state.asked) return; // a newer request has been sent
    take(named(answer, request), request);
    if (then) then();
    else {
      remember(true);
      begin();
    }
  } catch (error) {
    if (number !== state.asked) return;
    failed?.();
    complain(error);
    return;
  } finally {
    if (number === state.asked) setBusy(false);
  }
  try {
    const effects = await host.effects({ ...request, target: writtenIds(state.own) });
    if (number !== state.asked) return;
    state.own.effects = effects;
    show("heads");
  } catch {
    // effects are optional
  }
}

/** Start the film, unless the visitor prefers less motion or the answer does not grow word by word. */
function begin() {
  if (state.motion && growing()) play();
}

const hint = make("p", { class: "hint", role: "status" });

/** Draw a response. */
function take(answer, request) {
  broke++;
  const { beside = null } = answer; // a saved page cannot send requests
  const changes = { ...unchanged(), ...(beside?.data ?? answer).changes };
  Object.assign(state, { own: answer, request, beside, changes, head: "mean", astray: false });
  view(beside?.above ? beside.data : answer);
  whole.hidden = false;
  const continued = answer.model.task === "generate" ? answer.written : 0; // `source` ends with the model's continuation
  const isUnknown = (token) => token.bytes || token.text === "<unk>";
  const read = answer.source.slice(0, answer.source.length - continued).filter((token) => !token.special || isUnknown(token));
  hint.textContent =
    read.filter(isUnknown).length > read.length / 2
      ? "Many of these words or characters are not in the vocabulary of the model, so its answer is unreliable."
      : "";
  if (state.tour && state.tour !== "training") return visit(nearestStop(state.tour), false);
  state.tour = null;
  placeTour();
  show(...Object.keys(DRAW));
}

/** Draw the data of the original model, or of the model compared with it. */
function view(data) {
  Object.assign(state, { data, step: 0, hover: null, pinned: null, revealed: Infinity, progress: 1, card: null, cell: null });
  state.kinds = new Set(data.attention.map(({ kind }) => kind));
  for (const [stack, count] of Object.entries(data.model.stacks))
    showLayer(stack, state.head === "mean" ? count - 1 : Math.min(state.layers[stack] ?? 0, count - 1));
  if (state.head !== "mean" && state.head >= data.model.heads) state.head = "mean";
  state.phase = phases().length - 1;
  state.step = tellingStep();
  frame.classList.toggle("other", data !== state.own);
}

const DRAW = {
  tour: drawTour,
  player: drawPlayer,
  stage: drawStage,
  staging: updateStage,
  output: drawOutput,
  card: drawCard,
  experiments: drawExperiments,
  broken: drawBroken,
  beside: drawBeside,
  heads: drawHeads,
  heading: updateHeads,
  lens: drawLens,
  lensing: updateLens,
  save: drawSave,
};

/** Redraw parts. Open tables stay open. The focus stays on its control, or moves to the first control of its part. */
function show(...names) {
  const nameOf = (element) =>
    element.getAttribute("aria-label") ?? (element.labels?.[0] ?? element).textContent;
  const tables = () => [...root.querySelectorAll("details.table")];
  const titleOf = (details) => nameOf(details.querySelector("summary"));
  const focused = root.activeElement,
    name = focused && nameOf(focused), // look it up before the label is replaced
    part = focused?.closest("section"),
    before = tables();
  names.forEach((name) => DRAW[name]());
  const closed = before.filter((details) => details.open && !details.isConnected).map(titleOf);
  for (const details of tables())
    if (!before.includes(details) && closed.includes(titleOf(details))) {
      details.open = true;
      details.renew();
    }
  if (!focused || focused.isConnected) return;
  const again = [...root.querySelectorAll("button, input, summary, [tabindex]")];
  const next = again.find((each) => nameOf(each) === name) ?? again.find((each) => part.contains(each));
  next?.focus({ preventScroll: true });
}

let showTraining = null; // set by drawTop: shows the live training, or the models

function drawTop() {
  const models = host.models;
  let chosen = 0;
  const fields = make("div", { class: "fields" });
  const form = make(
    "form",
    {
      submit: (event) => {
        event.preventDefault();
        ask(wish(), null, () => frame.classList.add("stale")); // the page still shows the previous text
      },
    },
    linked && make("h1", {}, "Vanilla Transformer"),
    fields,
  );
  const field = (label, name, value, extra = {}) =>
    make(
      "label",
      { class: name },
      make("span", { class: name !== "target" && "unseen" }, label),
      make(extra.tag ?? "input", { name, value, maxlength: 2000, placeholder: label, autocomplete: "off", dir: "auto", ...extra, tag: null }),
    );
  const value = (name) => form.elements[name]?.value || null;
  const wish = () => ({
    model: chosen,
    text: value("text") ?? "",
    context: value("context"),
    target: value("target"),
  });
  /** Fill in the form from a request, and open the field for a forced output if the request has one. */
  const fillIn = ({ text, context, target }) => {
    for (const [name, content] of Object.entries({ text, context, target }))
      if (form.elements[name]) form.elements[name].value = typeof content === "string" ? content : "";
    if (form.elements.target?.value) form.elements.target.closest("details").open = true;
  };
  const pick = (number) => {
    chosen = number;
    learning(false);
    const model = models[number];
    const [verb, label] = wordsFor(model);
    const [example] = model.examples;
    const forced = {
      translate: ["Score a translation of your own", "your own translation"],
      generate: ["Score a continuation of your own", "your own words"],
    }[model.task];
    const run = (each) => {
      fillIn(each);
      ask(wish());
    };
    const others = model.examples.map((each) => button(each.text, () => run(each)));
    const context = model.task === "answer" && field("Text to search", "context", example.context);
    const target = { placeholder: forced?.[1] };
    fill(fields, field(label, "text", example.text), context, make("button", { type: "submit", class: "go" }, verb));
    fill(
      below,
      model.knows && make("p", { class: "knows" }, model.knows),
      others.length > 1 && make("div", { class: "examples" }, make("span", {}, "Try "), others),
      forced &&
        make(
          "details",
          { class: "force" },
          make("summary", {}, forced[0]),
          field("Each token is shown with its probability and rank", "target", "", target),
        ),
    );
  };
  const learning = (on) => {
    fields.hidden = below.hidden = on;
    whole.hidden = on || !state.data;
    if (on) message.hidden = true;
    parts.train.hidden = !on;
    choice.value = on ? "train" : chosen;
    if (on) {
      state.asked++; // ignore pending responses
      setBusy(false);
      pause();
      startTraining();
    } else stopTraining();
  };
  /** Show the form of a model. If it is already shown, keep it and its focus. */
  const turnTo = (number) => (state.data && number === chosen ? learning(false) : pick(number));
  const back = () => {
    if (!state.request) return;
    turnTo(state.request.model);
    fillIn(state.request);
  };
  const option = (value, ...words) => make("option", { value }, words.join(" · "));
  const choose = () => {
    if (choice.value === "train") {
      learning(true);
      return remember(true);
    }
    const wasLearning = !parts.train.hidden;
    pick(Number(choice.value));
    ask(wish(), null, () => (wasLearning ? learning(true) : back()));
  };
  const choice = make(
    "select",
    { "aria-label": "Task and model", change: choose },
    models.map((model, i) => option(i, wordsFor(model)[0], model.name)),
    host.train && option("train", "Train", "watch a model learn"), // training needs a server
  );
  const below = make("div", { class: "below" });
  if (choice.length > 1) fields.before(choice);
  form.append(models.length ? tourStart : "", below);
  hint.textContent = models.length ? "Loading the model …" : "";
  showTraining = learning;
  fill(parts.top, form, hint);
  if (!models.length) {
    learning(true);
    return complain(
      "No model is given, and the folder checkpoints contains none. Name models on the command line; in a Space, name models of the Hub in the variable MODEL_ID.",
    );
  }
  const restore = (linked) => {
    Object.assign(state, { tour: null, presenting: false });
    placeTour();
    const number = models.findIndex((each) => each.name === linked.model);
    turnTo(Math.max(0, number));
    if (linked.train && !linked.tour) return learning(true);
    const [hasModel, hasText] = ["model", "text"].map((name) => typeof linked[name] === "string");
    const [example] = models[chosen].examples;
    if (hasText) fillIn({ ...linked, context: linked.context ?? example.context });
    // token ids are valid for one model only
    const target = number >= 0 && Array.isArray(linked.target) ? linked.target : wish().target;
    const tell = (isWhole) => {
      if (hasModel && number < 0) complain(`The link is for the model ${linked.model}, which is not loaded here.`);
      else if (!isWhole || !(linked.tour || (hasModel && hasText)))
        complain("The link is damaged. Only part of it could be restored.");
    };
    const failed = () => {
      state.astray = true; // do not overwrite the damaged address
      if (state.data) return back();
      pick(chosen);
      ask(wish(), () => tell(false));
    };
    ask({ ...wish(), target }, () => tell(look(linked)), failed);
  };
  /** Restore the state in the address, and return whether there is one. */
  const follow = () => {
    const linked = fromLink();
    if (linked) restore(linked);
    return Boolean(linked);
  };
  if (linked) addEventListener("popstate", follow); // the address also changes when another link is opened in this window
  if (linked && follow()) return;
  pick(0);
  if (!data) return ask(wish());
  fillIn(data.request);
  take(data, data.request);
  if (linked && !state.beside) begin();
}

adoptTheme();
setMotion(state.motion);
if (host) drawTop();
else take(data, null);
