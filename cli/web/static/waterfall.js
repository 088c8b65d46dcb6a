// Where the time of a request went: its spans, a row each.
import { get, make } from "./common.js";

export async function waterfall(answer, into) {
  const alone = { name: "client", start: 0, ms: answer.ms, parts: [] };
  let whole = alone;
  if (answer.trace) {
    try { whole = await get(`/api/way?trace=${answer.trace}`); } catch (error) { whole = alone; }
  }
  const rows = [];
  const walk = (span, depth) => { rows.push([span, depth]); span.parts.forEach((part) => walk(part, depth + 1)); };
  walk(whole, 0);
  const table = make("table");
  table.append(make("caption", whole.parts.length ? "Where the time went" : "As the client saw it; stages need a server with --trace-url",
    { class: "note" }));
  for (const [span, depth] of rows) {
    const row = make("tr", undefined, { "data-span": span.name });
    const bar = make("td", undefined, { class: "bar" });
    bar.append(picture(span, whole));
    const name = make("td", span.name);
    name.style.paddingLeft = `${0.9 * depth}rem`;
    row.append(name, make("td", `${span.ms.toFixed(2)} ms`, { class: "ms" }), bar);
    table.append(row);
  }
  into.replaceChildren(table);
}

function picture(span, whole) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const share = (ms) => (100 * ms) / (whole.ms || 1);
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true"); // the figure beside it says the same
  const sizes = { x: share(span.start), y: 1, width: Math.max(share(span.ms), 0.4), height: 8 };
  for (const [name, value] of Object.entries(sizes)) bar.setAttribute(name, value);
  bar.setAttribute("class", { queue: "queue", compute: "compute", "answers later": "later" }[span.name] || "whole");
  svg.append(bar);
  return svg;
}
