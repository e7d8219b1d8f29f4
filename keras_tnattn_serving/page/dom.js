// Small helpers to build the page. They insert text as text, never as HTML.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function row(...children) {
  return element("div", { class: "row" }, ...children);
}

export function button(text, click, attributes = {}) {
  return element("button", { type: "button", click, ...attributes }, text);
}

export function examples(texts, take) {
  const buttons = (texts ?? []).map((text) => button(text, () => take(text), { title: text }));
  return element("div", { class: "row examples" }, ...buttons);
}

// What is shown until something has been computed.
export function waiting(text) {
  return element("p", { class: "waiting faint", role: "status" }, text);
}

export function shade(share) {
  return `color-mix(in srgb, var(--accent) ${Math.round(100 * Math.min(1, share))}%, transparent)`;
}

// The most probable labels as bars.
export function bars(labels, probabilities, most = 8) {
  const order = probabilities.map((p, i) => [p, labels[i] ?? String(i)]).sort((a, b) => b[0] - a[0]);
  return element(
    "ul",
    { class: "bars" },
    ...order.slice(0, most).map(([p, label]) => {
      const bar = element("div", { class: "bar" });
      bar.style.width = `${100 * p}%`;
      return element(
        "li",
        {},
        element("span", { class: "name" }, label),
        element("div", {}, bar),
        element("span", { class: "value" }, `${(100 * p).toFixed(1)} %`),
      );
    }),
  );
}

export function heatTable(rows, columns, values, caption) {
  const largest = Math.max(...values.flat(), 1e-9);
  return element(
    "table",
    { class: "heat" },
    element("caption", { class: "faint" }, caption),
    element(
      "thead",
      {},
      element("tr", {}, element("td"), ...columns.map((c) => element("th", { scope: "col" }, c))),
    ),
    element(
      "tbody",
      {},
      ...rows.map((name, i) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, name),
          ...columns.map((column, j) => {
            const cell = element("td", { title: `${name} ← ${column}: ${values[i][j].toFixed(3)}` });
            cell.style.backgroundColor = shade(values[i][j] / largest);
            return cell;
          }),
        ),
      ),
    ),
  );
}

// Draws each entry of a matrix as a square; `color` maps an entry to a CSS color.
export function picture(matrix, color, label, scale) {
  const [height, width] = [matrix.length, matrix[0]?.length ?? 0];
  const canvas = element("canvas", { role: "img", "aria-label": label });
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  matrix.forEach((entries, y) =>
    entries.forEach((entry, x) => {
      context.fillStyle = color(entry, y, x);
      context.fillRect(x * scale, y * scale, scale, scale);
    }),
  );
  return canvas;
}

export function variable(name) {
  // A canvas does not understand light-dark(), so let the browser resolve the color.
  const probe = element("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}
