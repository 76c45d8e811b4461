// What the browser keeps. A browser that keeps nothing (a private window may) costs the memory, not the page.

/** kind: "localStorage", for good, or "sessionStorage", as long as the tab is open. */
function storeOf(kind) {
  return {
    get(name) {
      try {
        return window[kind].getItem(`paceline.${name}`);
      } catch {
        return null;
      }
    },
    /** Whether it was kept. */
    set(name, value) {
      try {
        window[kind].setItem(`paceline.${name}`, value);
        return true;
      } catch {
        return false;
      }
    },
    drop(name) {
      try {
        window[kind].removeItem(`paceline.${name}`);
      } catch {
        // There is nothing to drop where nothing is kept.
      }
    },
  };
}

export const lasting = storeOf("localStorage");
export const tab = storeOf("sessionStorage");
