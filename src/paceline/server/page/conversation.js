// A conversation is a tree of messages: one that is edited or answered again keeps its other versions.
//
// {id, title, updated, nodes, picks}: a node has the index of its `parent` (-1: the first), picks has the index of
// the child that is shown, by parent. A user's node: {role, parent, text, files: [{name, text}]}. An assistant's:
// {role, parent, thoughts, parts, state, ...}, the first two as [[text, drafter], ...].

const STATES = ["done", "stopped", "failed"];
const TIMINGS = ["prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_per_second", "draft_n", "draft_n_accepted"];

export const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2); // no randomUUID without https

export const newChat = () => ({ id: newId(), title: "", updated: Date.now(), nodes: [], picks: {} });

export const newReply = () => ({ role: "assistant", thoughts: [], parts: [], state: "waiting" });

export const textOf = (node) => node.text ?? node.parts.map(([text]) => text).join("");

/** What the model gets of a user's node: the files first, each in a fence that nothing in it closes. */
export function contentOf(node) {
  if (node.role !== "user") return textOf(node);
  const files = node.files.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((ticks) => ticks.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...files, node.text].filter(Boolean).join("\n\n");
}

/** Adds a node, shows it, and returns its index. */
export function add(chat, parent, node) {
  chat.picks[parent] = chat.nodes.push({ ...node, parent }) - 1;
  return chat.picks[parent];
}

/** The indices of a node and its other versions. */
export function versions(chat, at) {
  return [...chat.nodes.keys()].filter((other) => chat.nodes[other].parent === chat.nodes[at].parent);
}

/** The indices of the nodes that are shown. */
export function path(chat) {
  const lasts = new Map(chat.nodes.map((node, at) => [node.parent, at]));
  const found = [];
  for (let at = -1; lasts.has(at); found.push(at)) at = chat.picks[at] ?? lasts.get(at);
  return found;
}

/** The nodes from the first to this one. */
export function lineage(chat, at) {
  const found = [];
  for (; at >= 0; at = chat.nodes[at].parent) found.unshift(chat.nodes[at]);
  return found;
}

export function titleOf(node) {
  const line = node.text.trim().split("\n")[0] || node.files[0]?.name || "";
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

/** A conversation from a file or an earlier visit, with nothing in it but what belongs there; null if it is none. */
export function cleaned(given) {
  if (!Array.isArray(given?.nodes) || !given.nodes.length) return null;
  const nodes = given.nodes.map(cleanNode);
  if (nodes.includes(null)) return null;
  const picks = Object.entries(given.picks ?? {})
    .filter(([parent, at]) => Number.isInteger(at) && nodes[at]?.parent === Number(parent));
  const updated = Number.isFinite(given.updated) ? given.updated : Date.now();
  return { id: text(given.id) || newId(), title: text(given.title).slice(0, 200), updated, nodes, picks: Object.fromEntries(picks) };
}

function cleanNode(given, at, nodes) {
  const parent = given?.parent;
  if (!Number.isInteger(parent) || parent < -1 || parent >= at) return null;
  if ((parent < 0 ? "assistant" : nodes[parent]?.role) === given.role) return null; // they speak in turns
  if (given.role === "user") {
    const files = list(given.files).map((file) => ({ name: text(file?.name), text: text(file?.text) }));
    return { role: "user", parent, text: text(given.text), files };
  }
  if (given.role !== "assistant") return null;
  const state = STATES.includes(given.state) ? given.state : "stopped";
  const made = { role: "assistant", parent, thoughts: parts(given.thoughts), parts: parts(given.parts), state };
  if (given.finish) made.finish = text(given.finish);
  if (given.error) made.error = { message: text(given.error.message), advice: text(given.error.advice) };
  if (Number.isFinite(given.plain)) made.plain = given.plain;
  if (Number.isFinite(given.thinking)) made.thinking = given.thinking;
  if (Number.isFinite(given.used)) made.used = given.used;
  if (given.timings) made.timings = Object.fromEntries(TIMINGS.map((name) => [name, Number(given.timings[name]) || 0]));
  return made;
}

const text = (given) => (typeof given === "string" ? given : "");
const list = (given) => (Array.isArray(given) ? given : []);
const parts = (given) => list(given).map((part) => [text(part?.[0]), text(part?.[1])]);
