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
