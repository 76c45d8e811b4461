"""Looking into folders that others have filled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.models.stores.search import FolderSearch


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    search = FolderSearch()
    assert search.folder(tmp_path) == []
    assert search.json(tmp_path / "m.gguf") is None
    assert len(search.notes) == 1
