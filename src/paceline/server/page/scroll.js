// Keeps the end of an answer in sight while it grows, unless the reader has scrolled away from it.

const NEAR = 48; // pixels from the end that still count as the end
const FAR = 200; // from which on a button leads there

export class Follower {
  #box;
  #button;
  #top = 0; // where it was scrolled to

  /** box: what scrolls. button: leads to the end, and is shown where that is out of sight. */
  constructor(box, button) {
    [this.#box, this.#button] = [box, button];
    box.addEventListener("scroll", () => this.#offer());
    button.addEventListener("click", () => {
      this.toEnd();
      box.focus({ preventScroll: true });
    });
  }

  get #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#box;
    return scrollHeight - scrollTop - clientHeight;
  }

  #offer() {
    this.#button.hidden = this.#distance < FAR;
  }

  toEnd() {
    this.#box.scrollTop = this.#box.scrollHeight;
    this.#top = this.#box.scrollTop;
    this.#offer();
  }

  /** Calls `change`, and keeps the end in sight where it was. */
  during(change) {
    const distance = this.#distance; // 0 where it has become shorter, too
    const near = distance < 2 || (distance < NEAR && this.#box.scrollTop >= this.#top);
    change();
    if (near) return this.toEnd();
    this.#top = Math.min(this.#top, this.#box.scrollTop + NEAR); // coming back to the end is enough
    return this.#offer();
  }
}
