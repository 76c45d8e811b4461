"""The requests of the package's suites, by suite and size."""

from __future__ import annotations

from paceline.bench.suites.workload import Item, load

NAMES = ("code", "edit", "json", "agent", "quote", "prose", "chat")
REAL = tuple(f"real-{name}" for name in ("code", "edit", "json", "agent", "grounded", "chat", "maths"))
SIZES = ("tiny", "full")


def of(name: str, size: str) -> list[Item]:
    return [item for item in load(name) if item.size == size]


def text(item: Item) -> str:
    return item.prompt or "".join(content or "" for _, content in item.messages)
