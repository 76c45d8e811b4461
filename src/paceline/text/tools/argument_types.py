"""Types of arguments in a tool's JSON schema, for formats that write values without their types."""

from __future__ import annotations

import json
from typing import Any

from paceline.text.json_schema import find_schema
from paceline.text.tools.growing_text import CONSTANTS

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
        names = {one for one in ([named] if isinstance(named, str) else named) if isinstance(one, str)}
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
