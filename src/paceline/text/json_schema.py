"""JSON schemas for llguidance: what it does not know is left out with a note, references are found.
And the types of arguments in a tool's schema, for formats that write values without their types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from paceline.text.tools.growing_text import CONSTANTS

# What llguidance 1.9 does not enforce. Leaving it out only allows more.
LOOSENED = (
    "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
UNSUPPORTED_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")  # look-around and references to groups
# Keywords that hold schemas: one or a list, or a mapping.
SCHEMAS = ("items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf", "oneOf")
DEFINITIONS = ("$defs", "definitions")
MAPPINGS = (*DEFINITIONS, "properties", "patternProperties")
# Beside these an object's properties are not all that it may have.
OPEN = {*SCHEMAS[3:], "patternProperties", "unevaluatedProperties", "$ref"}


def adapt(schema: Any, *, strict: bool = False) -> tuple[Any, tuple[str, ...]]:
    """Return the schema as llguidance can enforce it, and notes on what it does not.
    References into `$defs` that are not at the root are found. strict: close objects (`from_schema`)."""
    notes: dict[str, None] = {}
    return _adapt(schema, schema, "", strict, notes), tuple(notes)


def _adapt(schema: Any, root: Any, place: str, strict: bool, notes: dict[str, None]) -> Any:
    """Return the schema at a place, a JSON pointer, in the document `root`."""
    if not isinstance(schema, Mapping):
        return schema
    if "$id" in schema:  # a document of its own
        root, place = schema, ""
    out = dict(schema)
    notes |= {f"{keyword} is not enforced": None for keyword in LOOSENED if keyword in out}
    if isinstance(form := out.get("format"), str) and form not in FORMATS:
        notes[f"the format {form} is not enforced"] = None
    if isinstance(pattern := out.get("pattern"), str) and UNSUPPORTED_PATTERN.search(pattern):
        notes[f"the pattern {out.pop('pattern')} is not enforced: it looks around, or back at a group"] = None
    if isinstance(reference := out.get("$ref"), str) and reference.startswith("#/"):
        around = "" if find_schema(root, reference[1:]) is not None else place  # else in the nearest around
        while around and find_schema(root, f"{around}{reference[1:]}") is None:
            around = around.rpartition("/")[0]
        out["$ref"] = f"#{around}{reference[1:]}"
    for keyword in filter(out.__contains__, (*SCHEMAS, *MAPPINGS)):
        value, path = out[keyword], f"{place}/{keyword}"
        # The parts of an object are closed together or not at all.
        closed = strict and keyword != "allOf" and not (keyword in OPEN and "properties" in out)
        if keyword in MAPPINGS and isinstance(value, Mapping):
            parts = {name: f"{path}/{str(name).replace('~', '~0').replace('/', '~1')}" for name in value}
            out[keyword] = {name: _adapt(value[name], root, at, closed, notes) for name, at in parts.items()}
        elif isinstance(value, list):
            out[keyword] = [_adapt(it, root, f"{path}/{n}", closed, notes) for n, it in enumerate(value)]
        elif keyword in SCHEMAS:
            out[keyword] = _adapt(value, root, path, closed, notes)
    if strict and out.get("properties") and OPEN.isdisjoint(out):
        out["additionalProperties"] = False
        notes["objects have only the properties that the schema names (strict)"] = None
    return out


def find_schema(value: Any, pointer: str) -> Any:
    """Return the schema at a JSON pointer in a document; None if there is none."""
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            value = value[int(name)] if name.isdecimal() and int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value


Types = frozenset[str]

NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
NAMES |= {type(None): "null"}
ANY, STRING = Types(NAMES.values()), Types(["string"])
MAX_SCHEMAS = 200  # within one another


def property_types(parameters: Any, name: str) -> Types:
    """Return the types that a parameter may have. One that the schema does not know is a string."""
    schema = _resolve(parameters, parameters)
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if isinstance(properties, dict) and name in properties:
        return _types(properties[name], parameters, {})
    return _types(others, parameters, {}) if isinstance(others, dict) and others else STRING


def json_argument(text: str, types: Types) -> str:
    """Return a value as JSON text: a string if its type may be, unless it is JSON of another of the types."""
    value = text.strip() if "string" in types else CONSTANTS.get(text.strip(), text.strip())
    try:
        parsed = json.loads(value)
        json.dumps(parsed, allow_nan=False)
        if "string" not in types or NAMES[type(parsed)] in types - STRING:
            return value
    except (ValueError, RecursionError):
        pass
    return json.dumps(text, ensure_ascii=False)


def _resolve(schema: Any, root: Any) -> dict[str, Any]:
    """Return the schema that references lead to; {} for anything else."""
    for _ in range(MAX_SCHEMAS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema if isinstance(schema, dict) else {}
        schema = find_schema(root, schema["$ref"].removeprefix("#"))
    return {}


def _types(schema: Any, root: Any, known: dict[int, Types]) -> Types:
    """Return the types that a schema allows. known: those of schemas by id, where none are unknown so far."""
    schema = _resolve(schema, root)
    if id(schema) in known or len(known) > MAX_SCHEMAS:
        return known.get(id(schema), ANY)
    known[id(schema)] = Types()
    types, named = ANY, schema.get("type")
    if isinstance(named, str | list):
        names = {word for word in ([named] if isinstance(named, str) else named) if isinstance(word, str)}
        types &= names | ({"integer"} if "number" in names else set())
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        types &= Types(NAMES[type(value)] for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            types &= Types().union(*(_types(choice, root, known) for choice in choices))
    for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        types &= _types(part, root, known)
    known[id(schema)] = types or ANY
    return known[id(schema)]
