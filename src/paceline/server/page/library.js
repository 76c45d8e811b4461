// The conversations that the browser keeps: their list, search, export and import.

import { announce, byId, element, iconButton, toast } from "./dom.js";
import { cleaned, newId, textOf } from "./conversation.js";
import { kept } from "./store.js";
import { visible } from "./writer.js";

const DAY = 24 * 3600 * 1000;
const FORMAT = "paceline-chats";
const chats = new Map();
let full = false; // the browser keeps no more, and that was said
let on; // {open(chat), gone(chat), busy(chat), current()}

/** on: {open, gone, busy, current}: opens a chat; one was deleted; whether an answer comes in one; which one is shown. */
export async function openLibrary(handlers) {
  on = handlers;
  byId("search").addEventListener("input", showChats);
  byId("export").addEventListener("click", exportChats);
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", importChats);
  document.addEventListener("visibilitychange", () => document.hidden || readAll());
  await readAll();
}

/** What another tab has changed is here, too. */
async function readAll() {
  for (const chat of (await kept.all()).map(cleaned).filter(Boolean)) {
    const mine = chats.get(chat.id);
    if (mine && (on.busy(mine) || mine.updated >= chat.updated)) continue;
    chats.set(chat.id, chat);
    if (mine && mine === on.current()) on.open(chat);
  }
  showChats();
}

export const chatOf = (id) => chats.get(id);

/** Keeps a chat. changed: it is the newest from now on. */
export async function keep(chat, changed = true) {
  if (changed) chat.updated = Date.now();
  chats.set(chat.id, chat);
  showChats();
  if ((await kept.put(chat)) || full) return;
  full = true;
  toast("This browser does not keep chats, or has no room left: export them.");
}

function found() {
  const words = byId("search").value.trim().toLowerCase();
  const all = [...chats.values()].sort((a, b) => b.updated - a.updated);
  if (!words) return all;
  const has = (text) => text.toLowerCase().includes(words);
  return all.filter((chat) => has(chat.title) || chat.nodes.some((node) => has(textOf(node))));
}

function age({ updated }) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (updated >= today) return "Today";
  return updated >= today - 6 * DAY ? "This week" : "Earlier";
}

export function showChats() {
  const shown = found();
  const groups = Map.groupBy ? Map.groupBy(shown, age) : new Map([["Chats", shown]]);
  const current = on.current();
  const made = [...groups].map(([name, list]) => element("section", {},
    element("h2", {}, name), element("ul", {}, ...list.map((chat) => row(chat, chat === current)))));
  const focused = document.activeElement;
  const id = focused.closest("#chats li")?.dataset.id;
  byId("chats").replaceChildren(...made);
  if (id) byId("chats").querySelector(`[data-id="${CSS.escape(id)}"] ${focused.matches(".open") ? ".open" : ":last-child"}`)?.focus();
  byId("no-chats").textContent = chats.size ? "Nothing found." : "Chats are kept in this browser only.";
  byId("no-chats").hidden = shown.length > 0;
  byId("export").disabled = !shown.length;
}

function row(chat, shown) {
  const title = visible(chat.title || "Untitled");
  const open = element("button", { type: "button", class: "quiet open", title, click: () => on.open(chat) }, title);
  if (shown) open.setAttribute("aria-current", "true");
  if (on.busy(chat)) open.append(element("span", { class: "busy" }, element("span", { class: "hidden" }, " is being answered")));
  return element("li", { "data-id": chat.id }, open, iconButton("delete", `Delete ${title}`, () => drop(chat)));
}

function drop(chat) {
  chats.delete(chat.id);
  kept.drop(chat.id);
  on.gone(chat);
  showChats();
  byId("search").focus();
  toast("The chat is deleted.", "Undo", () => {
    keep(chat, false);
    on.open(chat);
  });
}

function exportChats() {
  const file = new Blob([JSON.stringify({ format: FORMAT, version: 1, chats: found() }, null, 1)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(file), download: `chats-${new Date().toISOString().slice(0, 10)}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function importChats() {
  const [file] = byId("import-file").files;
  byId("import-file").value = "";
  if (!file) return;
  const given = await file.text().then(JSON.parse).catch(() => null);
  const list = given?.format === FORMAT && Array.isArray(given.chats) ? given.chats : [];
  const taken = list.map(cleaned).filter(Boolean);
  for (const chat of taken) {
    const same = chats.get(chat.id);
    if (same && JSON.stringify(cleaned(same)) === JSON.stringify(chat)) continue;
    if (same) chat.id = newId();
    await keep(chat, false);
  }
  const text = taken.length ? `${taken.length} of ${list.length} chats are here now.` : "This file has no chats of this page.";
  toast(text);
  announce(text);
}
