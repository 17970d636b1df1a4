// Where answers come from: a model that runs in this page, or the server.

const { UNCHANGED, fetchModel } = pageModels();

/** Return a function that calls the page's models: in a worker or, where the page may not start one, here. */
function startModels() {
  const waiting = new Map(); // calls that the worker has not answered, by number
  let count = 0,
    worker = null,
    here = null;
  const settle = (call, answer) => answer.then(call.resolve, call.reject);
  const run = async ({ name, values }) => here[name](...values);
  const runHere = () => {
    worker = null;
    here = pageModels().modelHost();
    for (const call of waiting.values()) settle(call, run(call));
    waiting.clear();
  };
  try {
    const source = new Blob([`(${pageModels})().listen();`], { type: "text/javascript" });
    worker = new Worker(URL.createObjectURL(source));
    worker.onerror = runHere; // a page's security policy may forbid workers
    worker.onmessage = ({ data: { id, answer, error } }) => {
      settle(waiting.get(id), error === undefined ? Promise.resolve(answer) : Promise.reject(new Error(error)));
      waiting.delete(id);
    };
  } catch {
    runHere();
  }
  return (name, ...values) =>
    new Promise((resolve, reject) => {
      const call = { name, values, resolve, reject };
      if (here) return settle(call, run(call));
      waiting.set(++count, call);
      worker.postMessage({ id: count, name, values });
    });
}

/**
 * Answer requests with the models of the page, and with the server if there is one (`served`).
 *
 * Each of `models` has a name, task, regression, examples, and `inPage`: whether it can run in the page. `saved` maps
 * names to the files of models. Without a server, missing files are read from the script NAME.js next to the page.
 */
function makeHost() {
  const server = served ? serverHost() : {};
  const files = new Map();
  const loading = new Map();
  const here = new Set(); // numbers of the models that the page has loaded
  const matrices = new Map(); // promises of the learned matrices of layers
  let call = null;

  const folder = ({ name }) => new URL(`models/${encodeURIComponent(name)}/`, document.baseURI);

  async function readScript({ name }) {
    const script = make("script", { src: `${encodeURIComponent(name)}.js` });
    await new Promise((resolve, reject) => {
      Object.assign(script, { onload: resolve, onerror: reject });
      document.head.append(script);
    }).catch(() => {
      throw new Error(`${name}.js is missing next to this page.`);
    });
    return globalThis.savedModels[name];
  }

  /** Return a promise of a model's files. */
  function filesOf(number) {
    const model = models[number];
    const read = () => saved[model.name] ?? (served ? fetchModel(folder(model)) : readScript(model));
    if (!files.has(number)) files.set(number, (async () => read())());
    return files.get(number);
  }

  /** Load a model into the page. */
  async function load(number) {
    call ??= startModels();
    await call("add", number, await filesOf(number));
    here.add(number);
  }

  /** Return a promise of a model in the page. */
  function loaded(number) {
    if (!loading.has(number)) {
      const promise = load(number);
      promise.catch(() => (served ? (models[number].inPage = false) : loading.delete(number)));
      loading.set(number, promise);
    }
    return loading.get(number);
  }

  /** Answer in the page if the model is here. While it is loading, also ask the server, and take the first answer. */
  async function answer(name, request) {
    const { model } = request;
    if (here.has(model)) return call(name, request);
    const page = models[model].inPage && loaded(model).then(() => call(name, request));
    const asked = [page, server[name]?.(request)].filter(Boolean);
    return Promise.any(asked).catch(({ errors }) => {
      throw errors.at(-1);
    });
  }

  /** Return the names, equations and lines of code of a model's steps, by layer. */
  async function stepsOf(number) {
    const known = await filesOf(number);
    return (known.steps ??= await (await fetch(new URL("steps.json", folder(models[number])))).json());
  }

  /** Return the values of a layer's steps. In the page, each step also gets its learned matrices. */
  async function layer(request) {
    const { model: number, stack, layer } = request;
    if (served && !here.has(number)) return answer("layer", request);
    const place = { model: number, stack, layer, steps: await stepsOf(number) };
    const name = [number, stack, layer].join();
    const found = await answer("layer", { ...request, ...place });
    if (!matrices.has(name)) matrices.set(name, call("matrices", place));
    const learned = await matrices.get(name);
    const titles = place.steps[`${stack} ${layer}`].map((step) => `${step.part} ${step.name}`);
    for (const step of found) {
      const value = learned[titles.indexOf(`${step.part} ${step.name}`)];
      Object.defineProperty(step, "matrices", { value }); // not enumerable: saved data have no weights
    }
    return found;
  }

  return {
    models,
    runs,
    explore: (request) => answer("explore", request),
    changed: (request) => answer("changed", request),
    effects: (request) => answer("effects", request),
    layer,
    sample: (request) => answer("sample", request),
    filter: (request) => answer("filter", request),
    runsHere: (number) => models[number].inPage,
    /** Return what a saved page needs to run a model; null if it cannot run in a page. */
    async saved(number) {
      if (!models[number].inPage) return null;
      const { weights, ...known } = await filesOf(number);
      return { ...known, weights: typeof weights === "string" ? weights : await inBase64(weights), steps: await stepsOf(number) };
    },
    run: server.run,
    train: server.train,
  };
}

// A page that can answer has models or a server. Others, with a model that is too large, show one prediction.
const host = served || models.length ? makeHost() : null;

/** Return the base64 text of a buffer. */
async function inBase64(buffer) {
  const reader = new FileReader();
  const read = new Promise((resolve) => (reader.onload = resolve));
  reader.readAsDataURL(new Blob([buffer]));
  await read;
  return reader.result.slice(reader.result.indexOf(",") + 1);
}
