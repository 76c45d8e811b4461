// Tells a model's thoughts from its answer, where the server does not: "<think>...</think>" at the beginning.

import { TARGET } from "./sources.js";

const OPEN = "<think>";
const CLOSE = "</think>";

const joined = (parts) => parts.map(([text]) => text).join("");

/** The parts of a text from one character to another. */
function cut(parts, from, to = Infinity) {
  let at = 0;
  const found = [];
  for (const [text, source] of parts) {
    const piece = text.slice(Math.max(0, from - at), Math.max(0, to - at));
    if (piece) found.push([piece, source]);
    at += text.length;
  }
  return found;
}

/** The parts of one delta's text, of a chunk's parts, which may have more: what a parser took out of the answer. */
export function partsOf(text, parts) {
  const at = parts ? joined(parts).lastIndexOf(text) : -1;
  return at < 0 ? [[text, TARGET]] : cut(parts, at, at + text.length);
}

export class Splitter {
  #state = "beginning"; // then "thoughts" or "answer"
  #held = []; // parts of which it is not known yet where they belong
  #write;

  /** write(where, text, source): where: "thoughts" or "parts". */
  constructor(write, state = "beginning") {
    this.#write = write;
    this.#state = state;
  }

  take(parts) {
    this.#held.push(...parts);
    const text = joined(this.#held);
    if (this.#state === "beginning") {
      const start = text.trimStart();
      if (start.startsWith(OPEN)) this.#go("thoughts", text.indexOf(OPEN) + OPEN.length);
      else if (!OPEN.startsWith(start)) this.#state = "answer";
      else return;
      this.take([]);
    } else if (this.#state === "thoughts") {
      const end = text.indexOf(CLOSE);
      if (end >= 0) {
        this.#flush(end);
        this.#go("after", CLOSE.length);
        this.take([]);
        return;
      }
      let hold = CLOSE.length - 1;
      while (!text.endsWith(CLOSE.slice(0, hold))) hold--;
      this.#flush(text.length - hold);
    } else if (this.#state === "after") {
      this.#held = cut(this.#held, text.length - text.trimStart().length);
      if (this.#held.length) this.#state = "answer";
      this.#flush();
    } else {
      this.#flush();
    }
  }

  /** Nothing follows: what was held back is written. */
  end() {
    if (this.#state !== "after") this.#flush();
  }

  #go(state, skip) {
    this.#held = cut(this.#held, skip);
    this.#state = state;
  }

  #flush(to) {
    const where = this.#state === "thoughts" ? "thoughts" : "parts";
    for (const [text, source] of cut(this.#held, 0, to)) this.#write(where, text, source);
    this.#held = to === undefined ? [] : cut(this.#held, to);
  }
}
