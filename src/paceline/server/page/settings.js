// The settings, and sets of them under a name. What is set is kept for the next visit; the key is not among it.

import { byId, toast } from "./dom.js";
import { Failure, json } from "./server.js";
import { lasting } from "./store.js";

const SAMPLING = {
  temperature: "The temperature is a number from 0 to 2.",
  top_k: "Top-k is a whole number, 0 for off.",
  top_p: "Top-p is a number from 0 to 1.",
  min_p: "Min-p is a number from 0 to 1.",
  repeat_penalty: "The repeat penalty is a number from 1 to 2.",
  seed: "The seed is a whole number.",
};
const LONGEST = "The longest answer is a whole number of tokens, at least 1.";
const PRESET = [...Object.keys(SAMPLING), "longest", "system"]; // what a preset holds
const FIELDS = [...PRESET, "drafting", "marks"];
const ON = { drafting: true, marks: false }; // before anything was kept
const BUILT_IN = { "The model's own": {}, "Precise": { temperature: "0" }, "Inventive": { temperature: "1.2", min_p: "0.05" } };
const UNNAMED = "";
let own = {}; // presets of the user
let models = [];
let suggested = {}; // how to sample from the model

export function openSettings() {
  for (const id of FIELDS) restore(byId(id));
  try {
    own = Object.fromEntries(Object.entries(JSON.parse(lasting.get("presets") ?? "{}")).filter(([, preset]) => preset));
  } catch {
    own = {};
  }
  const dialog = byId("settings-dialog");
  byId("settings-button").addEventListener("click", () => dialog.showModal());
  byId("settings-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
  byId("settings").addEventListener("input", ({ target }) => target.id !== "preset" && showPresets());
  byId("marks").addEventListener("change", showMarks);
  byId("preset").addEventListener("change", () => choose(byId("preset").value));
  byId("preset-save").addEventListener("click", savePreset);
  byId("preset-name").addEventListener("keydown", (event) => event.key === "Enter" && savePreset());
  byId("preset-delete").addEventListener("click", () => {
    delete own[byId("preset").value];
    lasting.set("presets", JSON.stringify(own));
    showPresets();
  });
  showMarks();
  showPresets();
}

function showMarks() {
  document.body.classList.toggle("unmarked", !byId("marks").checked);
}

function restore(field) {
  const value = lasting.get(field.id);
  if (field.type === "checkbox") field.checked = value === null ? ON[field.id] : value === "true";
  else field.value = value ?? "";
  field.addEventListener("change", () => {
    lasting.set(field.id, field.type === "checkbox" ? field.checked : field.value);
  });
}

const presets = () => ({ ...BUILT_IN, ...own });
const current = () => Object.fromEntries(PRESET.map((id) => [id, byId(id).value]));
const fits = (preset) => PRESET.every((id) => byId(id).value === String(preset[id] ?? ""));

/** The preset that the fields are equal to, or none. */
function showPresets() {
  const all = presets();
  const name = Object.keys(all).find((each) => fits(all[each])) ?? UNNAMED;
  const options = Object.keys(all).map((each) => new Option(each, each));
  byId("preset").replaceChildren(...(name ? [] : [new Option("Changed, not saved", UNNAMED)]), ...options);
  byId("preset").value = name;
  byId("preset-delete").disabled = !(name in own);
}

function choose(name) {
  const preset = presets()[name] ?? {};
  for (const id of PRESET) {
    byId(id).value = preset[id] ?? "";
    lasting.set(id, byId(id).value);
  }
  showPresets();
}

function savePreset() {
  const name = byId("preset-name").value.trim();
  if (!name) {
    byId("preset-name").focus();
    return;
  }
  own = { ...own, [name]: current() };
  lasting.set("presets", JSON.stringify(own));
  byId("preset-name").value = "";
  showPresets();
  toast(`The preset “${name}” is saved.`);
}

/** The models that the server has, asked for until it answers. Throws a Failure. */
export async function loadModels(signal) {
  if (models.length) return;
  const { data } = await json("v1/models", { signal });
  if (!data?.length) throw new Failure("This server has no model.", "Start it with one: paceline serve -m MODEL.");
  models = data;
  suggested = data[0].meta?.sampling ?? {};
  for (const id of Object.keys(SAMPLING)) byId(id).placeholder = suggested[id] ?? byId(id).placeholder;
  byId("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
}

/** Tokens that a conversation may have, or null where nobody knows. */
export const contextSize = () => models.find(({ id }) => id === byId("model").value)?.max_model_len ?? null;

/** The fields of a request that the settings decide. Throws a Failure where one makes no sense. */
export async function requestSettings(signal) {
  await loadModels(signal);
  for (const [id, what] of [...Object.entries(SAMPLING), ["longest", LONGEST]]) {
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
