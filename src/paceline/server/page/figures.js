// Numbers as text, and what they mean in everyday words.

import { TARGET } from "./sources.js";

const formats = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));

export const whole = (value) => formats[0].format(value);
export const rate = (value) => formats[value < 100 ? 1 : 0].format(value); // tokens a second
export const times = (value) => `${value.toFixed(2)} ×`;
export const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);

/** ratio: a speed, divided by that of plain decoding. */
export function speedUp(ratio) {
  if (ratio >= 0.95 && ratio < 1.05) return "as fast as without drafts";
  return ratio < 1 ? `${ratio.toFixed(1)} times the speed without drafts` : `${ratio.toFixed(1)} times as fast as without drafts`;
}

/** found: the `shares` of an answer, some of which drafters wrote. */
function guessed(found) {
  const drafted = found.filter(([source]) => source !== TARGET);
  const [first, second] = drafted.map(([source, share], i) => `${source} ${i ? "" : "guessed "}${percent(share)}`);
  return `${[first, second].filter(Boolean).join(" and ")} of this answer`;
}

/** An answer that is over, in one sentence. record: a node of a conversation. */
export function summary({ state, finish, timings, plain }, text, found) {
  const said = [];
  if (state === "stopped") said.push("stopped");
  if (state === "done" && !text) said.push("the model ended its answer at once");
  if (finish === "length") said.push("ended at the longest answer allowed");
  if (timings) {
    const { predicted_per_second: speed, draft_n: tried } = timings;
    const right = found.some(([source]) => source !== TARGET);
    said.push(plain && speed && tried ? speedUp(speed / plain) : `${rate(speed)} tokens a second`);
    if (tried) said.push(right ? guessed(found) : "no guess was right");
    else said.push("without drafts");
  }
  const line = said.join("; ");
  return line.charAt(0).toUpperCase() + line.slice(1);
}

/** The same for experts. */
export function details(timings, plain) {
  const said = [`${whole(timings.predicted_n)} tokens`, `${rate(timings.predicted_per_second)} tokens/s`];
  if (plain) said.push(`${times(timings.predicted_per_second / plain)} plain decoding`);
  const [drafted, accepted] = [timings.draft_n, timings.draft_n_accepted];
  if (drafted) said.push(`${whole(accepted)} of ${whole(drafted)} draft tokens accepted`);
  said.push(`prompt of ${whole(timings.prompt_n)} in ${rate(timings.prompt_ms / 1000)} s`);
  return said.join(" · ");
}
