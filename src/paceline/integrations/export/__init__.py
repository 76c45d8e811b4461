"""Commands that start another engine with what a user asked of Paceline (docs/engines.md)."""

from paceline.integrations.export import sglang, vllm
from paceline.integrations.export.asked import Asked as Asked
from paceline.integrations.export.launching import launch as launch
from paceline.integrations.export.launching import shown as shown
from paceline.speculative.errors import UsageError

ENGINES = {"vllm": vllm.arguments, "sglang": sglang.arguments}


def command(engine: str, asked: Asked) -> list[str]:
    """Return the command that starts the engine; its first word is the program.

    Raises UsageError, with the reason, where the engine cannot do it, or not with the model's own output.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}: choose from {', '.join(ENGINES)}")
    return ENGINES[engine](asked)
