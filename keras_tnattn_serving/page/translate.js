// The panel for translators.
import { button, element, examples, heatTable, row, waiting } from "./dom.js";

const WORST = 1e38; // scores above this mark a missing hypothesis

export function translate({ place, card, signatures, run, ask, explain }) {
  const [from, to] = card.languages ?? ["source", "target"];
  const text = element("textarea", { id: "text", maxlength: 2000, lang: from });
  const output = element("div", { id: "output", class: "output", lang: to, "aria-live": "polite" });
  const more = element("div", { id: "results" });
  const kinds = ["greedy", "n_best"].filter((kind) => kind in signatures);
  const labels = { greedy: "Greedy", n_best: `Beam, the best ${card.beam_size > 1 ? card.beam_size : 4}` };
  const choices = kinds.map((kind, i) =>
    element(
      "label",
      {},
      element("input", { type: "radio", name: "kind", value: kind, checked: i === 0 }),
      ` ${labels[kind]}`,
    ),
  );

  const go = () =>
    run(async (isLatest) => {
      if (!text.value.trim()) throw new Error("Write a text first.");
      const kind = place.querySelector("input[name=kind]:checked")?.value;
      const body = { instances: [text.value] };
      const [answer] = await ask(kind ? { signature_name: kind, ...body } : body);
      if (!isLatest()) return;
      const translations = answer.translations ?? [answer.translation];
      const scores = answer.scores ?? [answer.score];
      const found = translations.map((t, i) => [t, scores[i]]).filter(([, score]) => score < WORST);
      const buttons = found.map(([translation, score], i) =>
        button(`${translation || "(empty)"}   ${score.toFixed(3)}`, () => choose(i)),
      );
      const attention = element("div", { class: "scrolls" });

      const choose = (chosen) =>
        run(async (isStill) => {
          buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(i === chosen)));
          output.textContent = found[chosen][0];
          if (!("explain" in signatures)) return;
          const instance = { text: text.value, translation: found[chosen][0] };
          attention.replaceChildren(waiting("The attention comes soon."));
          try {
            const [explained] = await explain([instance], isStill);
            if (isStill()) attention.replaceChildren(...drawn(explained));
          } catch (error) {
            attention.replaceChildren();
            throw error;
          }
        });

      more.replaceChildren(
        element("h2", {}, found.length > 1 ? "The best translations and their scores, lower is better" : "Score"),
        element("ol", { class: "hypotheses" }, ...buttons.map((b) => element("li", {}, b))),
        attention,
      );
      if (found.length) await choose(0);
    });

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go();
  });
  place.append(
    element(
      "div",
      { class: "columns" },
      element("div", {}, element("label", { for: "text" }, `Text (${from})`), text),
      element("div", {}, element("span", {}, `Translation (${to})`), output),
    ),
    examples(card.examples, (example) => {
      text.value = example;
      go();
    }),
    row(button("Translate", go, { class: "main" }), ...choices),
    more,
  );
}

function drawn(explained) {
  // Fonts lack the joiner of our word pieces; BERT's pieces begin with ##.
  const shown = (piece) => piece.replace(/^##/, "·").replaceAll("\uffed", "·");
  const sources = explained.source.map((piece, i) => [piece, i]).filter(([p]) => p && !/^\[(START|END)\]$/.test(p));
  const targets = explained.target.map((piece, i) => [piece, i]).filter(([p]) => p && p !== "[END]");
  const unknown = sources.filter(([, i]) => explained.unknown[i]);
  const parts = [element("h2", {}, "The attention between the pieces")];
  const line = element("p", { class: "words" });
  for (const [piece, i] of sources) {
    const isUnknown = explained.unknown[i];
    const title = isUnknown ? "not in the vocabulary" : null;
    line.append(element("span", { class: isUnknown ? "unknown" : null, title }, shown(piece)), " ");
  }
  parts.push(line);
  if (unknown.length) {
    parts.push(element("p", { class: "faint" }, "Underlined: not in the vocabulary."));
  }
  if (targets.length && sources.length) {
    const values = targets.map(([, i]) => sources.map(([, j]) => explained.attention[i][j]));
    const names = (pairs) => pairs.map(([piece]) => shown(piece));
    parts.push(heatTable(names(targets), names(sources), values, "Row: the piece that is written"));
  }
  return parts;
}
