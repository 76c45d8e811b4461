// What is shown until an answer begins: how many wait, and how far the server is with the prompt. Where it does not
// tell, that is estimated by how fast it read the ones before.

import { element } from "./dom.js";
import { whole } from "./figures.js";
import { load } from "./live.js";

const SOON = 700; // milliseconds in which most answers have begun

/** expected: {tokens, perSecond}, the latter 0 where nobody knows. What it returns has the `node`; `read` takes
 *  llama-server's progress of a prompt, {total, processed}; `end` ends it. */
export function waiting({ tokens, perSecond }) {
  const began = performance.now();
  let progress = null;
  const text = element("p", { class: "hint" });
  const bar = element("progress", { "aria-label": "How much of the prompt was read", max: "1" });
  const show = () => {
    const passed = performance.now() - began;
    const { waiting: queued, running, sessions } = load;
    const busy = queued > 0 && running >= sessions;
    bar.hidden = passed < SOON || busy;
    if (busy) text.textContent = `All ${sessions} places are taken, and ${queued} wait: yours comes in turn`;
    else if (passed < SOON) text.textContent = "Waiting for the first word";
    else if (progress) text.textContent = `Reading the prompt: ${whole(progress.processed)} of ${whole(progress.total)} tokens`;
    else text.textContent = `Reading the prompt, about ${whole(tokens)} tokens`;
    if (progress) bar.value = progress.processed / progress.total;
    // An estimate never arrives: it may be too low.
    else if (perSecond) bar.value = 1 - Math.exp((-2 * passed * perSecond) / (1000 * Math.max(1, tokens)));
  };
  show();
  const timer = setInterval(show, 250);
  const read = (told) => {
    progress = told;
    show();
  };
  return { node: element("div", { class: "waiting" }, text, bar), read, end: () => clearInterval(timer) };
}
