// Requests to the server: its key, its streams, and its errors as sentences that say what to do.

import { tab } from "./store.js";

const LOST = "Check that “paceline serve” is running and that this machine can reach it, then try again.";

/** What went wrong, for the user: one sentence, and one about what to do. */
export class Failure extends Error {
  constructor(message, advice = "") {
    super(message);
    this.advice = advice;
    this.status = 0;
  }
}

let key = tab.get("key") ?? "";
let asking = null; // a promise of the user's key, where the form is open
let askUser = () => Promise.reject(new Failure("This server asks for a key."));

/** ask(refused): a promise of the key that the user gives; refused: whether the one before was wrong. */
export function onKeyNeeded(ask) {
  askUser = ask;
}

/** A response that is fine. Waits for the user where the server asks for a key.
 *  Throws a Failure, or the AbortError of `options.signal`. */
export async function request(path, options = {}) {
  for (;;) {
    const used = key;
    const response = await fetched(path, options, used);
    if (response.ok) return response;
    if (response.status !== 401) throw await refusal(response);
    if (key === used) await newKey(used, options.signal);
  }
}

/** The JSON of an answer. Throws as `request` does. */
export async function json(path, options) {
  const response = await request(path, options);
  return response.json().catch((error) => {
    throw error.name === "AbortError" ? error : new Failure(`What answers at ${path} is no server of Paceline.`, LOST);
  });
}

async function fetched(path, options, used) {
  const headers = { ...options.headers, ...(used && { Authorization: `Bearer ${used}` }) };
  try {
    return await fetch(path, { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer.", LOST);
  }
}

async function newKey(used, signal) {
  asking ??= askUser(used !== "").then((given) => {
    key = given;
    tab.set("key", given);
    asking = null;
  });
  const stopped = new Promise((_, reject) => {
    signal?.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")), { once: true });
  });
  await Promise.race([asking, stopped]);
}

async function refusal(response) {
  const said = await response.json().then((body) => body?.error?.message, () => undefined);
  const failure = new Failure(...explained(response, said));
  failure.status = response.status;
  return failure;
}

function explained(response, said) {
  const { status } = response;
  if (status === 429) {
    const seconds = Number(response.headers.get("Retry-After"));
    const when = seconds > 0 ? `in ${seconds} s` : "in a moment";
    return [said ?? "The server has as many requests as it takes.", `Your message is kept: try again ${when}.`];
  }
  const message = said ?? `The server answered with status ${status}, and gave no reason.`;
  if (status >= 500) return [message, "Try again; if it stays, the server's own output says more."];
  return [message, "Change the message or the settings, then try again."];
}

/** The JSON of each event of the stream, up to "[DONE]". Throws a Failure for an event that is an error, and
 *  where the stream ends before "[DONE]". */
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await read(reader);
    if (done) throw broken();
    const blocks = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = dataOf(block);
      if (data === "[DONE]") return;
      if (data) yield parsed(data);
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw broken();
  }
}

function dataOf(block) {
  const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

function parsed(data) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    throw new Failure("The server sent something that is no JSON.", "Try again.");
  }
  if (event.error) throw new Failure(event.error.message ?? "The server gave up.", "Try again.");
  return event;
}

function broken() {
  return new Failure("The connection to the server was lost before the answer was complete.", LOST);
}
