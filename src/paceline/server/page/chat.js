// The conversation: sends a message, shows the answer as it comes, stops, tries again, goes on.

import { announce, byId } from "./dom.js";
import { add, contentOf, lineage, newChat, newReply, path, textOf, titleOf } from "./conversation.js";
import { attached, clearFiles, openFiles } from "./files.js";
import { chatOf, keep, openLibrary, showChats } from "./library.js";
import { watchPlain } from "./live.js";
import { learn, showMeter, tokensOf } from "./meter.js";
import { closePanel } from "./panels.js";
import { Follower } from "./scroll.js";
import { Failure, events, request } from "./server.js";
import { requestSettings, systemPrompt } from "./settings.js";
import { lasting, tab } from "./store.js";
import { Question, Reply } from "./turn.js";

const SAVE = 2000; // milliseconds between two times that a growing answer is kept
const GO_ON = "Go on exactly where you stopped, and repeat nothing.";
const runs = new Map(); // AbortControllers of the answers that are coming, by the chat's id
const views = new WeakMap(); // by node
let chat = newChat();
let follower;

const on = {
  retry: (at) => !running() && reply(chat.nodes[at].parent, at),
  edit: (at) => viewOf(chat, chat.nodes[at].parent).edit(),
  goOn: (at) => !running() && run(chat, at, true),
  resend(at, text) {
    if (running()) return;
    viewOf(chat, at).restore();
    reply(add(chat, chat.nodes[at].parent, { role: "user", text, files: chat.nodes[at].files }));
    byId("message").focus();
  },
  pick(at, step) {
    chat.picks[chat.nodes[at].parent] = at;
    keep(chat, false);
    show();
    const { node } = viewOf(chat, at);
    (node.querySelector(`[data-step="${step}"]:enabled`) ?? node.querySelector("[data-step]:enabled")).focus();
  },
};

const running = () => runs.get(chat.id);

export async function openChat() {
  follower = new Follower(byId("turns"), byId("to-end"));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("message").addEventListener("keydown", pressed);
  byId("message").addEventListener("input", meter);
  byId("stop").addEventListener("click", stop);
  byId("new").addEventListener("click", startAnew);
  byId("title").addEventListener("change", () => {
    chat.title = byId("title").value.trim();
    if (chat.nodes.length) keep(chat, false);
  });
  byId("suggestions").addEventListener("click", ({ target }) => {
    if (target.tagName !== "BUTTON") return;
    byId("message").value = target.dataset.text;
    send();
  });
  window.addEventListener("pagehide", () => running() && keep(chat));
  openFiles(meter);
  byId("message").focus({ preventScroll: true });
  const library = openLibrary({ open, gone: (other) => gone(other), busy: ({ id }) => runs.has(id), current: () => chat });
  await library;
  const last = chatOf(tab.get("chat"));
  if (last && !chat.nodes.length) open(last, false);
  else show();
}

/** Shows a chat; focus: unless the page has just been opened. */
function open(other, focus = true) {
  chat = other;
  tab.set("chat", chat.id);
  show();
  follower.toEnd();
  if (!focus) return;
  closePanel("library");
  if (!matchMedia("(hover: none)").matches) byId("message").focus(); // a phone's keyboard would cover what was opened
}

function gone(other) {
  runs.get(other.id)?.abort();
  if (other === chat) open(newChat(), false);
}

export function startAnew() {
  open(newChat());
  announce("New conversation.");
}

export function stop() {
  running()?.abort();
}

function pressed(event) {
  // Enter also ends what is being composed, in scripts that are typed in several keys.
  if (event.isComposing) return;
  if (event.key === "ArrowUp" && !event.target.value) {
    const last = path(chat).findLast((at) => chat.nodes[at].role === "user");
    if (last === undefined || running()) return;
    event.preventDefault();
    viewOf(chat, last).edit();
  }
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  send();
}

function send() {
  const message = byId("message");
  const files = attached();
  if (running() || !(message.value.trim() || files.length)) return;
  const node = { role: "user", text: message.value, files };
  chat.title ||= titleOf(node);
  const at = add(chat, path(chat).at(-1) ?? -1, node);
  message.value = "";
  clearFiles();
  reply(at);
}

/** Asks for an answer to a question; beside the one that is there, unless that is empty. */
function reply(parent, there = -1) {
  const empty = there >= 0 && !textOf(chat.nodes[there]);
  if (empty) Object.assign(chat.nodes[there], newReply(), { parent });
  const at = empty ? there : add(chat, parent, newReply());
  if (empty) views.delete(chat.nodes[at]);
  run(chat, at);
}

function viewOf(of, at) {
  const node = of.nodes[at];
  if (!views.has(node)) views.set(node, new (node.role === "user" ? Question : Reply)(of, at, on));
  return views.get(node);
}

/** Asks the server for an answer. goesOn: for the rest of one. */
async function run(of, at, goesOn = false) {
  const control = new AbortController();
  const { signal } = control;
  runs.set(of.id, control);
  tab.set("chat", of.id);
  const view = viewOf(of, at);
  view.begin({ tokens: tokensOf(of, of.nodes[at].parent).fresh, perSecond: Number(lasting.get("prompt-speed")) });
  show();
  follower.toEnd();
  if (document.activeElement === document.body) byId("turns").focus({ preventScroll: true }); // the button has gone
  keep(of);
  const plain = watchPlain();
  const draw = drawing(view, of);
  try {
    for await (const chunk of await asked(of, at, goesOn, signal)) {
      view.take(chunk);
      draw();
    }
    change(view, () => view.finish(plain()));
    learn(of, at);
    const { prompt_n: read, prompt_per_second: speed } = view.record.timings ?? {};
    if (read > 32) lasting.set("prompt-speed", speed);
  } catch (error) {
    if (!signal.aborted && !(error instanceof Failure)) throw error;
    change(view, () => (signal.aborted ? view.stop() : view.fail(error)));
  } finally {
    plain();
    runs.delete(of.id);
    if (of === chat) showState();
    if (chatOf(of.id)) keep(of);
  }
}

/** Draws a view at the next frame; later where drawing takes long, and keeps its chat now and then. */
function drawing(view, of) {
  let due = false;
  let next = 0;
  let saved = performance.now();
  const frame = (now) => {
    if (now < next && view.running) return requestAnimationFrame(frame);
    due = false;
    if (!view.running) return undefined;
    const began = performance.now();
    change(view, () => view.draw());
    next = now + 3 * (performance.now() - began);
    if (now - saved > SAVE && chatOf(of.id)) {
      saved = now;
      keep(of);
      if (of === chat) meter();
    }
    return undefined;
  };
  return () => {
    if (!due) requestAnimationFrame(frame);
    due = true;
  };
}

function change(view, act) {
  if (view.node.isConnected) follower.during(act);
  else act();
}

const TELLING = { stream_options: { include_usage: true }, return_progress: true };

async function asked(of, at, goesOn, signal) {
  const settings = await requestSettings(signal);
  const sent = messages(of, of.nodes[at].parent);
  const post = async (list, more) => {
    const body = { ...settings, messages: list, stream: true, ...TELLING, ...more };
    const headers = { "Content-Type": "application/json" };
    return events(await request("v1/chat/completions", { method: "POST", headers, signal, body: JSON.stringify(body) }));
  };
  if (!goesOn) return post(sent);
  sent.push({ role: "assistant", content: textOf(of.nodes[at]) });
  try {
    return await post(sent, { continue_final_message: true, add_generation_prompt: false });
  } catch (error) {
    if (!/continue_final_message/.test(error.message)) throw error;
    // The server or the model's template cannot: the model is asked in words.
    return post([...sent, { role: "user", content: GO_ON }]);
  }
}

/** A question without any answer is left out: most chat templates want the two in turns. */
function messages(of, question) {
  const system = systemPrompt();
  const sent = system ? [{ role: "system", content: system }] : [];
  const nodes = lineage(of, question);
  nodes.forEach((node, i) => {
    const answer = nodes[i + 1];
    if (node.role === "user" && answer && textOf(answer)) {
      sent.push({ role: "user", content: contentOf(node) }, { role: "assistant", content: textOf(answer) });
    }
  });
  return [...sent, { role: "user", content: contentOf(nodes.at(-1)) }];
}

function show() {
  const shown = path(chat).map((at) => viewOf(chat, at));
  const box = byId("conversation");
  const nodes = shown.map(({ node }) => node);
  for (const node of [...box.children]) if (!nodes.includes(node)) node.remove();
  nodes.forEach((node, i) => node === box.children[i] || box.insertBefore(node, box.children[i] ?? null)); // what stays keeps its state
  for (const view of shown) view.refresh();
  byId("empty").hidden = shown.length > 0;
  byId("title").value = chat.title;
  document.title = chat.title ? `${chat.title} – Paceline` : "Paceline";
  showState();
}

function showState() {
  const stopButton = byId("stop");
  if (!running() && document.activeElement === stopButton) byId("message").focus();
  stopButton.hidden = !running();
  byId("send").hidden = Boolean(running());
  byId("turns").setAttribute("aria-busy", String(Boolean(running())));
  meter();
  showChats();
}

export function meter() {
  showMeter(chat, [byId("message").value, ...attached().map(({ text }) => text)].join(""));
}
