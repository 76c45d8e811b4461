// What is shown until an answer begins. The server tells how many wait; how far it is with a prompt is estimated
// by how fast it read the ones before.

import { element } from "./dom.js";
import { whole } from "./figures.js";
import { load } from "./live.js";

const SOON = 700; // milliseconds in which most answers have begun

/** expected: {tokens, perSecond}, the latter 0 where nobody knows. What it returns has the `node`, and ends by `end`. */
export function waiting({ tokens, perSecond }) {
  const began = performance.now();
  const text = element("p", { class: "hint" });
  const bar = element("progress", { "aria-label": "The prompt, about", max: "1" });
  const show = () => {
    const passed = performance.now() - began;
    const { waiting: queued, running, sessions } = load;
    const busy = queued > 0 && running >= sessions;
    bar.hidden = passed < SOON || busy;
    if (busy) text.textContent = `All ${sessions} places are taken, and ${queued} wait: yours comes in turn`;
    else if (passed < SOON) text.textContent = "Thinking of an answer";
    else text.textContent = `Reading what was said, about ${whole(tokens)} tokens`;
    // It never arrives: an estimate may be too low.
    if (perSecond) bar.value = 1 - Math.exp((-2 * passed * perSecond) / (1000 * Math.max(1, tokens)));
  };
  show();
  const timer = setInterval(show, 250);
  return { node: element("div", { class: "waiting" }, text, bar), end: () => clearInterval(timer) };
}
