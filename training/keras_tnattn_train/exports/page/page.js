// Classifies, translates or searches for the text of the page as it is typed, with the files beside this one.
import { load } from "./reader.js";

const title = document.getElementById("title");
const text = document.getElementById("text");
const classes = document.getElementById("classes");
const hint = document.getElementById("hint");
const problem = document.getElementById("problem");

function show(names, probabilities, kind = "") {
  const order = [...names.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
  classes.replaceChildren(
    ...order.map((n) => {
      const row = document.createElement("li");
      row.className = kind;
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

function showTranslations(translations) {
  classes.replaceChildren(
    ...translations.map(({ text: translation, score }) => {
      const row = document.createElement("li");
      row.className = "translation";
      row.append(translation);
      row.title = `score ${score.toFixed(2)}; lower is better`;
      return row;
    }),
  );
}

function computed(model) {
  if (model.nearest) {
    return async () => {
      const found = await model.nearest(text.value);
      const [texts, scores] = ["text", "score"].map((key) => found.map((x) => x[key]));
      return () => show(texts, scores, "sentence");
    };
  }
  if (!model.nBest) {
    return async () => {
      if (!text.value.trim()) return () => show([], []);
      const [probabilities] = await model.probabilities([text.value]);
      return () => show(model.classNames, probabilities);
    };
  }
  return async () => {
    const translations = await model.nBest(text.value);
    return () => showTranslations(translations);
  };
}

try {
  const model = await load(".");
  window.model = model; // for the console
  document.title = title.textContent = model.card.name ?? title.textContent;
  let last = 0;
  const compute = computed(model);
  const isEmpty = () => !(model.words ? model.words.split(text.value).length : text.value.trim());
  const update = async () => {
    const call = ++last;
    if (!model.words) await new Promise((done) => setTimeout(done, 200)); // until the typing pauses
    if (call !== last) return;
    hint.hidden = !isEmpty();
    if (isEmpty()) return classes.replaceChildren();
    const shown = await compute();
    if (call === last) shown(); // not overtaken by a newer text
  };
  text.addEventListener("input", () => {
    problem.textContent = "";
    update().catch((error) => {
      problem.textContent = `The model could not answer: ${error.message}`;
    });
  });
  text.value ||= model.card.examples?.[0] ?? "";
  await update();
} catch (error) {
  problem.textContent = `The model could not be loaded: ${error.message}`;
}
