// The panels for text classifiers, image classifiers and models without a card.
import { bars, button, element, examples, heatTable, picture, row, shade, variable, waiting } from "./dom.js";

export function classify({ place, card, signatures, run, ask, explain }) {
  const text = element("textarea", { id: "text", maxlength: 20000 });
  const results = element("div", { id: "results", "aria-live": "polite" });

  const go = () =>
    run(async (isLatest) => {
      results.replaceChildren();
      if (!text.value.trim()) throw new Error("Write a text first.");
      const instances = [text.value];
      const [answer] = await ask({ instances });
      if (!isLatest()) return;
      results.replaceChildren(
        element("h2", {}, `Label: ${answer.label}`),
        bars(card.labels ?? [], answer.probabilities),
      );
      if (!("explain" in signatures)) return;
      // An engine has computed the label; only now is the whole model loaded.
      const waits = waiting("What the attention did comes soon; the first time the server loads the model for it.");
      results.append(waits);
      try {
        const [explained] = await explain(instances, isLatest);
        waits.replaceWith(explanation(explained));
      } finally {
        waits.remove();
      }
    });

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go();
  });
  place.append(
    element("label", { for: "text" }, "Text"),
    text,
    examples(card.examples, (example) => {
      text.value = example;
      go();
    }),
    row(button("Classify", go, { class: "main" }), element("span", { class: "faint" }, "Ctrl + Enter")),
    results,
  );
}

function explanation(answer) {
  const count = answer.words.filter((word) => word !== "").length;
  const words = element("p", { class: "words" });
  for (let i = 0; i < count; i++) {
    const word = element(
      "span",
      {
        class: answer.unknown[i] ? "unknown" : null,
        title: `${answer.weights[i].toFixed(2)}${answer.unknown[i] ? ", not in the vocabulary" : ""}`,
      },
      answer.words[i],
    );
    word.style.backgroundColor = shade(0.85 * answer.weights[i]);
    words.append(word, " ");
  }
  const graph = element("div", { class: "scrolls" });
  const shows = button(
    "Show the attention's graph",
    () => {
      const shown = graph.childElementCount > 0;
      shows.setAttribute("aria-expanded", String(!shown));
      if (shown) graph.replaceChildren();
      else graph.append(drawnGraph(answer, count));
    },
    { "aria-expanded": "false" },
  );
  return element(
    "div",
    {},
    element("h2", {}, "What the attention did"),
    element(
      "p",
      { class: "faint" },
      "The stronger a word's shade, the more attention the words of the text pay to it. Underlined: not in the vocabulary.",
    ),
    words,
    row(shows),
    graph,
  );
}

function drawnGraph(answer, count) {
  const values = answer.graph.slice(0, count).map((entries) => entries.slice(0, count));
  const words = answer.words.slice(0, count);
  if (count <= 30) return heatTable(words, words, values, "Row: the word that attends");
  const largest = Math.max(...values.flat(), 1e-9);
  const accent = variable("--accent").match(/[\d.]+/g).slice(0, 3).join(", ");
  return picture(
    values,
    (value) => `rgba(${accent}, ${value / largest})`,
    `The attention between ${count} words; row: the word that attends`,
    Math.max(2, Math.floor(480 / count)),
  );
}

export function images({ place, card, run, ask }) {
  const [height, width] = card.image_size ?? [8, 8];
  const pixels = Array.from({ length: height }, () => new Array(width).fill(0));
  const canvas = element("canvas", {
    class: "paper",
    tabindex: "0",
    role: "application",
    "aria-label": "Draw here. With the keyboard: arrows move, space draws.",
  });
  const scale = Math.floor(280 / Math.max(height, width));
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const results = element("div", { id: "results", "aria-live": "polite" });
  const radius = Math.max(0.75, width / 18);
  let cursor = null;

  function draw() {
    const context = canvas.getContext("2d");
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++) {
        const gray = Math.round(255 * pixels[y][x]);
        context.fillStyle = `rgb(${gray}, ${gray}, ${gray})`;
        context.fillRect(x * scale, y * scale, scale, scale);
      }
    if (cursor) {
      context.strokeStyle = "#e08020";
      context.lineWidth = 2;
      context.strokeRect(cursor[0] * scale + 1, cursor[1] * scale + 1, scale - 2, scale - 2);
    }
  }

  function paint(cx, cy) {
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++) {
        const distance = Math.hypot(x + 0.5 - cx, y + 0.5 - cy);
        pixels[y][x] = Math.max(pixels[y][x], Math.min(1, Math.max(0, 1.4 - distance / radius)));
      }
    draw();
  }

  const go = () =>
    run(async (isLatest) => {
      const rounded = pixels.map((line) => line.map((pixel) => Math.round(100 * pixel) / 100));
      const [answer] = await ask({ instances: [rounded] });
      if (!isLatest()) return;
      results.replaceChildren(
        element("h2", {}, `Label: ${answer.label}`),
        bars(card.labels ?? [], answer.probabilities, 10),
      );
    });

  function place_of(event) {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  }

  canvas.addEventListener("pointerdown", (event) => {
    cursor = null;
    canvas.setPointerCapture(event.pointerId);
    paint(...place_of(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) paint(...place_of(event));
  });
  canvas.addEventListener("pointerup", go);
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in moves) && event.key !== " ") return;
    event.preventDefault();
    cursor ??= [Math.floor(width / 2), Math.floor(height / 2)];
    if (event.key === " ") {
      paint(cursor[0] + 0.5, cursor[1] + 0.5);
      go();
      return;
    }
    const [dx, dy] = moves[event.key];
    cursor = [(cursor[0] + dx + width) % width, (cursor[1] + dy + height) % height];
    draw();
  });

  draw();
  place.append(
    element(
      "div",
      { class: "columns" },
      element(
        "div",
        {},
        element("p", {}, "Draw with the mouse, a finger, or the arrow keys and space."),
        canvas,
        row(
          button("Classify", go, { class: "main" }),
          button("Clear", () => {
            pixels.forEach((line) => line.fill(0));
            results.replaceChildren();
            draw();
          }),
        ),
      ),
      results,
    ),
  );
}

// A model without a card: one row, as JSON.
export function other({ place, signatures, run, ask }) {
  const name = "serving_default" in signatures ? "serving_default" : Object.keys(signatures)[0];
  const inputs = signatures[name].inputs;
  const text = element("textarea", { id: "text" });
  const example = (input) => (input.dtype === "DT_STRING" ? "a text" : 0);
  const names = Object.keys(inputs);
  text.value = JSON.stringify(Object.fromEntries(names.map((key) => [key, example(inputs[key])])));
  const results = element("pre", { id: "results", "aria-live": "polite" });
  const go = () =>
    run(async (isLatest) => {
      let instance;
      try {
        instance = JSON.parse(text.value);
      } catch {
        throw new Error("Expected one row of inputs as JSON.");
      }
      const answer = await ask({ signature_name: name, instances: [instance] });
      if (isLatest()) results.textContent = JSON.stringify(answer[0], null, 1);
    });
  place.append(
    element("label", { for: "text" }, "One row of inputs, as JSON"),
    text,
    row(button("Ask", go, { class: "main" })),
    results,
  );
}
