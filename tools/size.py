"""Enforce ceilings on the lines of source and tests, repeated class names, and banned words in identifiers.

python -m tools.size            check; part of `make check`
python -m tools.size --write    set the ceilings to the current figures
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "tools" / "size.json"
# Vague words for which the field has terms (cached, requested, reported, ...).
BANNED = {
    "told",
    "kept",
    "asked",
    "held",
    "said",
    "viewed",
    "settle",
    "heirs",
    "lately",
    "wishes",
    "unread",
} | {
    "begun",
    "alike",
    "recall",
}


def modules(folder: str) -> Iterator[Path]:
    yield from sorted((ROOT / folder).rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines: classes, functions, arguments, variables and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words(name: str) -> list[str]:
    """Split snake_case and CamelCase into lower-case words. "held out" is the field's term for a split."""
    name = name.lower().replace("held_out", "") if "held_out" in name.lower() else name
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def measure() -> dict[str, int]:
    """Count lines, class names that occur twice, and identifiers with banned words."""
    found = Counter({"tests": sum(map(lines, modules("tests")))})
    classes: Counter[str] = Counter()
    banned = 0
    for path in modules("src/paceline"):
        found["src"] += lines(path)
        tree = ast.parse(path.read_text("utf-8"))
        classes.update(node.name for node in tree.body if isinstance(node, ast.ClassDef))
        banned += sum(not BANNED.isdisjoint(words(name)) for name in identifiers(tree))
    found["class names that occur twice"] = sum(n > 1 for n in classes.values())
    found["identifiers with banned words"] = banned
    return dict(sorted(found.items()))


def main() -> None:
    found = measure()
    ceilings: dict[str, int] = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    if "--write" in sys.argv:
        CEILINGS.write_text(json.dumps(found, indent=2) + "\n")
        return
    over = [
        f"{name}: {n:,}, at most {ceilings.get(name, 0):,}"
        for name, n in found.items()
        if n > ceilings.get(name, 0)
    ]
    if over:
        sys.exit("\n".join(["larger than before: delete something, or raise tools/size.json", *over]))


if __name__ == "__main__":
    main()
