// A question and an answer: how a node of a conversation looks.

import { announce, button, copyButton, element, iconButton } from "./dom.js";
import { path, textOf, versions } from "./conversation.js";
import { details, summary } from "./figures.js";
import { legend, shares } from "./sources.js";
import { Splitter, partsOf } from "./thoughts.js";
import { waiting } from "./waiting.js";
import { Writer, visible } from "./writer.js";

/** Arrows between the versions of a node; nothing where there is one only. */
function arrows(chat, at, pick) {
  const all = versions(chat, at);
  if (all.length < 2) return [];
  const place = all.indexOf(at);
  const arrow = (step, name, label) => {
    const made = iconButton(name, label, () => pick(all[place + step], step));
    made.dataset.step = step;
    made.disabled = !(place + step in all);
    return made;
  };
  const count = element("span", {}, element("span", { class: "hidden" }, "Version "), `${place + 1}/${all.length}`);
  return [element("span", { class: "versions" }, arrow(-1, "left", "Earlier version"), count, arrow(1, "right", "Later version"))];
}

export class Question {
  #chat;
  #at;
  #on;
  #body = element("div", { class: "bubble" });
  #actions = element("div", { class: "actions" });

  /** on: {resend(at, text), pick(at, step)} */
  constructor(chat, at, on) {
    Object.assign(this, { node: element("article", { class: "question" }) });
    [this.#chat, this.#at, this.#on] = [chat, at, on];
    this.node.append(element("h2", { class: "hidden" }, "You"), this.#body, this.#actions);
    this.#show();
  }

  get #record() {
    return this.#chat.nodes[this.#at];
  }

  #show() {
    const { text, files } = this.#record;
    const shown = files.map((file) => element("details", { class: "file" },
      element("summary", {}, visible(file.name)),
      element("pre", { tabindex: "0", role: "group", "aria-label": "File" }, visible(file.text))));
    if (text) shown.push(element("div", { class: "plain", dir: "auto" }, visible(text)));
    this.#body.replaceChildren(...shown);
    this.#actions.hidden = false;
  }

  refresh() {
    this.#actions.replaceChildren(
      ...arrows(this.#chat, this.#at, this.#on.pick),
      copyButton("Copy message", () => this.#record.text),
      iconButton("edit", "Edit", () => this.edit()));
  }

  /** The text in a field; what is sent is another version of it. */
  edit() {
    const field = element("textarea", { "aria-label": "Your message", rows: "1" });
    const end = () => {
      this.#show();
      this.#actions.lastElementChild.focus();
    };
    const send = () => (field.value.trim() ? this.#on.resend(this.#at, field.value) : field.focus());
    field.value = this.#record.text;
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault();
        end();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    const resend = button("Send", send);
    resend.className = "primary";
    this.#body.replaceChildren(field, element("div", { class: "bar" }, button("Cancel", end), resend));
    this.#actions.hidden = true;
    field.focus();
  }

  /** After another version was sent this one is as it was. */
  restore() {
    this.#show();
  }
}

export class Reply {
  #chat;
  #at;
  #on;
  #thoughts = element("details", { class: "thoughts", hidden: "" });
  #summary = element("summary");
  #answer = element("div", { class: "answer prose" });
  #below = element("div", { class: "below" });
  #writers = {};
  #splitter;
  #waiting = null;
  #thinkingSince = 0;

  /** on: {retry(at), edit(at), goOn(at), pick(at, step)} */
  constructor(chat, at, on) {
    Object.assign(this, { node: element("article", { class: "reply" }), running: false });
    [this.#chat, this.#at, this.#on] = [chat, at, on];
    const inner = element("div", { class: "prose" });
    this.#thoughts.append(this.#summary, inner);
    this.#writers = { thoughts: new Writer(inner), parts: new Writer(this.#answer) };
    this.node.append(element("h2", { class: "hidden" }, "Answer"), this.#thoughts, this.#answer, this.#below);
    for (const where of ["thoughts", "parts"]) {
      for (const [text, source] of this.record[where]) this.#writers[where].write(text, source);
    }
    this.draw(true);
  }

  get record() {
    return this.#chat.nodes[this.#at];
  }

  get text() {
    return textOf(this.record);
  }

  /** An answer starts, or goes on where it stopped. expected: for `waiting`. */
  begin(expected) {
    const { record } = this;
    this.running = true;
    for (const name of ["finish", "error", "timings", "plain", "used"]) delete record[name];
    record.state = "waiting";
    this.#splitter = new Splitter((where, text, source) => this.#add(where, text, source), record.parts.length ? "answer" : "beginning");
    this.#waiting = waiting(expected);
    this.#below.replaceChildren(this.#waiting.node);
  }

  /** chunk: of a streamed answer, as OpenAI sends them. */
  take(chunk) {
    const { record } = this;
    const choice = chunk.choices?.[0];
    const { content, reasoning_content, reasoning } = choice?.delta ?? {};
    const thought = reasoning_content ?? reasoning;
    const parts = chunk.speculative?.parts;
    if (chunk.prompt_progress) this.#waiting.read(chunk.prompt_progress);
    if (thought || content) this.#start();
    if (thought) for (const [text, source] of partsOf(thought, parts)) this.#add("thoughts", text, source);
    if (content) this.#splitter.take(partsOf(content, parts));
    if (choice?.finish_reason) record.finish = choice.finish_reason;
    if (chunk.timings) record.timings = chunk.timings;
    if (chunk.usage) record.used = chunk.usage.total_tokens;
  }

  /** Shows what came since. */
  draw(ended = false) {
    this.#writers.thoughts.draw(ended);
    this.#writers.parts.draw(ended);
    const { thoughts, parts, thinking } = this.record;
    this.#thoughts.hidden = !thoughts.length;
    const busy = this.running && !parts.length;
    this.#summary.classList.toggle("thinking", busy);
    const thought = thinking === undefined ? "Thoughts" : `Thought for ${Math.max(1, Math.ceil(thinking))} s`;
    this.#summary.textContent = busy ? "Thinking…" : thought;
  }

  /** plain: tokens a second of plain decoding, or null where nobody knows. */
  finish(plain) {
    if (plain) this.record.plain = plain;
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

  refresh() {
    if (this.running) return;
    const { error, state, parts, thoughts, timings, plain } = this.record;
    const found = shares([...thoughts, ...parts]);
    const line = summary(this.record, this.text, found);
    const shown = [error && told(error)];
    if (timings) {
      const toggle = ({ target }) => this.node.classList.toggle("marked", target.open);
      const figures = element("details", { class: "figures", toggle }, element("summary", {}, line),
        element("p", {}, details(timings, plain)), found.length > 1 ? legend(found) : "");
      figures.open = this.node.classList.contains("marked");
      shown.push(figures);
    } else if (line) {
      shown.push(element("p", { class: "figures" }, line));
    }
    shown.push(this.#actions(state));
    this.#below.replaceChildren(...shown.filter(Boolean));
  }

  #start() {
    if (this.record.state !== "waiting") return;
    this.record.state = "writing";
    this.#waiting.end();
    this.#below.replaceChildren();
  }

  #add(where, text, source) {
    const { record } = this;
    if (where === "thoughts") this.#thinkingSince ||= performance.now();
    else if (this.#thinkingSince && !record.parts.length) record.thinking = (performance.now() - this.#thinkingSince) / 1000;
    this.#writers[where].write(text, source);
    const last = record[where].at(-1);
    if (last?.[1] === source) last[0] += text;
    else record[where].push([text, source]);
  }

  #end(state) {
    this.running = false;
    this.#splitter.end();
    this.#waiting.end();
    this.record.state = state;
    this.draw(true);
    this.refresh();
  }

  #actions(state) {
    const on = this.#on;
    const at = this.#at;
    const cut = (state !== "done" || this.record.finish === "length") && path(this.#chat).at(-1) === at;
    const shown = arrows(this.#chat, at, on.pick);
    if (this.text) shown.push(copyButton("Copy", () => this.text));
    if (state === "failed") shown.push(button("Try again", () => on.retry(at)), button("Edit message", () => on.edit(at)));
    else shown.push(iconButton("again", "Answer again", () => on.retry(at)));
    if (cut && this.text) shown.push(button("Continue", () => on.goOn(at)));
    return element("div", { class: "actions" }, ...shown);
  }
}

const told = ({ message, advice }) =>
  element("p", { class: "error", role: "alert" }, element("strong", {}, message), ` ${advice}`);
