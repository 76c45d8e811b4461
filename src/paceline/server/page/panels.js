// What stands beside the conversation: in its place on a narrow window, and folded away where it is not wanted.

import { byId } from "./dom.js";
import { lasting } from "./store.js";

const panels = new Map();

/** wide: rem from which on the panel has room beside the conversation, and is open unless it was closed. */
export function openPanel(id, wide) {
  const [node, button] = [byId(id), byId(`${id}-button`)];
  const beside = matchMedia(`(min-width: ${wide}rem)`);
  const set = (open) => {
    node.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    byId("chat").inert = [...panels.values()].some((panel) => panel.covers());
  };
  const covers = () => !node.hidden && !beside.matches;
  const close = () => {
    set(false);
    if (beside.matches) lasting.set(id, false);
    button.focus();
  };
  panels.set(id, { set, covers });
  button.addEventListener("click", () => {
    if (!node.hidden) return close();
    set(true);
    if (beside.matches) lasting.set(id, true);
    return node.querySelector(".close").focus();
  });
  node.querySelector(".close").addEventListener("click", close);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !covers()) return;
    event.preventDefault();
    close();
  });
  document.addEventListener("pointerdown", ({ target }) => {
    if (covers() && !node.contains(target) && !target.closest("dialog, #toast")) close();
  });
  const fit = () => set(beside.matches && lasting.get(id) !== "false");
  beside.addEventListener("change", fit);
  fit();
}

export function showPanel(id) {
  panels.get(id).set(true);
}

/** Where the panel covers the conversation. */
export function closePanel(id) {
  if (panels.get(id).covers()) panels.get(id).set(false);
}
