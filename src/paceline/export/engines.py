"""The table of engines that a command can be made for."""

from __future__ import annotations

from paceline.core.errors import UsageError
from paceline.export import sglang, vllm
from paceline.export.asked import Asked

ENGINES = {"vllm": vllm.arguments, "sglang": sglang.arguments}


def command(engine: str, asked: Asked) -> list[str]:
    """The command that starts the engine and does what was asked; its first word is the program. Raises
    UsageError, with the reason, where the engine cannot, or not with the model's own output."""
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}: choose from {', '.join(ENGINES)}")
    return ENGINES[engine](asked)
