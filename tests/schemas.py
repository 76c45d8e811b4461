"""Harmful schemas, with which llguidance crashes or does not return."""

from __future__ import annotations

from typing import Any


def chain(length: int) -> dict[str, Any]:
    """Return a schema of so many objects, each of which refers to the next."""
    nodes: dict[str, Any] = {
        f"d{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}, "required": ["x"]}
        for n in range(length)
    }
    return {"$defs": {**nodes, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


# Takes all memory, and years.
ENDLESS = {"allOf": [{"type": "string", "pattern": f"a.{{{n}}}b"} for n in range(40)]}
# Seconds, and 300 MB.
SLOW = {"type": "integer", "multipleOf": 1000003}
# Seconds, quadratic.
WIDE = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(5000)}}
