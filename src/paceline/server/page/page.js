// Puts the page together.

import { meter, openChat, startAnew, stop } from "./chat.js";
import { byId } from "./dom.js";
import { follow } from "./live.js";
import { openPanel, showPanel } from "./panels.js";
import { Failure, onKeyNeeded } from "./server.js";
import { loadModels, openSettings } from "./settings.js";
import { lasting } from "./store.js";

function openTheme() {
  const choice = byId("theme");
  const apply = () => (document.documentElement.dataset.theme = choice.value);
  choice.value = lasting.get("theme") ?? "";
  choice.addEventListener("change", () => {
    lasting.set("theme", choice.value);
    apply();
  });
  apply();
}

/** A promise of the key that the user gives. refused: whether the one before was wrong. */
function askForKey(refused) {
  const form = byId("key-form");
  byId("key-hint").textContent = refused
    ? "The server did not accept that key. Its owner has the right one."
    : "It is kept in this tab only, until the tab is closed.";
  form.hidden = false;
  byId("key").value = "";
  byId("key").focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.hidden = true;
      byId("message").focus();
      resolve(byId("key").value.trim());
    }, { once: true });
  });
}

/** The models, for the settings; where that fails, the next message says why. */
function tryModels() {
  loadModels().then(meter, (error) => {
    if (!(error instanceof Failure)) throw error;
  });
}

function search() {
  showPanel("library");
  byId("search").focus();
}

const SHORTCUTS = { k: search, "shift o": startAnew, "/": () => byId("settings-dialog").showModal() };

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") stop();
  const key = event.key.toLowerCase(); // "/" takes Shift on some keyboards
  const act = (event.ctrlKey || event.metaKey) && SHORTCUTS[event.shiftKey && key !== "/" ? `shift ${key}` : key];
  if (!act) return;
  event.preventDefault();
  act();
});

openTheme();
openSettings();
openPanel("library", 64);
openPanel("live", 80);
openChat();
onKeyNeeded(askForKey);
follow(tryModels);
tryModels();
