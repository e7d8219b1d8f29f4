// The panel for cellular automata: a row of cells, and how the rule and the network continue it.
import { button, element, picture, row, variable } from "./dom.js";

const CELLS = 48;
const ROWS = 48;

// One application of the rule.
export function step(cells, rule, boundary) {
  const n = cells.length;
  const at = (i) => (boundary === "periodic" ? cells[(i + n) % n] : (cells[i] ?? 0));
  return cells.map((_, i) => (rule >> (4 * at(i - 1) + 2 * at(i) + at(i + 1))) & 1);
}

export function rules({ place, card, run, ask }) {
  const cells = new Array(CELLS).fill(0);
  cells[CELLS / 2] = 1;
  const buttons = cells.map((_, i) =>
    button("", () => set(i, 1 - cells[i]), { "aria-label": `Cell ${i + 1}` }),
  );
  const pictures = element("div", { class: "columns", id: "results" });
  const verdict = element("p", { id: "verdict", "aria-live": "polite" });

  function set(i, value) {
    cells[i] = value;
    buttons[i].setAttribute("aria-pressed", String(value === 1));
  }

  const go = () =>
    run(async (isLatest) => {
      const truth = [[...cells]];
      const network = [[...cells]];
      verdict.textContent = "Computing…";
      while (network.length < ROWS) {
        let next = truth.at(-1);
        for (let i = 0; i < card.steps; i++) next = step(next, card.rule, card.boundary);
        truth.push(next);
        const [answer] = await ask({ instances: [network.at(-1)] }).catch((error) => {
          if (isLatest()) verdict.textContent = "";
          throw error;
        });
        if (!isLatest()) return;
        network.push(answer.bits);
      }
      const wrong = network.map((line, y) => line.map((cell, x) => Number(cell !== truth[y][x])));
      const [ink, paper, red] = ["--ink", "--paper", "--wrong"].map(variable);
      const figure = (matrix, color, caption) =>
        element("figure", {}, picture(matrix, color, caption, 6), element("figcaption", {}, caption));
      const black = (cell) => (cell ? ink : paper);
      pictures.replaceChildren(
        figure(truth, black, `Rule ${card.rule}`),
        figure(network, black, "The network, fed with its own outputs"),
        figure(wrong, (cell) => (cell ? red : paper), "Cells that differ"),
      );
      const count = wrong.flat().reduce((a, b) => a + b, 0);
      const all = ((ROWS - 1) * CELLS).toLocaleString("en");
      verdict.textContent = `${count.toLocaleString("en")} of ${all} cells differ.`;
    });

  const fill = (value) => cells.forEach((_, i) => set(i, value(i)));
  fill((i) => cells[i]);
  place.append(
    element("p", {}, "The first row: click cells, or move with Tab and press space."),
    element("div", { class: "cells" }, ...buttons),
    row(
      button("Run", go, { class: "main" }),
      button("Random row", () => fill(() => Number(Math.random() < 0.5))),
      button("One cell", () => fill((i) => Number(i === CELLS / 2))),
    ),
    verdict,
    pictures,
  );
}
