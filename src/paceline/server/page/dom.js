// Elements. Text goes in as text nodes: only markdown.js makes elements of text, and cleans them.

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

/** One of the icons in index.html. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export function button(label, click) {
  return element("button", { type: "button", click }, label);
}

export function iconButton(name, label, click) {
  return element("button", { type: "button", class: "quiet", "aria-label": label, title: label, click }, icon(name));
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

let hiding;

/** Shows a sentence for some seconds, with a button where there is something to do. */
export function toast(text, label, act) {
  const box = byId("toast");
  const done = () => (box.hidden = true);
  const offer = label && button(label, () => {
    done();
    act();
  });
  box.replaceChildren(...[text, offer].filter(Boolean));
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(done, 8000);
}

/** A button that copies what `text` returns. */
export function copyButton(label, text) {
  const made = iconButton("copy", label, async () => {
    const done = await copied(text());
    made.replaceChildren(icon(done ? "check" : "close"));
    announce(done ? "Copied" : "The browser refused");
    setTimeout(() => made.replaceChildren(icon("copy")), 2000);
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
