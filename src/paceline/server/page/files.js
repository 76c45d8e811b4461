// Text files beside a message: chosen, dropped or pasted, and shown as chips until it is sent.

import { byId, element, iconButton, toast } from "./dom.js";
import { visible } from "./writer.js";

const LARGEST = 1 << 20; // bytes
let files = []; // {name, text}
let changed = () => {};

export const attached = () => files;

export function clearFiles() {
  files = [];
  show();
}

/** onChange: called when there are other files than before. */
export function openFiles(onChange) {
  changed = onChange;
  byId("attach").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", async () => {
    await attach(byId("file").files);
    byId("file").value = "";
    byId("message").focus();
  });
  const chat = byId("chat");
  const drags = (event) => event.dataTransfer?.types.includes("Files");
  chat.addEventListener("dragover", (event) => {
    if (!drags(event)) return;
    event.preventDefault();
    chat.classList.add("dropping");
  });
  chat.addEventListener("dragleave", (event) => {
    if (!chat.contains(event.relatedTarget)) chat.classList.remove("dropping");
  });
  chat.addEventListener("drop", (event) => {
    chat.classList.remove("dropping");
    if (!drags(event)) return;
    event.preventDefault();
    attach(event.dataTransfer.files);
  });
  byId("message").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach(event.clipboardData.files);
  });
}

async function attach(given) {
  for (const file of [...given]) {
    if (file.size > LARGEST) toast(`${file.name} is too large: at most 1 MB of text.`);
    else if (!(await read(file))) toast(`${file.name} is no text in UTF-8: only text can be sent.`);
  }
  show();
}

async function read(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) return false;
    files.push({ name: file.name, text });
    return true;
  } catch {
    return false;
  }
}

function show() {
  const chips = files.map((file) => {
    const drop = iconButton("close", `Remove ${file.name}`, () => {
      files = files.filter((other) => other !== file);
      show();
      byId("message").focus();
    });
    return element("li", { class: "chip" }, element("span", {}, visible(file.name)), drop);
  });
  byId("files").replaceChildren(...chips);
  byId("files").hidden = !files.length;
  changed();
}
