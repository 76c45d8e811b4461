// The text of an answer as it comes: plain text, with blocks of code between lines of backticks.
// A line is held back only as long as it may still turn out to be such a line, so nothing is written twice.

import { copyButton, element } from "./dom.js";
import { TARGET, marked } from "./sources.js";

const LONGEST_NAME = 60; // of a language, after the backticks
const OPENING = new RegExp(`^ {0,3}(\`{3,})([^\`\\n]{0,${LONGEST_NAME}})\\n?$`);
const MAY_OPEN = new RegExp(`^ {0,3}(\`{0,2}|\`{3,}[^\`\\n]{0,${LONGEST_NAME}})$`);
const CLOSING = /^ {0,3}(`{3,})[ \t\r]*\n?$/;
const MAY_CLOSE = /^ {0,3}`*[ \t]*$/;

export class Writer {
  #parent;
  #held = []; // [text, source] of a line that may be one of backticks; null: the line is none
  #gap = []; // line breaks that are written when something follows them in the same block
  #block = null; // the element that text goes to
  #last = null; // its last run of text: {source, node}
  #code = null; // of the open block of code: {ticks, text}

  constructor(parent) {
    this.#parent = parent;
  }

  write(text, source) {
    for (const piece of text.split(/(?<=\n)/)) this.#take(piece, source);
  }

  /** What was held back is written: nothing follows. */
  end() {
    const held = this.#held ?? [];
    this.#held = null;
    if (!this.#fence(joined(held))) this.#flush(held);
  }

  /** piece: at most one line. */
  #take(piece, source) {
    const ends = piece.endsWith("\n");
    if (this.#held) {
      this.#held.push([piece, source]);
      const line = joined(this.#held);
      if (!ends && (this.#code ? MAY_CLOSE : MAY_OPEN).test(line)) return;
      const held = this.#held;
      if (!ends || !this.#fence(line)) this.#flush(held);
    } else {
      this.#text(piece, source);
    }
    this.#held = ends ? [] : null;
  }

  /** Opens or closes a block of code where the line says so. */
  #fence(line) {
    const found = (this.#code ? CLOSING : OPENING).exec(line);
    if (!found || (this.#code && found[1].length < this.#code.ticks)) return false;
    this.#leave();
    if (this.#code) this.#code = null;
    else this.#openCode(found[1].length, found[2].trim());
    return true;
  }

  #flush(held) {
    for (const [text, source] of held) this.#text(text, source);
  }

  #text(piece, source) {
    const body = piece.replace(/\r?\n$/, "");
    if (body) {
      this.#block ??= this.#parent.appendChild(element("div", { class: "prose", dir: "auto" }));
      for (const [text, of] of this.#gap) this.#run(text, of);
      this.#gap = [];
      this.#run(body, source);
    }
    if (body !== piece && this.#block) this.#gap.push(["\n", source]);
  }

  #run(text, source) {
    if (this.#code) this.#code.text += text;
    const shown = visible(text);
    if (this.#last?.source === source) {
      this.#last.node.appendData(shown);
      return;
    }
    const node = document.createTextNode(shown);
    this.#block.append(source && source !== TARGET ? marked(source, node) : node);
    this.#last = { source, node };
  }

  #openCode(ticks, language) {
    const code = { ticks, text: "" };
    const pre = element("pre", { tabindex: "0", role: "group", "aria-label": language ? `Code, ${language}` : "Code" });
    this.#block = pre.appendChild(element("code"));
    this.#code = code;
    const head = element("div", { class: "bar" }, element("span", {}, visible(language || "code")));
    head.append(copyButton("Copy code", () => code.text));
    this.#parent.append(element("div", { class: "code" }, head, pre));
  }

  #leave() {
    this.#block = this.#last = null;
    this.#gap = [];
  }
}

const joined = (held) => held.map(([text]) => text).join("");

// Control characters, and those that reorder text around them, would be invisible or make code look like what
// it is not. Marks that ordinary right-to-left text and emoji need (U+200C to U+200F) stay.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export function visible(text) {
  const name = (character) => character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
  return text.replace(HIDDEN, (character) => `‹U+${name(character)}›`);
}
