"""Commands that start another engine with what a user asked of Paceline (docs/engines.md)."""

from paceline.core.errors import UsageError
from paceline.export import sglang, vllm
from paceline.export.asked import Asked as Asked
from paceline.export.launching import launch as launch
from paceline.export.launching import shown as shown

ENGINES = {"vllm": vllm.arguments, "sglang": sglang.arguments}


def command(engine: str, asked: Asked) -> list[str]:
    """Return the command that starts the engine; its first word is the program.

    Raises UsageError, with the reason, where the engine cannot do it, or not with the model's own output.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}: choose from {', '.join(ENGINES)}")
    return ENGINES[engine](asked)
