// The page of the server: chooses a model and shows the panel of its task.
import { element } from "./dom.js";
import { ask, explain, onRequest, server } from "./server.js";
import { classify, images, other } from "./classify.js";
import { language } from "./language.js";
import { translate } from "./translate.js";
import { rules } from "./rules.js";

const panels = { classify, images, language, rules, translate };
const choice = document.querySelector("#model");
const message = document.querySelector("#message");

function report(error) {
  message.textContent = error.message;
}

// Runs an asynchronous action and shows its error. `isLatest()` tells it whether a newer one has begun.
let latest = 0;
function run(work) {
  const mine = ++latest;
  message.textContent = "";
  return work(() => mine === latest).catch((error) => {
    if (mine === latest) report(error);
  });
}

async function show(name, isLatest) {
  const card = await server(`/v1/models/${encodeURIComponent(name)}/card`);
  const metadata = await server(`/v1/models/${encodeURIComponent(name)}/metadata`);
  if (!isLatest()) return; // another model was chosen meanwhile
  const signatures = metadata.metadata.signature_def.signature_def;
  document.querySelector("#version").textContent =
    `version ${card.version}` + (card.task ? `, ${card.task}` : "");
  const place = document.querySelector("#try");
  place.replaceChildren();
  document.querySelector("#request").hidden = true;
  const panel = panels[card.task] ?? other;
  panel({
    place,
    card,
    name,
    signatures,
    run,
    ask: (body) => ask(name, body),
    explain: (instances, goesOn) => explain(name, instances, goesOn),
  });
  showCard(card);
}

function showCard(card) {
  const rows = [];
  const hidden = new Set(["examples", "inputs"]);
  for (const [key, value] of Object.entries(card)) {
    if (hidden.has(key) || isEmpty(value)) continue;
    rows.push(element("dt", {}, key.replaceAll("_", " ")), element("dd", {}, written(value)));
  }
  document.querySelector("#card dl").replaceChildren(...rows);
  document.querySelector("#card").hidden = false;
}

function isEmpty(value) {
  return Array.isArray(value) && value.length === 0;
}

function written(value) {
  if (Array.isArray(value)) return value.map(written).join(", ");
  if (value !== null && typeof value === "object") {
    const filled = Object.entries(value).filter(([, v]) => !isEmpty(v));
    return filled.map(([k, v]) => `${k.replaceAll("_", " ")}: ${written(v)}`).join("; ");
  }
  const digits = typeof value === "number" && !Number.isInteger(value);
  return String(digits ? Number(value.toPrecision(4)) : value);
}

onRequest((url, body) => {
  const json = JSON.stringify(body);
  document.querySelector("#curl").textContent =
    `curl -d '${json.replaceAll("'", "'\\''")}' ${url}`;
  document.querySelector("#python").textContent = [
    "import json, urllib.request",
    "",
    `body = json.loads(${JSON.stringify(json)})`,
    `request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(body).encode())`,
    "print(json.load(urllib.request.urlopen(request)))",
  ].join("\n");
  document.querySelector("#request").hidden = false;
});

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copies).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(document.getElementById(button.dataset.copies));
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

choice.addEventListener("change", () => {
  location.hash = choice.value;
});
addEventListener("hashchange", () => {
  choice.value = decodeURIComponent(location.hash.slice(1));
  run((isLatest) => show(choice.value, isLatest));
});

run(async (isLatest) => {
  const { models } = await server("/v1/models");
  const names = models
    .filter((m) => m.model_version_status.some((v) => v.state === "AVAILABLE"))
    .map((m) => m.name);
  if (!names.length) {
    const loading = models.some((m) => m.model_version_status.some((v) => v.state === "LOADING"));
    throw new Error(
      loading
        ? "The models are loading. Reload the page soon."
        : "No model is available yet. Export one, then reload the page.",
    );
  }
  choice.replaceChildren(...names.map((name) => element("option", {}, name)));
  const wanted = decodeURIComponent(location.hash.slice(1));
  choice.value = names.includes(wanted) ? wanted : names[0];
  await show(choice.value, isLatest);
});
