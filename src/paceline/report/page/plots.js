// The plots of a report: intervals, lines and stacks, and pictures of them.
"use strict";

const FONT = 12;
const PHASES = {
  "the target's passes": "color-mix(in srgb, var(--quiet) 45%, var(--ground))", proposing: "var(--accent)",
  verifying: "var(--c4)", "committing and rolling back": "var(--c2)", "policy and scheduling": "var(--c3)",
};

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---- plots ----

const pen = document.createElement("canvas").getContext("2d");
function widthOf(text) {
  pen.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

/** Cut a text with an ellipsis to a width in pixels. */
function fit(text, width) {
  if (widthOf(text) <= width) return text;
  let end = text.length;
  while (end > 1 && widthOf(`${text.slice(0, end)}…`) > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

/** A legend within the plot, so that saved pictures have it: its marks, and the height that it takes. */
function legend(names, colour, width, left) {
  const marks = [];
  let x = 0, row = 0;
  for (const name of names) {
    const size = widthOf(name) + 30;
    if (x && x + size > width - left) [x, row] = [0, row + 1];
    const place = { frameAnchor: "top-left", dx: x, dy: 18 * row };
    marks.push((top) => Plot.dot([0], { ...place, dx: x0(place), dy: place.dy - top + 7.5, r: 4.5, fill: colour(name) }));
    marks.push((top) => Plot.text([name], { ...place, dx: place.dx + 14, dy: place.dy - top + 2, fill: "var(--quiet)" }));
    x += size;
  }
  const height = names.length ? 18 * row + 30 : 0;
  return { height, marks: marks.map((mark) => mark(height)) };
}
const x0 = (place) => place.dx + 5;

function drawn(width, options) {
  return Plot.plot({
    width, marginTop: 12, marginRight: 12, marginBottom: 38,
    style: { fontSize: `${FONT}px`, fontFamily: "inherit", background: "none", color: "var(--quiet)", overflow: "visible" },
    ...options,
  });
}

const figure = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2));
const format = (plot) => (value) => (plot.percent ? `${Math.round(100 * value)}%` : figure(value) + (plot.unit ?? ""));
const grid = { stroke: "var(--line)", strokeOpacity: 1 };

/** Values with their intervals, one row a method. */
function intervals(plot, width) {
  const { rows, rule } = plot, show = format(plot), ticks = width < 500 ? 4 : 8;
  const left = Math.min(0.42 * width, Math.max(...rows.map((row) => widthOf(row.y))) + 14);
  const colour = (row) => (row.clear && row.value > rule ? "var(--accent)" : "var(--quiet)");
  const [low, high] = d3.extent(plot.ends ?? [rule, ...rows.flatMap((row) => [row.low, row.high])]), pad = 0.05 * (high - low || 1);
  return drawn(width, {
    marginLeft: left, marginRight: 50, height: rows.length * 25 + 52,
    x: { label: `${plot.label} →`, domain: [low - pad, high + pad], ticks },
    y: { domain: rows.map((row) => row.y), label: null, padding: 0.4 },
    marks: [
      Plot.gridX({ ...grid, ticks }),
      Plot.axisY({ tickSize: 0, tickFormat: (name) => fit(name, left - 12), fill: "var(--text)" }),
      Plot.ruleX([rule], { stroke: "var(--text)", strokeDasharray: "3,3" }),
      Plot.ruleY(rows, { x1: "low", x2: "high", y: "y", stroke: colour, strokeWidth: 2.5, strokeOpacity: 0.55, strokeLinecap: "round" }),
      Plot.dot(rows, { x: "value", y: "y", r: 4.5, strokeWidth: 2, stroke: colour, fill: (row) => (row.clear ? colour(row) : "var(--ground)") }),
      Plot.text(rows, { x: "high", y: "y", text: (row) => show(row.value), textAnchor: "start", dx: 9, fill: "var(--text)", stroke: "var(--ground)", strokeWidth: 5 }),
    ],
  });
}

/** Lines over a number or over words; the main series has its interval as a band. */
function line(plot, width) {
  const { rows } = plot, show = format(plot);
  const series = [...new Set(rows.map((row) => row.series))], main = plot.main ?? series[0];
  const others = series.filter((name) => name !== main);
  const colour = (name) => (name === main ? "var(--accent)" : `var(--c${(others.indexOf(name) % 7) + 2})`);
  const words = rows.some((row) => typeof row.x === "string");
  const xs = [...new Set(rows.map((row) => row.x))].sort(words ? undefined : d3.ascending);
  const ys = rows.flatMap((row) => (row.series === main ? [row.low ?? row.y, row.high ?? row.y] : [row.y])).concat(plot.rule ?? []);
  const y = { label: plot.label, percent: false, domain: plot.domain, tickFormat: plot.percent ? "%" : undefined };
  if (!plot.domain) y.domain = plot.zero === false ? d3.extent(ys) : [Math.min(0, ...ys), Math.max(...ys) * 1.06];
  const top = legend(series.length > 1 ? series : [], colour, width, 46);
  const name = (row) => `${series.length > 1 ? `${row.series}\n` : ""}${plot.x} ${row.x}: ${show(row.y)}${row.low === undefined ? "" : ` [${show(row.low)}, ${show(row.high)}]`}`;
  return drawn(width, {
    height: 250 + top.height, marginLeft: 46, marginTop: 22 + top.height,
    x: words ? { type: "point", domain: xs, label: plot.x } : { label: plot.x, domain: plot.diagonal ? [0, 1] : undefined, ticks: xs.length <= 16 ? xs : 6, tickFormat: "~g", inset: 6 },
    y: { ...y, ticks: 5, nice: !plot.domain },
    marks: [
      Plot.gridY({ ...grid, ticks: 5 }),
      plot.rule === undefined ? null : Plot.ruleY([plot.rule], { stroke: "var(--text)", strokeDasharray: "3,3" }),
      plot.diagonal ? Plot.line([[0, 0], [1, 1]], { stroke: "var(--quiet)", strokeDasharray: "3,3" }) : null,
      Plot.areaY(rows.filter((row) => row.series === main && row.low !== undefined), { x: "x", y1: "low", y2: "high", fill: "var(--accent)", fillOpacity: 0.14 }),
      ...[...others, main].flatMap((one) => {
        const own = rows.filter((row) => row.series === one), big = one === main;
        return [
          Plot.line(own, { x: "x", y: "y", stroke: colour(one), strokeWidth: big ? 2.5 : 1.5 }),
          own.length > 40 ? null : Plot.dot(own, { x: "x", y: "y", r: big ? 3.6 : 2.4, fill: colour(one) }),
        ];
      }),
      ...top.marks,
      Plot.tip(rows, Plot.pointer({ x: "x", y: "y", title: name, fill: "var(--ground)", stroke: "var(--line)" })),
    ],
  });
}

/** Parts of a whole, one bar a method. */
function stack(plot, width) {
  const { rows } = plot, names = [...new Set(rows.map((row) => row.y))], parts = [...new Set(rows.map((row) => row.part))];
  const left = Math.min(0.4 * width, Math.max(...names.map(widthOf)) + 14);
  const colour = (part) => PHASES[part] ?? "var(--c8)";
  const top = legend(parts, colour, width, left);
  const sums = names.map((name) => ({ y: name, x: d3.sum(rows.filter((row) => row.y === name), (row) => row.x) }));
  return drawn(width, {
    marginLeft: left, marginRight: 56, marginTop: 8 + top.height, height: names.length * 27 + 46 + top.height,
    x: { label: `${plot.label} →`, ticks: width < 500 ? 4 : 8 }, y: { domain: names, label: null, padding: 0.3 },
    marks: [
      Plot.gridX({ ...grid, ticks: width < 500 ? 4 : 8 }),
      Plot.axisY({ tickSize: 0, tickFormat: (name) => fit(name, left - 12), fill: "var(--text)" }),
      Plot.barX(rows, Plot.stackX({ x: "x", y: "y", fill: (row) => colour(row.part), order: Object.keys(PHASES).map(colour), title: (row) => `${row.part}: ${figure(row.x)} ms` })),
      Plot.text(sums, { x: "x", y: "y", text: (row) => figure(row.x), textAnchor: "start", dx: 7, fill: "var(--text)" }),
      ...top.marks,
    ],
  });
}

const KINDS = { intervals, line, stack };

// ---- pictures ----

/** The plot below its title as a PNG, in the colours that it has now. */
async function picture(svg, title) {
  const copy = svg.cloneNode(true), { width, height } = svg.getBoundingClientRect();
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of ["fill", "stroke", "color", "font-family", "font-size"]) node.style.setProperty(name, style.getPropertyValue(name));
  });
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  const scale = 2, pad = 16, head = 26, page = getComputedStyle(document.documentElement);
  const canvas = element("canvas", { width: scale * (width + 2 * pad), height: scale * (height + 2 * pad + head) });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = page.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = page.color;
  context.font = `600 15px ${page.fontFamily}`;
  context.fillText(title, pad, pad + 12);
  context.drawImage(image, pad, pad + head, width, height);
  return canvas;
}

function plotted(plot) {
  const button = element("button", { type: "button", title: "Save this plot as a picture" }, "PNG");
  const made = element("figure", { id: plot.id }, element("figcaption", {}, plot.title, button));
  button.addEventListener("click", async () => {
    const canvas = await picture(made.querySelector("svg"), plot.title);
    canvas.toBlob((blob) => {
      const link = element("a", { href: URL.createObjectURL(blob), download: `${plot.id}.png` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  });
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(made.clientWidth);
    if (!width || width === last) return;
    last = width;
    made.querySelector("svg")?.remove();
    const svg = KINDS[plot.kind](plot, width);
    svg.querySelectorAll("[aria-label]").forEach((node) => node.removeAttribute("aria-label"));
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${plot.title}; its figures are in the table below`);
    made.append(svg);
  }).observe(made);
  return made;
}

