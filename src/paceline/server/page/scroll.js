// Keeps the end of an answer in sight while it grows, unless the reader has scrolled away from it.

const NEAR = 48; // pixels from the end that still count as the end

/** turns: the conversation, which scrolls in itself on a wide window; on a narrow one the page does, and `chat`
 *  is the part of it that ends with the composer. */
export class Follower {
  #turns;
  #chat;
  #due = false;

  constructor(turns, chat) {
    this.#turns = turns;
    this.#chat = chat;
  }

  get #inside() {
    return getComputedStyle(this.#turns).overflowY === "auto";
  }

  /** Pixels between what is in sight and the end; negative where the reader is beyond it. */
  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#turns;
    if (this.#inside) return scrollHeight - scrollTop - clientHeight;
    return this.#chat.getBoundingClientRect().bottom - window.innerHeight;
  }

  #place() {
    return this.#inside ? this.#turns.scrollTop : window.scrollY;
  }

  toEnd() {
    if (this.#inside) this.#turns.scrollTop = this.#turns.scrollHeight;
    else window.scrollBy(0, this.#distance());
  }

  /** Calls `change`, and keeps the end in sight where it was. */
  during(change) {
    const near = this.#due || Math.abs(this.#distance()) < NEAR;
    change();
    if (!near || this.#due) return;
    this.#due = true;
    const place = this.#place();
    requestAnimationFrame(() => {
      this.#due = false;
      if (this.#place() >= place) this.toEnd(); // else the reader has scrolled up meanwhile
    });
  }
}
