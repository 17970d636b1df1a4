// Calls the demo's endpoints through Gradio's queue, as any client does.
function host(models, runs) {
  const home = window.gradio_config?.root?.replace(/[/]?$/, "/") ?? document.baseURI;
  const base = new URL("gradio_api/call/", home);
  // The server keeps state for each session, so reuse a session that has no request in progress.
  const resting = [];
  const reach = (...request) =>
    fetch(...request).catch(() => {
      throw new Error("The server cannot be reached. Please try again.");
    });
  async function call(name, values, onFrame = null, onJoined = null) {
    const session_hash = resting.pop() ?? Math.random().toString(36).slice(2);
    const joined = await reach(new URL(name, base), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ data: values, session_hash }),
    });
    if (!joined.ok) throw new Error(`The server answered ${joined.status}. Please try again.`);
    const { event_id } = await joined.json();
    onJoined?.({ session_hash, event_id });
    const answer = await reach(new URL(`${name}/${event_id}`, base));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const rest = async () => {
      while (!(await reader.read()).done);
      resting.push(session_hash);
    };
    let text = "";
    for (;;) {
      const { value, done } = await reader.read().catch(() => ({ done: true }));
      if (done) throw new Error("The connection broke off. Please try again.");
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const event = text.slice(0, end).match(/^event: (.*)$/m)?.[1];
        const data = JSON.parse(text.slice(0, end).match(/^data: (.*)$/m)?.[1] ?? "null");
        text = text.slice(end + 2);
        // A stream may be stopped; in the same session, its last messages would reach the next request.
        if (event === "complete" && !onFrame) rest().catch(() => {});
        if (event === "complete") return data?.[0];
        if (event === "error") {
          const told = data?.error ?? data;
          throw new Error(typeof told === "string" ? told : "Something went wrong on the server. Please try again.");
        }
        if (event === "generating" && onFrame) onFrame(data[0]);
      }
    }
  }
  const wish = ({ model, text, target = null, context = null }) => [model, text, target, context];
  return {
    models,
    runs,
    run: (number) => call("training_run", [number]),
    explore: (request) => call("explore", wish(request)),
    effects: (request) => call("explore_effects", wish(request)),
    changed: ({ model, text, changes, target = null, context = null }) =>
      call("explore_changed", [model, text, changes, target, context]),
    train({ heads, positions, warmup, mask, norm }, onFrame) {
      let running = null,
        stopped = false;
      const ended = call("train", [heads, positions, warmup, mask, norm], onFrame, (ids) => {
        running = ids;
        if (stopped) cancel();
      });
      const cancel = () =>
        fetch(new URL("../cancel", base), {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ ...running, fn_index: 0 }),
        }).catch(() => {}); // a server that cannot be reached cancels by itself
      const stop = () => {
        stopped = true;
        if (running) cancel();
      };
      return { ended, stop };
    },
    layer: (request) => call("explore_layer", [...wish(request), request.stack, request.layer, request.changes ?? null]),
  };
}
