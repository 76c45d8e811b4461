// A question and its answer: what was said, and how it looks.

import { announce, button, copyButton, element } from "./dom.js";
import { figures } from "./figures.js";
import { TARGET, legend } from "./sources.js";
import { Writer, visible } from "./writer.js";

export class Turn {
  #on;
  #answer = element("div", { class: "answer" });
  #below = element("div", { class: "below" });
  #writer;

  /** on: {retry, edit}, each called with the turn. kept: the `record` of an earlier turn, to be shown again. */
  constructor(question, on, kept) {
    this.#on = on;
    this.record = kept ?? { question, parts: [], state: "waiting" };
    const asked = element("div", { class: "prose", dir: "auto" }, visible(question));
    this.node = element("article", {},
      element("div", { class: "question" }, element("h3", {}, "You"), asked),
      element("h3", {}, "Answer"), this.#answer, this.#below);
    if (kept) this.#restore();
  }

  get text() {
    return this.record.parts.map(([text]) => text).join("");
  }

  /** An answer starts, or starts again. */
  begin() {
    this.record = { question: this.record.question, parts: [], state: "waiting" };
    this.#writer = new Writer(this.#answer);
    this.#answer.replaceChildren();
    this.#below.replaceChildren(element("p", { class: "hint" }, "Waiting for the first token"));
  }

  /** chunk: of a streamed answer, as OpenAI sends them. */
  take(chunk) {
    const choice = chunk.choices?.[0];
    const content = choice?.delta?.content;
    if (content) {
      if (this.record.state === "waiting") this.#below.replaceChildren();
      this.record.state = "writing";
      for (const [text, source] of chunk.speculative?.parts ?? [[content, TARGET]]) this.#add(text, source);
    }
    if (choice?.finish_reason) this.record.finish = choice.finish_reason;
    if (chunk.timings) this.record.timings = chunk.timings;
  }

  /** plain: tokens a second of plain decoding, or null where nobody knows. */
  finish(plain) {
    this.record.plain = plain;
    this.#end("done");
    announce(`Answer: ${this.text || "empty"}`);
  }

  stop() {
    this.#end("stopped");
    announce("Stopped.");
  }

  /** failure: {message, advice}. */
  fail({ message, advice }) {
    this.record.error = { message, advice };
    this.#end("failed");
  }

  /** Another message was sent: this one is not tried again. */
  settle() {
    for (const made of this.#below.querySelectorAll(".again")) made.remove();
  }

  #add(text, source) {
    this.#writer.write(text, source);
    const last = this.record.parts.at(-1);
    if (last?.[1] === source) last[0] += text;
    else this.record.parts.push([text, source]);
  }

  #end(state) {
    this.#writer.end();
    this.record.state = state;
    this.#showEnd();
  }

  #restore() {
    this.#writer = new Writer(this.#answer);
    for (const [text, source] of this.record.parts) this.#writer.write(text, source);
    this.#writer.end();
    this.#showEnd();
  }

  #showEnd() {
    const { error, state, parts } = this.record;
    const drafted = parts.some(([, source]) => source !== TARGET);
    const shown = [error && told(error), figures(this.record, this.text), drafted && legend(parts), this.#buttons(state)];
    this.#below.replaceChildren(...shown.filter(Boolean));
  }

  #buttons(state) {
    const bar = element("div", { class: "bar" });
    if (this.text) bar.append(copyButton("Copy", () => this.text));
    if (state !== "done") {
      bar.append(element("span", { class: "again bar" },
        button("Try again", () => this.#on.retry(this)), button("Edit message", () => this.#on.edit(this))));
    }
    return bar;
  }
}

const told = ({ message, advice }) =>
  element("p", { class: "error", role: "alert" }, element("strong", {}, message), ` ${advice}`);
