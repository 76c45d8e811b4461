// The conversation: sends a message, shows the answer as it comes, stops, tries again.

import { announce, byId } from "./dom.js";
import { watchPlain } from "./live.js";
import { Follower } from "./scroll.js";
import { Failure, events, request } from "./server.js";
import { requestSettings, systemPrompt } from "./settings.js";
import { tab } from "./store.js";
import { Turn } from "./turn.js";

const KEPT = "conversation";
const on = { retry: (turn) => !running && answer(turn), edit: (turn) => !running && edit(turn) };
let turns = [];
let running = null; // the AbortController of the answer that is coming
let follower;

export function openChat() {
  follower = new Follower(byId("turns"), byId("chat"));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("message").addEventListener("keydown", pressed);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new").addEventListener("click", startAnew);
  window.addEventListener("pagehide", keep);
  for (const record of JSON.parse(tab.get(KEPT) ?? "[]")) add(new Turn(record.question, on, record));
  if (turns.length) follower.toEnd();
  byId("message").focus({ preventScroll: true });
}

function pressed(event) {
  if (event.key === "Escape" && running) running.abort();
  // Enter also ends what is being composed, in scripts that are typed in several keys.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
}

function send() {
  const message = byId("message");
  if (running || !message.value.trim()) return;
  const turn = new Turn(message.value, on);
  message.value = "";
  add(turn);
  answer(turn);
}

function add(turn) {
  turns.at(-1)?.settle();
  byId("empty").hidden = true;
  turns.push(turn);
  byId("turns").append(turn.node);
}

/** Asks the server for the answer to the last turn. */
async function answer(turn) {
  const { signal } = (running = new AbortController());
  show();
  turn.begin();
  keep();
  follower.toEnd();
  const plain = watchPlain();
  try {
    const body = { ...(await requestSettings(signal)), messages: messages(turn) };
    const stream = { stream: true, stream_options: { include_usage: true } };
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, signal };
    const response = await request("v1/chat/completions", { ...options, body: JSON.stringify({ ...body, ...stream }) });
    for await (const chunk of events(response)) follower.during(() => turn.take(chunk));
    follower.during(() => turn.finish(plain()));
  } catch (error) {
    if (!signal.aborted && !(error instanceof Failure)) throw error;
    follower.during(() => (signal.aborted ? turn.stop() : turn.fail(error)));
  } finally {
    plain();
    running = null;
    show();
    keep();
  }
}

/** A question without any answer is left out: most chat templates want the two in turns. */
function messages(last) {
  const system = systemPrompt();
  const sent = system ? [{ role: "system", content: system }] : [];
  for (const turn of turns.slice(0, turns.indexOf(last))) {
    if (!turn.text) continue;
    sent.push({ role: "user", content: turn.record.question }, { role: "assistant", content: turn.text });
  }
  return [...sent, { role: "user", content: last.record.question }];
}

function edit(turn) {
  const message = byId("message");
  message.value = [turn.record.question, message.value].filter(Boolean).join("\n");
  turn.node.remove();
  turns = turns.filter((other) => other !== turn);
  byId("empty").hidden = turns.length > 0;
  keep();
  message.focus();
}

function startAnew() {
  running?.abort();
  turns = [];
  byId("turns").replaceChildren(byId("empty"));
  byId("empty").hidden = false;
  keep();
  announce("New conversation.");
  byId("message").focus();
}

function show() {
  const stop = byId("stop");
  if (!running && document.activeElement === stop) byId("message").focus();
  stop.hidden = !running;
  byId("send").setAttribute("aria-disabled", String(Boolean(running)));
  byId("turns").setAttribute("aria-busy", String(Boolean(running)));
}

/** For a reload; a conversation that the browser has no room for is lost with the page. */
function keep() {
  if (!tab.set(KEPT, JSON.stringify(turns.map((turn) => turn.record)))) tab.drop(KEPT);
}
