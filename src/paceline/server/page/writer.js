// The text of an answer as it comes. A block that nothing can change any more is made once; only the last one is
// made again while it grows.

import { blocksOf, colour, rendered } from "./markdown.js";
import { TARGET, marked } from "./sources.js";

export class Writer {
  #parent;
  #text = ""; // from the first block on that may still change
  #runs = []; // [end, drafter] of that text
  #growing = []; // its nodes
  #drawn = 0; // characters of it that are drawn
  #outline = { level: 2 }; // of the last heading before

  constructor(parent) {
    this.#parent = parent;
  }

  write(text, source) {
    this.#text += visible(text);
    const last = this.#runs.at(-1);
    if (last?.[1] === source) last[0] = this.#text.length;
    else this.#runs.push([this.#text.length, source]);
  }

  /** Shows what was written. */
  draw(ended = false) {
    if (this.#drawn === this.#text.length && !ended) return;
    // Whether a line that is not complete begins another block cannot be told.
    const blocks = blocksOf(this.#text.slice(0, this.#text.lastIndexOf("\n") + 1));
    while (blocks.at(-1)?.type === "space") blocks.pop();
    const settled = blocks.slice(0, -1);
    if (settled.length) this.#settle(settled);
    const rest = blocksOf(this.#text);
    if (!this.#extend(rest, ended)) this.#replace(rest);
    this.#drawn = this.#text.length;
  }

  #settle(blocks) {
    this.#replace(blocks, this.#outline);
    this.#growing = [];
    const length = lengthOf(blocks);
    this.#text = this.#text.slice(length);
    this.#runs = this.#runs.map(([end, source]) => [end - length, source]).filter(([end]) => end > 0);
  }

  #replace(blocks, outline = { ...this.#outline }) {
    const made = rendered(blocks, outline);
    this.#mark(made, this.#text);
    for (const node of this.#growing) node.remove();
    this.#growing = [...made.childNodes];
    this.#parent.append(made);
  }

  /** Code that grows keeps its element: the button in it, and how far it is scrolled. */
  #extend(blocks, ended) {
    const [block, more] = blocks;
    const [node] = this.#growing;
    if (block?.type !== "code" || more || !node?.classList?.contains("code")) return false;
    const language = (block.lang ?? "").match(/^\S*/)[0];
    if (node.firstChild.firstChild.textContent !== (language || "code")) return false;
    const code = node.lastChild.firstChild;
    colour(code, block.text, language, !ended);
    this.#mark(code, this.#text);
    return true;
  }

  /** Marks who drafted what. A line of a text node stands in the text as it is, nearly always. */
  #mark(root, text) {
    if (this.#runs.every(([, source]) => source === TARGET)) return;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const nodes = [];
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (node.data.trim() && !node.parentElement?.closest(".code > .bar")) nodes.push(node);
    }
    let at = 0;
    let run = 0;
    for (const node of nodes) {
      const pieces = [];
      for (const line of node.data.split(/(?<=\n)/)) {
        const shown = line.trim();
        const found = shown ? text.indexOf(shown, at) : -1;
        const start = found < 0 ? at : found - line.indexOf(shown);
        let done = 0;
        while (done < line.length) {
          while (run < this.#runs.length - 1 && this.#runs[run][0] <= start + done) run++;
          const [end, source] = this.#runs[run];
          const upTo = found < 0 || run === this.#runs.length - 1 ? line.length : Math.min(line.length, end - start);
          const piece = line.slice(done, Math.max(upTo, done + 1));
          pieces.push(source === TARGET ? piece : marked(source, piece));
          done += piece.length;
        }
        if (found >= 0) at = found + shown.length;
      }
      node.replaceWith(...pieces);
    }
  }
}

const lengthOf = (blocks) => blocks.reduce((sum, { raw }) => sum + raw.length, 0);

// Control characters, and those that reorder text around them, would be invisible or make code look like what
// it is not. Marks that ordinary right-to-left text and emoji need (U+200C to U+200F) stay.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export function visible(text) {
  const name = (character) => character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
  return text.replace(/\r(?=\n|$)/g, "").replace(HIDDEN, (character) => `‹U+${name(character)}›`);
}
