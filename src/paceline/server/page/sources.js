// How the text of each drafter is marked: a colour and a kind of underline, in page.css by the number here.

import { element } from "./dom.js";
import { percent } from "./figures.js";

export const TARGET = "target";
const SLOTS = 8;
const slots = new Map([
  ["lookup", 1], ["suffix", 2], ["model", 3], ["draft", 3], ["ngram", 4],
  ["datastore", 5], ["corpus", 5], ["views", 6], ["lookahead", 7], ["later", 8],
]);

/** Names that are not known here get the numbers in turn, and keep them as long as the page is open. */
function slotOf(source) {
  if (!slots.has(source)) slots.set(source, (slots.size % SLOTS) + 1);
  return slots.get(source);
}

export function marked(source, text) {
  return element("span", { class: `mark mark-${slotOf(source)}`, title: `drafted by ${source}` }, text);
}

/** Who wrote how much of an answer, the target first: [[source, share of the characters], ...]. */
export function shares(parts) {
  const lengths = new Map();
  for (const [text, source] of parts) lengths.set(source, (lengths.get(source) ?? 0) + text.length);
  const total = [...lengths.values()].reduce((sum, length) => sum + length, 0);
  return [...lengths]
    .map(([source, length]) => [source, total ? length / total : 0])
    .sort(([a, share], [b, other]) => (b === TARGET) - (a === TARGET) || other - share);
}

/** The shares as a line, each name marked as its text is. */
export function legend(found) {
  const items = found.map(([source, share]) =>
    element("li", {}, source === TARGET ? "target" : marked(source, source), ` ${percent(share)}`));
  return element("div", { class: "legend", title: "Shares of the characters" }, "Text by", element("ul", {}, ...items));
}
