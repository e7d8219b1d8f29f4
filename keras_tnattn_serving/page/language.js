// The panel for language models: a prompt, and its continuation as it is written.
import { button, element, examples, row } from "./dom.js";
import { generate } from "./server.js";

const NUMBERS = [
  ["max_tokens", "Tokens", { min: 1, max: 1000, step: 1, placeholder: "50" }],
  ["temperature", "Temperature", { min: 0, max: 5, step: 0.1, value: 0.8 }],
  ["top_p", "Top p", { min: 0.01, max: 1, step: 0.01, value: 0.9 }],
  ["seed", "Seed", { min: 0, step: 1, value: 0 }],
];

export function language({ place, card, run, name }) {
  const prompt = element("textarea", { id: "text", maxlength: 20000 });
  const output = element("div", { id: "output", class: "output written", "aria-live": "off" });
  const most = card.max_length ? card.max_length - 1 : NUMBERS[0][2].max;
  const inputs = NUMBERS.map(([key, label, attributes]) => {
    const limits = key === "max_tokens" ? { max: most } : {};
    return [key, label, element("input", { type: "number", id: key, ...attributes, ...limits })];
  });
  let stopping = new AbortController();

  const go = () =>
    run(async (isLatest) => {
      stopping.abort();
      stopping = new AbortController();
      const given = inputs.filter(([, , input]) => input.value !== "");
      const parameters = Object.fromEntries(given.map(([key, , input]) => [key, input.valueAsNumber]));
      output.replaceChildren(element("span", { class: "faint" }, prompt.value));
      for await (const text of generate(name, prompt.value, parameters, stopping.signal)) {
        if (!isLatest()) break;
        output.append(text);
      }
    });

  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go();
  });
  place.append(
    element("label", { for: "text" }, "Prompt"),
    prompt,
    examples(card.examples, (example) => {
      prompt.value = example;
      go();
    }),
    row(...inputs.map(([key, label, input]) => element("label", { for: key }, `${label} `, input))),
    row(
      button("Continue", go, { class: "main" }),
      button("Stop", () => stopping.abort()),
    ),
    output,
  );
}
