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
  if (!answer.ok) {
    const error = new Error(content.error ?? `The server answered ${answer.status}.`);
    error.retryAfter = answer.status === 503 ? Number(answer.headers.get("Retry-After")) : 0;
    throw error;
  }
  return content;
}

const predict = (name) => `/v1/models/${encodeURIComponent(name)}:predict`;

// Sends a request to a model; the page shows it for copying.
export async function ask(name, body) {
  listener(location.origin + predict(name), body);
  return (await server(predict(name), body)).predictions;
}

// Asks what the attention did. The server may have to load the model for it: then it asks again.
const TRIES = 20;
export async function explain(name, instances, goesOn) {
  for (let tries = 1; ; tries++) {
    try {
      const body = { signature_name: "explain", instances };
      return (await server(predict(name), body)).predictions;
    } catch (error) {
      if (!error.retryAfter || tries === TRIES || !goesOn()) throw error;
      await new Promise((done) => setTimeout(done, 1000 * error.retryAfter));
    }
  }
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
