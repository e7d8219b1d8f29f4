// Classifies the text of the page as it is typed, with the files beside this one.
import { load } from "./reader.js";

const title = document.getElementById("title");
const text = document.getElementById("text");
const classes = document.getElementById("classes");
const problem = document.getElementById("problem");

function show(names, probabilities) {
  const order = [...names.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
  classes.replaceChildren(
    ...order.map((n) => {
      const row = document.createElement("li");
      const meter = document.createElement("meter");
      meter.value = probabilities[n];
      const share = `${(100 * probabilities[n]).toFixed(1)} %`;
      const cells = [names[n], meter, share].map((cell) => {
        const span = document.createElement("span");
        span.append(cell);
        return span;
      });
      row.append(...cells);
      return row;
    }),
  );
}

try {
  const classifier = await load(".");
  window.classifier = classifier; // for the console
  document.title = title.textContent = classifier.card.name ?? title.textContent;
  let last = 0;
  const update = async () => {
    const call = ++last;
    const [probabilities] = await classifier.probabilities([text.value]);
    if (call === last) show(classifier.classNames, probabilities); // not overtaken by a newer text
  };
  text.addEventListener("input", update);
  text.value ||= classifier.card.examples?.[0] ?? "";
  await update();
} catch (error) {
  problem.textContent = `The model could not be loaded: ${error.message}`;
}
