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
    set(name, value) {
      try {
        window[kind].setItem(`paceline.${name}`, value);
      } catch {
        // It is not kept, then.
      }
    },
  };
}

export const lasting = storeOf("localStorage");
export const tab = storeOf("sessionStorage");

let opened = null; // a promise of the database, or of null where the browser has none

function database() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open("paceline", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

/** What `act` asked of the store of chats; undefined where the browser refuses. */
async function inChats(mode, act) {
  const found = await database();
  return new Promise((resolve) => {
    try {
      const transaction = found.transaction("chats", mode);
      const request = act(transaction.objectStore("chats"));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => resolve(undefined);
    } catch {
      resolve(undefined);
    }
  });
}

/** The conversations. Each is a promise. */
export const kept = {
  all: () => inChats("readonly", (chats) => chats.getAll()).then((found) => found ?? []),
  /** Whether there was room for it. */
  put: (chat) => inChats("readwrite", (chats) => chats.put(chat)).then((key) => key !== undefined),
  drop: (id) => inChats("readwrite", (chats) => chats.delete(id)),
};
