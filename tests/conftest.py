"""Models that many tests share, written once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_files import write_llama


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny random Llama files: target.gguf, and draft.gguf, which is one block of it."""
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "target.gguf", layers=2)
    write_llama(folder / "draft.gguf", layers=1)
    return folder
