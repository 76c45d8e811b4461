// The settings panel. What is set is kept for the next visit; the key is not among it.

import { byId } from "./dom.js";
import { Failure, json } from "./server.js";
import { lasting } from "./store.js";

const SAMPLING = {
  temperature: "The temperature is a number from 0 to 2.",
  top_k: "Top-k is a whole number, 0 for off.",
  top_p: "Top-p is a number from 0 to 1.",
  min_p: "Min-p is a number from 0 to 1.",
};
const FIELDS = [...Object.keys(SAMPLING), "system", "longest", "drafting", "marks"];
const ON = { drafting: true, marks: true }; // before anything was kept
let models = [];
let suggested = {}; // how to sample from the model

export function openSettings() {
  for (const id of FIELDS) restore(byId(id));
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
  byId("settings-button").addEventListener("click", () => show(byId("settings").hidden));
  byId("settings").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    show(false);
    byId("settings-button").focus();
  });
  byId("marks").addEventListener("change", showMarks);
  showMarks();
}

function show(open) {
  byId("settings").hidden = !open;
  byId("settings-button").setAttribute("aria-expanded", String(open));
}

function showMarks() {
  document.body.classList.toggle("unmarked", !byId("marks").checked);
}

function restore(field) {
  const kept = lasting.get(field.id);
  if (field.type === "checkbox") field.checked = kept === null ? ON[field.id] : kept === "true";
  else field.value = kept ?? "";
  field.addEventListener("change", () => {
    lasting.set(field.id, field.type === "checkbox" ? field.checked : field.value);
  });
}

/** The models that the server has, asked for until it answers. Throws a Failure. */
export async function loadModels(signal) {
  if (models.length) return;
  const { data } = await json("v1/models", { signal });
  if (!data?.length) throw new Failure("This server has no model.", "Start it with one: paceline serve -m MODEL.");
  models = data.map((model) => model.id);
  suggested = data[0].meta?.sampling ?? {};
  for (const id of Object.keys(SAMPLING)) byId(id).placeholder = suggested[id] ?? "The server's";
  byId("model").replaceChildren(...models.map((id) => new Option(id, id)));
}

/** The fields of a request that the settings decide. Throws a Failure where one makes no sense. */
export async function requestSettings(signal) {
  await loadModels(signal);
  for (const [id, what] of [...Object.entries(SAMPLING), ["longest", "The longest answer is a whole number of tokens, at least 1."]]) {
    if (!byId(id).checkValidity()) throw new Failure(what, "Change it under Settings, then try again.");
  }
  const fields = { model: byId("model").value, speculative: { enabled: byId("drafting").checked, report: true } };
  for (const id of Object.keys(SAMPLING)) {
    const value = byId(id).value === "" ? suggested[id] : byId(id).valueAsNumber;
    if (value !== undefined) fields[id] = value;
  }
  if (byId("longest").value !== "") fields.max_tokens = byId("longest").valueAsNumber;
  return fields;
}

export const systemPrompt = () => byId("system").value.trim();
