// Call the endpoints of the demo's server through Gradio's queue, like any API client.

function serverHost() {
  const base = new URL("gradio_api/call/", document.baseURI);
  const SILENCE = 60_000; // timeout in milliseconds without an event; the server sends a heartbeat every 15 s
  const again = (reason) => new Error(`${reason} Please try again.`);

  async function reach(url, options) {
    try {
      return await fetch(url, options);
    } catch {
      throw again("The server cannot be reached.");
    }
  }

  const post = (url, content) =>
    reach(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(content),
    });

  /** Call an endpoint. onFrame is called with each part of a stream, and onJoined with the event's id. */
  async function call(name, values, onFrame = null, onJoined = null) {
    const joined = await post(new URL(name, base), { data: values });
    if (joined.status === 503) throw new Error("The demo is busy. Please try again in a minute.");
    if (!joined.ok) throw again(`The server answered ${joined.status}.`);
    const { event_id } = await joined.json();
    onJoined?.(event_id);
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE);
    try {
      const answer = await reach(new URL(`${name}/${event_id}`, base), { signal: silent.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ; ) {
        const { value, done } = await reader.read().catch(() => ({ done: true }));
        if (done) throw again(silent.signal.aborted ? "The server has stopped answering." : "The connection was lost.");
        clearTimeout(timer);
        timer = setTimeout(() => silent.abort(), SILENCE);
        const events = (text + value).split("\n\n");
        text = events.pop(); // the last event may be incomplete
        for (const lines of events) {
          const event = lines.match(/^event: (.*)$/m)?.[1];
          const data = JSON.parse(lines.match(/^data: (.*)$/m)?.[1] ?? "null");
          if (event === "complete") return data?.[0];
          if (event === "generating") onFrame?.(data[0]);
          if (event === "error") {
            const told = data?.error ?? data;
            throw typeof told === "string" ? new Error(told) : again("Something went wrong on the server.");
          }
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  const wish = ({ model, text, target = null, context = null }) => [model, text, target, context];
  return {
    run: (number) => call("training_run", [number]),
    explore: (request) => call("explore", wish(request)),
    effects: async (request) => (await call("explore_effects", wish(request))).effects,
    changed: ({ model, text, changes, target = null, context = null }) =>
      call("explore_changed", [model, text, changes, target, context]),
    train({ heads, positions, warmup, mask, norm }, onFrame) {
      let running = null,
        stopped = false;
      // An event without a session has its id as session. If the server is unreachable, there is nothing to cancel.
      const cancel = () =>
        post(new URL("../cancel", base), { event_id: running, session_hash: running, fn_index: 0 }).catch(() => {});
      const ended = call("train", [heads, positions, warmup, mask, norm], onFrame, (id) => {
        running = id;
        if (stopped) cancel();
      });
      const stop = () => {
        stopped = true;
        if (running) cancel();
      };
      return { ended, stop };
    },
    async layer(request) {
      const { stack, layer, changes = null } = request;
      return (await call("explore_layer", [...wish(request), stack, layer, changes])).steps;
    },
    /** Return a sampled continuation of the text. */
    async sample({ model, text, count, temperature, top_k, top_p }) {
      const { text: all } = await call("generate", [text, count, temperature, top_k, top_p, null, model]);
      return all.slice(text.length);
    },
  };
}
