// How much of the model's context the conversation takes.

import { byId } from "./dom.js";
import { contentOf, lineage, path } from "./conversation.js";
import { whole } from "./figures.js";
import { contextSize, systemPrompt } from "./settings.js";

let perToken = 4; // characters, until answers tell more

const length = (nodes) => nodes.reduce((sum, node) => sum + contentOf(node).length, 0);

/** Learns from an answer how long a token is. */
export function learn(chat, at) {
  const { used } = chat.nodes[at];
  const characters = length(lineage(chat, at)) + systemPrompt().length;
  if (used > 50 && characters > 100) perToken = Math.min(8, Math.max(1, characters / used));
}

/** Tokens of the conversation up to a node, about: {used, fresh}, where fresh is what no answer has counted yet. */
export function tokensOf(chat, at) {
  const nodes = lineage(chat, at);
  const counted = nodes.findLastIndex((node) => node.used);
  const before = counted < 0 ? 0 : nodes[counted].used;
  const fresh = (length(nodes.slice(counted + 1)) + (counted < 0 ? systemPrompt().length : 0)) / perToken;
  return { used: before + fresh, fresh };
}

/** message: what is being written, with its files. */
export function showMeter(chat, message) {
  const size = contextSize();
  byId("context").hidden = !size;
  if (!size) return;
  const used = tokensOf(chat, path(chat).at(-1) ?? -1).used + message.length / perToken;
  const share = used / size;
  byId("context-bar").style.inlineSize = `${Math.min(100, 100 * share)}%`;
  byId("context").classList.toggle("full", share > 0.9);
  const over = share > 1 ? ": too long, shorten it or start a new chat" : "";
  byId("context-text").textContent = `${whole(used)} of ${whole(size)} tokens${over}`;
}
