// The sections of a report. Every text of a record gets into the page as text, never as markup.
"use strict";

const SLOTS = { lookup: 1, suffix: 2, ngram: 4, datastore: 5, corpus: 5, views: 6, lookahead: 7, later: 8 };
const PARTS = {
  forward: "the target's passes", draft: "proposing", verify: "verifying",
  commit: "committing and rolling back", other: "policy and scheduling",
};
const MAX_ROWS = 16; // of a pass in the plot of costs
const MIN_JUDGED = 5; // drafts that reached a position of the plot
const SPEED = { label: "speed over plain decoding", rule: 1, unit: "x" };
const RATE = { label: "accepted", percent: true, domain: [0, 1] };
const POSITION = { ...RATE, x: "position in the draft" };
const PLAIN = "plain", ALL = "all texts";

const times = (value) => `${value.toFixed(2)}x`;
const percent = (value) => `${Math.round(100 * value)}%`;
const line_ = (title, rows, options) => ({ kind: "line", title, rows, ...options });
const points = (series, pairs) => pairs.map(([x, y]) => ({ x, y, series }));

/** more: plots, tables, lines (of a fixed width), parts (of an answer, each with its drafter). */
function part(title, text, more) {
  const all = { title, text, plots: [], tables: [], lines: [], parts: [], ...more };
  all.plots = all.plots.filter((plot) => plot.rows.length);
  if (!all.tables.length) all.tables = all.plots.map(pivot);
  return all;
}

/** A plot's rows as a table, with a column for each series or part. */
function pivot({ kind, title, rows, x: label = "" }) {
  const [row, column, value] = { line: ["x", "series", "y"], stack: ["y", "part", "x"], intervals: ["y", "", "value"] }[kind];
  const columns = [...new Set(rows.map((one) => one[column] ?? title))], cells = d3.group(rows, (one) => one[row]);
  const found = (some, name) => some.find((one) => (one[column] ?? title) === name);
  const cell = (some, name) => (found(some, name) ? d3.format(".3~g")(found(some, name)[value]) : "-");
  return { title, columns: [label, ...columns], rows: [...cells].map(([name, some]) => [`${name}`, ...columns.map((one) => cell(some, one))]), n_left: 1 };
}

const overall = (results) => {
  const all = results.filter((one) => !one.category);
  return all.length ? all : results;
};
const gains = (results) => results.filter((one) => one.lossless && one.speedup).map((one) => ({ y: one.system, clear: Boolean(one.clear), ...one.speedup }));

function acceptance({ acceptance_rate: rate, acceptance_length: length }) {
  if (rate === null || rate === undefined) return [];
  return [["of the drafted tokens were accepted", percent(rate)], ...(length ? [["tokens a forward pass", length.toFixed(2)]] : [])];
}

function bench({ results, measurements = [], sample }, { tables }) {
  const tiles = [], drafted = gains(overall(results));
  if (drafted.length) { // the conclusion's: a clear gain comes first
    const rank = (row) => (row.clear && row.value > 1 ? 1e6 : 0) + row.value;
    const top = drafted.reduce((a, b) => (rank(b) > rank(a) ? b : a));
    const [best, plain] = [top.y, PLAIN].map((name) => overall(results).find((one) => one.system === name));
    tiles.push([`${top.y} over plain decoding${top.clear ? "" : " (no clear difference)"}`, times(top.value)]);
    if (plain?.speed && best.speed) tiles.push([`tokens/s; plain ${plain.speed.toFixed(0)}`, best.speed.toFixed(0)]);
    tiles.push(...acceptance(best));
  }
  const answer = sample?.parts ? [answered(sample.parts, `The last answer of ${sample.system}`)] : [];
  return { tiles, sections: [...answer, ...workloads(results, tables), ...steps(measured(measurements))] };
}

/** The speeds over all texts, against each setting in which methods differ, and by workload. */
function workloads(results, tables) {
  const categories = new Set(results.map((one) => one.category).filter(Boolean));
  const every = new Map([[ALL, overall(results)]]);
  if (categories.size > 1) for (const name of categories) every.set(name, results.filter((one) => one.category === name));
  const rows = [...every].map(([name, some]) => [name, gains(some)]);
  const ends = d3.extent([1, ...rows.slice(1).flatMap(([, some]) => some.flatMap((row) => [row.low, row.high]))]);
  const plots = rows.map(([name, some]) => ({ kind: "intervals", title: `Speed: ${name}`, rows: some, ends: name === ALL ? undefined : ends, ...SPEED }));
  const text = "How fast each method is against plain decoding of the same requests: right of the dashed line is faster. Bars are 95% intervals; a filled dot is a clear difference, over six items or more.";
  const sections = [part("Speed", text, { plots: plots.slice(0, 1), tables: tables.slice(0, 1) })];
  for (const { drafter, setting, values } of families(overall(results))) {
    const speeds = [], rates = [];
    for (const [series, some] of every) {
      const mine = some.filter((one) => values.has(one.system)).map((one) => [values.get(one.system), one]);
      for (const [x, one] of mine.sort(([a], [b]) => d3.ascending(a, b))) {
        if (one.lossless && one.speedup) speeds.push({ x, series, y: one.speedup.value, low: one.speedup.low, high: one.speedup.high });
        if (one.acceptance_rate !== null) rates.push({ x, series, y: one.acceptance_rate });
      }
    }
    const best = d3.greatest(speeds.filter((row) => row.series === ALL), (row) => row.y);
    const words = `What ${setting} changes: the speed over plain decoding, and the share of drafted tokens that are accepted.`;
    const peak = best ? ` Over all texts the speed is highest at ${setting} = ${best.x}.` : "";
    sections.push(part(`Speed against ${setting} (${drafter})`, words + peak, { plots: [line_(`Speed by ${setting}`, speeds, { x: setting, ...SPEED }), line_(`Acceptance by ${setting}`, rates, { x: setting, ...RATE })] }));
  }
  const other = "The same for each kind of text: with few items of a kind, hardly any difference is clear.";
  if (plots.length > 1) sections.push(part("Speed by workload", other, { plots: plots.slice(1), tables: tables.slice(1) }));
  return sections;
}

/** Groups of methods that differ in one setting, with its value by method: numbers, or else words. */
function families(results) {
  const found = new Map();
  for (const { system } of results) {
    const [drafter, ...changes] = system.split(":");
    for (const change of changes) {
      const [setting, value = ""] = change.split("="), key = [drafter, setting, ...changes.filter((one) => one !== change).sort()].join(":");
      if (!found.has(key)) found.set(key, { drafter, setting, values: new Map() });
      found.get(key).values.set(system, value);
    }
  }
  const several = [...found.values()].filter(({ values }) => values.size > 1);
  for (const { values } of several) {
    if ([...values.values()].every((value) => value !== "" && Number.isFinite(Number(value)))) values.forEach((value, system) => values.set(system, Number(value)));
  }
  return several;
}

/** The sums over measurements by system, as in `stats` of `paceline run --json`. */
function measured(measurements) {
  const out = {};
  for (const { system, steps: n, times: spent, by_position: positions } of measurements) {
    if (!spent || !n) continue;
    const sums = (out[system] ??= { steps: 0, time: {}, by_position: [] });
    sums.steps += n;
    for (const [phase, seconds] of Object.entries(spent)) sums.time[phase] = (sums.time[phase] ?? 0) + seconds;
    positions.forEach(([judged, accepted], i) => {
      const [before, right] = sums.by_position[i] ?? [0, 0];
      sums.by_position[i] = [before + judged, right + accepted];
    });
  }
  return out;
}

/** The acceptance by position and the time of each phase, by system. */
function steps(stats) {
  const longest = {}; // methods that differ in a setting have similar curves: the longest of them is shown
  for (const [name, { by_position: positions = [] }] of Object.entries(stats)) {
    const family = name.replace(/:.*/s, ":");
    if (positions.length >= (stats[longest[family]]?.by_position ?? []).length) longest[family] = name;
  }
  const rates = Object.values(longest).flatMap((name) => {
    const reached = (stats[name].by_position ?? []).map(([judged, accepted], i) => [i + 1, accepted / judged, judged]);
    return points(name, reached.filter(([, , judged]) => judged >= MIN_JUDGED));
  });
  const spent = Object.entries(stats).flatMap(([y, { time, steps: n }]) => (n ? Object.entries(PARTS).map(([phase, words]) => ({ y, part: words, x: (1e3 * time[phase]) / n })) : []));
  return [
    positions_(rates, `positions that were reached fewer than ${MIN_JUDGED} times are left out.`),
    part("Where a step's time goes", "What a step of decoding consists of, on average. A step with a draft costs more, and emits more tokens.", { plots: [{ kind: "stack", title: "Time of a step", rows: spent, label: "ms a step" }] }),
  ];
}

function positions_(rates, more) {
  const text = `How often a drafted token is accepted when those before it in its draft were. Position 1 is the first token of a draft; ${more}`;
  const plots = new Set(rates.map(({ x }) => x)).size > 1 ? [line_("Acceptance by position", rates, POSITION)] : [];
  return part("Acceptance by position", text, { plots });
}

const answered = (parts, what) => part("A sample answer", `${what}, coloured by the drafter that guessed the text. The model verified all of it.`, { parts });

function tune({ stages }) {
  return { sections: stages.flatMap(({ stage, results }) => workloads(results, []).map((one) => ({ ...one, title: `${stage}: ${one.title}` }))) };
}

function replay({ results }, { tables }) {
  const rows = (of) => results.filter(of).map((one) => ({ y: one.method, clear: true, ...of(one) }));
  const plots = [
    { kind: "intervals", title: "Tokens a forward pass", rows: rows((one) => one.tokens_per_step), label: "tokens a forward pass", rule: 1 },
    { kind: "intervals", title: "Predicted speed", rows: rows((one) => one.predicted?.speedup), ...SPEED },
  ];
  return { sections: [part("Methods on recorded requests", "What each method would have done on these requests, without the model. Speeds are predicted from the costs of passes.", { plots, tables })] };
}

function certify({ certified, greedy, sampled }, { lines }) {
  const text = "Whether drafted output is plain output on this machine: token for token, in distribution, and in the model's state.";
  const tiles = [["losslessness", certified ? "passed" : "FAILED"], ["greedy tokens", d3.format(",")(d3.sum(greedy, (run) => run.n_tokens))], ["sampled runs", d3.format(",")(sampled.runs)]];
  return { tiles, sections: [part("The certificate", text, { lines })] };
}

/** Records of the same target share the first plot, such as with and without kernels. */
function doctor(record, { tables }, records) {
  if (!record.provenance) return { sections: [] };
  const id = (one) => one.provenance?.target.fingerprint, same = records.filter((one) => one !== record && id(one) === id(record));
  const rows = [record, ...same].flatMap(({ provenance, target }) => target.depths.flatMap((depth, i) =>
    points(`after ${d3.format(",")(depth)} tokens, kernels ${provenance.kernels}`, d3.zip(target.rows, target.seconds[i]).filter(([n, s]) => s !== null && n <= MAX_ROWS).map(([n, s]) => [n, 1e3 * s]))));
  const text = "What a forward pass costs by its rows (tokens). A draft of n tokens is verified in a pass of n + 1 rows: the flatter the line, the better drafts pay.";
  const { causes, run } = record.diagnosis;
  return {
    sections: [
      part(`The cost of 1 to ${MAX_ROWS} rows`, text, { plots: [line_("Time of a pass", rows, { label: "ms", x: "rows" })], tables: tables.slice(0, -1) }),
      part("Diagnosis", causes.length ? "The reasons why drafts would lose here, the gravest first." : "No reason was found why drafts would lose here.", { tables: causes.length ? tables.slice(-1) : [], always: true }),
      ...(run ? steps({ drafted: run.run.stats }) : []),
    ],
  };
}

function experts({ rows, recommended, used }, { tables }) {
  const x = "experts a token", of = (value) => rows.map((row) => [row.experts, value(row)]);
  const speeds = Object.keys(rows[0].speed).flatMap((name) => points(name === "none" ? PLAIN : name, of((row) => row.speed[name])));
  const plots = [line_("Speed", speeds, { x, ...SPEED }), line_("Perplexity", points("perplexity", of((row) => row.perplexity)), { x, label: "perplexity", zero: false })];
  const text = `Speed over plain decoding with all ${used} experts, and perplexity, by the number of experts a token. Fewer experts change what the model says.`;
  return { tiles: [[`with ${recommended.experts} of ${used} experts, the recommended number`, times(recommended.speed)]], sections: [part("Fewer experts", text, { plots, tables })] };
}

function prefill({ rows, recommended }, { tables }) {
  const curve = (title, name, label) => line_(title, points(title, rows.map((row) => [row.share, row[name]])), { label, percent: true, x: "share of the prompt" });
  const plots = [curve("Time to the first token", "first_token", "of the whole prompt's"), curve("Agreement", "agreement", "likeliest")];
  const text = "Time to the first token as a share of the whole prompt's, and how often a token of the answer stays the likeliest. This changes what the model says.";
  return { tiles: [["of each prompt computed, the recommended share", percent(recommended)]], sections: [part("Parts of prompts", text, { plots, tables })] };
}

function calibration(bins, where, tables = []) {
  const text = `Whether tokens of a predicted probability are accepted as often, ${where}: a perfect prediction lies on the diagonal.`;
  return part("Calibration", text, { plots: [line_("Reliability", bins, { x: "predicted probability", diagonal: true, ...RATE })], tables });
}

function train({ acceptance: found, history = [] }, { tables }) {
  if (found.confidence) {
    const bins = ["confidence", "score"].flatMap((name) => points(name, found[name].reliability ?? []));
    return { sections: [calibration(bins, "on held-out answers", tables)] };
  }
  const curve = (title, name) => line_(title, points(title, history.filter((one) => name in one).map((one) => [one.step, one[name]])), { label: title.toLowerCase(), x: "step", zero: false });
  const text = "The loss on the training answers (a moving average), and the acceptance length on held-out answers. The best head is kept.";
  return {
    tiles: [["acceptance length on held-out prompts", found.length.toFixed(2)]],
    sections: [part("Training", text, { plots: [curve("Loss", "loss"), curve("Acceptance length", "length")] }), positions_(points("accepted", found.by_position.map((rate, i) => [i + 1, rate])), "the drafts are along held-out answers.")],
  };
}

function run(record) {
  const { speedup, plain, drafted = record } = record, stats = plain ? { plain: plain.stats } : {};
  const bins = points("guesses", drafted.policy?.reliability ?? []);
  const tiles = [...(speedup ? [["over plain decoding", times(speedup)]] : []), ["tokens/s", drafted.tokens_per_second.toFixed(0)], ...acceptance(drafted.stats)];
  return { tiles, sections: [answered(drafted.parts ?? [], "The answer"), ...steps({ ...stats, drafted: drafted.stats }), ...(bins.length ? [calibration(bins, "in this run")] : [])] };
}

const RECORDS = { bench, tune, replay, certify, doctor, experts, prefill, train, run };

// ---- the page ----

function table({ title, columns, rows, n_left: words }) {
  const row = (cells, tag) => element("tr", {}, ...cells.map((cell, i) => element(tag, i < words ? { class: "word" } : {}, cell)));
  const parts = title ? [element("caption", {}, title)] : [];
  parts.push(element("thead", {}, row(columns, "th")), element("tbody", {}, ...rows.map((cells) => row(cells, "td"))));
  return element("div", { class: "scroll", tabindex: 0 }, element("table", {}, ...parts));
}

function sample(parts) {
  const length = new Map();
  const mark = (source, text) => element("span", { class: "mark", style: `--mark: var(--c${SLOTS[source] ?? 3})`, title: `drafted by ${source}` }, text);
  const answer = element("div", { class: "sample" });
  for (const [text, source] of parts) {
    length.set(source, (length.get(source) ?? 0) + text.length);
    const last = answer.lastChild, shown = last ? text : text.replace(/^\n+/, "");
    if (last && last.source === source) last.append(shown);
    else if (shown) answer.append(Object.assign(source === "target" ? element("span", {}, shown) : mark(source, shown), { source }));
  }
  const total = d3.sum(length.values());
  const shares = [...length].sort((a, b) => (b[0] === "target") - (a[0] === "target") || b[1] - a[1]);
  const items = shares.map(([source, n]) => element("span", {}, source === "target" ? "the model itself" : mark(source, source), ` ${percent(n / total)}`));
  return [answer, element("div", { class: "legend" }, ...items)];
}

function section({ title, text, plots, tables, lines, parts }) {
  const made = element("section", {}, element("h2", {}, title), element("p", {}, text));
  if (plots.length) made.append(element("div", { class: "plots" }, ...plots.map(plotted)));
  if (parts.length) made.append(...sample(parts));
  if (lines.length) made.append(element("pre", {}, lines.join("\n")));
  const shown = tables.map(table);
  if (plots.length && shown.length) made.append(element("details", {}, element("summary", {}, "Figures"), ...shown));
  else made.append(...shown);
  return made;
}

function article(view, _, views) {
  const pairs = (list, kind, wrap) => element("dl", { class: kind }, ...list.flatMap(([name, text]) => {
    const pair = [element("dt", {}, name), element("dd", {}, text)];
    return wrap ? [element("div", {}, ...pair)] : pair;
  }));
  const made = element("article", {}, element("p", { class: "kind" }, view.kind), element("h1", {}, view.title));
  if (view.lead) made.append(...view.lead.split(/; (.*)/s).filter(Boolean).map((text) => element("p", { class: "lead" }, text)));
  const all = views.filter((one) => one.kind === view.kind).map((one) => one.record);
  const { tiles = [], sections } = RECORDS[view.kind](view.record, view, all);
  if (tiles.length) made.append(pairs(tiles, "tiles", true));
  if (view.facts.length) made.append(pairs(view.facts, "facts", false));
  const full = sections.filter((one) => one.always || one.plots.length || one.tables.length || one.lines.length || one.parts.length);
  for (const plot of full.flatMap((one) => one.plots)) {
    ids.add((plot.id = `${view.kind} ${plot.title} ${ids.size + 1}`.toLowerCase().replace(/[^a-z0-9]+/g, "-")));
  }
  made.append(...full.map(section));
  return made;
}
const ids = new Set();

const views = JSON.parse(document.getElementById("data").textContent);
for (const [i, view] of views.entries()) {
  let made;
  try {
    made = article(view, i, views);
  } catch (error) {
    made = element("article", {}, element("h1", {}, view.title), element("p", { class: "lead" }, `This record of paceline ${view.kind} is damaged, or of another version (${error.message}).`));
    console.error(error);
  }
  document.getElementById("report").append(made);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));

/** For `paceline report --png`, which reads the pictures from the page's elements. */
async function pictures() {
  await new Promise((resolve) => setTimeout(resolve, 200));
  for (const one of document.querySelectorAll("figure")) {
    const canvas = await picture(one.querySelector("svg"), one.querySelector("figcaption").firstChild.data);
    one.dataset.png = canvas.toDataURL("image/png");
  }
  document.body.dataset.pictures = document.querySelectorAll("figure").length;
}
if (location.hash === "#png") pictures();
