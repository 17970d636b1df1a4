// Asks the demo's endpoints over Gradio's queue, as any client does.
function host(models) {
  const home = window.gradio_config?.root?.replace(/[/]?$/, "/") ?? document.baseURI;
  const base = new URL("gradio_api/call/", home);
  async function call(name, values, onFrame = null, onJoined = null) {
    const joined = await fetch(new URL(name, base), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ data: values }),
    });
    if (!joined.ok) throw new Error(`The server answered ${joined.status}. Please try again.`);
    const { event_id } = await joined.json();
    onJoined?.(event_id);
    const answer = await fetch(new URL(`${name}/${event_id}`, base));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("The connection broke off. Please try again.");
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const event = text.slice(0, end).match(/^event: (.*)$/m)?.[1];
        const data = JSON.parse(text.slice(0, end).match(/^data: (.*)$/m)?.[1] ?? "null");
        text = text.slice(end + 2);
        if (event === "complete") return data?.[0];
        if (event === "error")
          throw new Error(data?.error ?? data ?? "Something went wrong on the server. Please try again.");
        if (event === "generating" && onFrame) onFrame(data[0]);
      }
    }
  }
  const wish = ({ model, text, target = null, context = null }) => [model, text, target, context];
  return {
    models,
    explore: (request) => call("explore", wish(request)),
    effects: (request) => call("explore_effects", wish(request)),
    changed: ({ model, text, changes, target = null, context = null }) =>
      call("explore_changed", [model, text, changes, target, context]),
    train({ heads, positions, warmup, mask, norm }, onFrame) {
      let event_id = null;
      const ended = call("train", [heads, positions, warmup, mask, norm], onFrame, (id) => {
        event_id = id;
      });
      const stop = () =>
        event_id &&
        fetch(new URL("../cancel", base), {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ session_hash: event_id, fn_index: 0, event_id }),
        });
      return { ended, stop };
    },
    layer: (request) => call("explore_layer", [...wish(request), request.stack, request.layer]),
  };
}
