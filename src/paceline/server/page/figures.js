// Numbers as text, and the line of them under an answer.

import { element } from "./dom.js";

const formats = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));

export const whole = (value) => formats[0].format(value);
export const rate = (value) => formats[value < 100 ? 1 : 0].format(value); // tokens a second
export const times = (value) => `${value.toFixed(2)} ×`;
export const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);

/** What is known of an answer that is over. record: a turn's; text: the answer's. */
export function figures({ state, finish, timings, plain }, text) {
  const said = [];
  if (state !== "done" && state !== "failed") said.push("Stopped");
  if (state === "done" && !text) said.push("The model ended its answer at once");
  if (timings) said.push(...ofTimings(timings, plain));
  if (finish === "length") said.push("ended at the longest answer allowed");
  return said.length ? element("p", { class: "figures" }, said.join(" · ")) : null;
}

function ofTimings(timings, plain) {
  const said = [`${whole(timings.predicted_n)} tokens`, `${rate(timings.predicted_per_second)} tokens/s`];
  if (plain) said.push(`${times(timings.predicted_per_second / plain)} plain decoding`);
  const [drafted, accepted] = [timings.draft_n, timings.draft_n_accepted];
  if (drafted) said.push(`${whole(accepted)} of ${whole(drafted)} draft tokens accepted`);
  said.push(`prompt of ${whole(timings.prompt_n)} in ${rate(timings.prompt_ms / 1000)} s`);
  return said;
}
