// Elements. Text goes in as text nodes: nothing in this page parses a string as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with attributes, properties that are functions (event handlers), and children. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function button(label, click) {
  return element("button", { type: "button", click }, label);
}

/** As many children as items, changed in place: who reads them with a screen reader stays where they are. */
export function fill(parent, items, make, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, i) => update(parent.children[i] ?? parent.appendChild(make()), item, i));
}

/** Says something to those who hear the page: once, when they are done with what they do. */
export function announce(text) {
  byId("status").textContent = text;
}

/** A button that copies what `text` returns. */
export function copyButton(label, text) {
  const made = button(label, async () => {
    made.textContent = (await copied(text())) ? "Copied" : "The browser refused";
    announce(made.textContent);
    setTimeout(() => (made.textContent = label), 2000);
  });
  return made;
}

async function copied(text) {
  // Browsers have a clipboard for pages of this machine and of https only.
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const focused = document.activeElement;
  const box = element("textarea", { class: "hidden", "aria-hidden": "true" });
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  focused?.focus();
  return done;
}
