// Keeps the end of an answer in sight while it grows, unless the reader has scrolled away from it.

const NEAR = 48; // pixels from the end that still count as the end

export class Follower {
  #box;
  #top = 0; // where it was scrolled to

  /** box: what scrolls. */
  constructor(box) {
    this.#box = box;
  }

  toEnd() {
    this.#box.scrollTop = this.#box.scrollHeight;
    this.#top = this.#box.scrollTop;
  }

  /** Calls `change`, and keeps the end in sight where it was. */
  during(change) {
    const { scrollHeight, scrollTop, clientHeight } = this.#box;
    const near = scrollTop >= this.#top && scrollHeight - scrollTop - clientHeight < NEAR;
    change();
    if (near) this.toEnd();
    else this.#top = Math.min(this.#top, this.#box.scrollTop + NEAR); // coming back to the end is enough
  }
}
