// Requests to the server this page comes from.

let listener = () => {};

export function onRequest(callback) {
  listener = callback;
}

export async function server(path, body) {
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const text = await answer.text();
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Error("The answer contains numbers that are not finite.");
  }
  if (!answer.ok) throw new Error(content.error ?? `The server answered ${answer.status}.`);
  return content;
}

// Sends a request to a model; the page shows it for copying.
export async function ask(name, body) {
  const path = `/v1/models/${encodeURIComponent(name)}:predict`;
  listener(location.origin + path, body);
  return (await server(path, body)).predictions;
}

// Yields the texts that continue a prompt, as the server writes them; `signal` ends it.
export async function* generate(name, prompt, parameters, signal) {
  const path = `/v2/models/${encodeURIComponent(name)}/generate`;
  const body = { text_input: prompt, parameters };
  listener(location.origin + path, body);
  try {
    const answer = await fetch(`${path}_stream`, { method: "POST", body: JSON.stringify(body), signal });
    if (!answer.ok) throw new Error((await answer.json()).error ?? `The server answered ${answer.status}.`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const content = JSON.parse(event.slice("data: ".length));
        if (content.error) throw new Error(content.error);
        yield content.text_output;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    throw error instanceof TypeError ? new Error("The server does not answer. Is it still running?") : error;
  }
}
