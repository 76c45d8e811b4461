"""Model folders of other programs, from the environment and from their own settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.models.stores.search import lm_studio, store_folders


def test_variables_name_other_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def where(**environ: str) -> dict[str, list[str]]:
        told: dict[str, list[str]] = {}
        for store, path in store_folders({"HOME": str(tmp_path)} | environ):
            told.setdefault(store, []).append(str(path))
        return told

    assert where()["Ollama"][0] == str(tmp_path / ".ollama/models")
    assert where()["Hugging Face"] == [str(tmp_path / ".cache/huggingface/hub")]
    assert where(OLLAMA_MODELS="/o")["Ollama"] == ["/o"]
    assert where(OLLAMA_MODELS="~nobody-here/o")["Ollama"] == ["~nobody-here/o"]
    assert where(LLAMA_CACHE="/l", XDG_CACHE_HOME="/x")["llama.cpp"] == ["/l"]


def test_lm_studio_tells_where_its_models_are(tmp_path: Path) -> None:
    assert lm_studio(tmp_path) == [tmp_path / ".lmstudio/models", tmp_path / ".cache/lm-studio/models"]
    settings = tmp_path / ".lmstudio/settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"downloadsFolder": "/models"}))
    assert lm_studio(tmp_path)[:2] == [Path("/models"), tmp_path / ".lmstudio/models"]
    odd = ['{"downloadsFolder": "/a\\u0000"}', '{"downloadsFolder": "/a\\ud800"}']
    for said in ("", "[]", '{"downloadsFolder": 3}', '{"downloadsFolder": "here"}', *odd):
        settings.write_text(said)
        assert lm_studio(tmp_path)[0] == tmp_path / ".lmstudio/models"
