// The live view: what the server tells about itself twice a second.

import { byId, element, fill } from "./dom.js";
import { percent, rate, speedUp, times, whole } from "./figures.js";
import { Failure, events, request } from "./server.js";
import { marked } from "./sources.js";

const SECOND = 1000;
const LONGEST_WAIT = 15 * SECOND;
const HISTORY = 120; // samples, two a second
const POSITIONS = 16; // of a draft that are shown
const BUSY = 0.95; // times plain decoding, below which something else takes the time
let plain = null;
let plainEach = null; // of one answer among those under way
const watches = new Set();
export const load = { running: 0, sessions: 1, waiting: 0 }; // what the server has to do
let history = [];

/** Begins to watch; what it returns ends that, and tells the tokens a second that plain decoding would have brought
 *  one answer meanwhile, beside all others, or null where nobody knows. */
export function watchPlain() {
  const seen = [];
  watches.add(seen);
  return () => {
    watches.delete(seen);
    return seen.length ? seen.length / seen.reduce((seconds, value) => seconds + 1 / value, 0) : plainEach;
  };
}

/** Follows the server for as long as the page is in sight: a browser has six connections to a server, for all
 *  of its tabs together. connected: called when the server has answered after it had not. */
export async function follow(connected) {
  for (let wait = SECOND; ; wait = Math.min(2 * wait, LONGEST_WAIT)) {
    await inSight();
    const hidden = new AbortController();
    const leave = () => document.hidden && hidden.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      const stream = events(await request("live", { signal: hidden.signal }));
      connected();
      for await (const state of stream) {
        wait = SECOND;
        say("Live");
        show(state);
      }
    } catch (error) {
      if (!hidden.signal.aborted && !(error instanceof Failure)) throw error;
      if (error.status === 404) return say("This server has no live view");
      say(hidden.signal.aborted ? "Paused" : "Not connected, trying again");
    } finally {
      document.removeEventListener("visibilitychange", leave);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function inSight() {
  if (!document.hidden) return null;
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

function say(text) {
  const state = byId("live-state");
  if (state.textContent === text) return; // it is read aloud when it changes
  state.textContent = text;
  byId("live-body").classList.toggle("stale", text !== "Live");
}

function show(state) {
  byId("live-body").hidden = false;
  plain = state.plain_tokens_per_second;
  plainEach = state.plain_tokens_per_second_each ?? null;
  if (plainEach && state.running > 0) for (const seen of watches) seen.push(plainEach);
  Object.assign(load, { running: state.running, sessions: state.sessions, waiting: state.waiting });
  byId("model-name").textContent = state.model;
  showSpeed(state.tokens_per_second, state.running > 0);
  byId("guesses").textContent = guesses(state.drafted, state.accepted);
  byId("decision").textContent = state.decision;
  showAcceptance(state.acceptance);
  showDrafters(state.drafted, state.accepted);
  showTimes(state.times);
  showLoad(state);
}

/** busy: whether anybody is being answered; a server that waits is not slow. */
function showSpeed(speed, busy) {
  const now = busy && speed > 0;
  byId("speed").textContent = rate(speed);
  byId("live-short").textContent = now ? `${rate(speed)} tokens/s` : "Live";
  byId("compared").textContent = now && plain ? against(speed / plain) : "Nobody is being answered.";
  if (now && !plain) byId("compared").textContent = "How fast it would be without drafts is not measured yet.";
  byId("against-plain").textContent = plain
    ? `Plain decoding: ${rate(plain)} tokens/s.${now ? ` Now ${times(speed / plain)} that.` : ""}`
    : "Plain decoding has not been measured yet.";
  history = [...history, speed].slice(-HISTORY);
  const top = 1.1 * Math.max(...history, plain ?? 0, 1);
  const height = (value) => (40 * (1 - value / top)).toFixed(1);
  const start = HISTORY - history.length;
  byId("history-line").setAttribute("points", history.map((value, i) => `${start + i},${height(value)}`).join(" "));
  byId("history-plain").setAttribute("d", plain ? `M0 ${height(plain)}H${HISTORY}` : "");
  byId("history-key").hidden = !plain;
}

function against(ratio) {
  const text = ratio < BUSY ? "busy with prompts or other work" : speedUp(ratio);
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** Whose guesses were right most often in number. */
function guesses(drafted, accepted) {
  const [best] = Object.entries(accepted).filter(([name]) => drafted[name]).sort(([, a], [, b]) => b - a);
  if (!best) return "Nothing has been guessed yet.";
  const [name, right] = best;
  return `${name} helps most: ${percent(right / drafted[name])} of its guesses are right.`;
}

function showAcceptance(shares) {
  byId("no-acceptance").hidden = shares.length > 0;
  fill(byId("acceptance"), shares.slice(0, POSITIONS), newColumn, (item, share, i) => {
    const [position, bar, value] = item.children;
    position.lastChild.data = String(i + 1);
    bar.firstChild.style.blockSize = value.textContent = percent(share);
  });
}

function newColumn() {
  const position = element("span", { class: "position" }, element("span", { class: "hidden" }, "Position "), "");
  const bar = element("span", { class: "column", "aria-hidden": "true" }, element("span"));
  return element("li", {}, position, bar, element("span"));
}

function showDrafters(drafted, accepted) {
  const rows = Object.entries(drafted).filter(([, count]) => count > 0);
  byId("no-drafters").hidden = rows.length > 0;
  byId("drafters").hidden = rows.length === 0;
  fill(byId("drafters").tBodies[0], rows, newRow, (row, [name, count]) => {
    const [head, ...cells] = row.children;
    if (head.textContent !== name) head.replaceChildren(marked(name, name));
    const kept = accepted[name] ?? 0;
    cells[0].textContent = whole(count);
    cells[1].textContent = `${whole(kept)} (${percent(kept / count)})`;
  });
}

const newRow = () => element("tr", {}, element("th", { scope: "row" }), element("td"), element("td"));

function showTimes(shares) {
  const entries = Object.entries(shares);
  fill(byId("times-bar"), entries, () => element("span"), (piece, [name, share]) => {
    piece.className = `time time-${name}`;
    piece.style.flexGrow = share;
  });
  fill(byId("times"), entries, newTime, (item, [name, share]) => {
    item.firstChild.className = `swatch time-${name}`;
    item.lastChild.data = `${name} ${percent(share)}`;
  });
}

const newTime = () => element("li", {}, element("span", { "aria-hidden": "true" }), document.createTextNode(""));

function showLoad({ running, sessions, waiting, queue, uptime, engine }) {
  showMeter("running", running, sessions, "slots");
  showMeter("waiting", waiting, queue, "places");
  byId("about").textContent = `${engine}. Up for ${duration(uptime)}.`;
}

function showMeter(id, value, most, what) {
  byId(id).max = most;
  byId(id).value = value;
  byId(`${id}-text`).textContent = `${value} of ${most} ${what}`;
}

function duration(seconds) {
  if (seconds < 60) return `${whole(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
