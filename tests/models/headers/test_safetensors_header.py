from __future__ import annotations

from pathlib import Path

import pytest

from hub_files import write_json
from paceline.models.headers.safetensors_header import read_weights
from paceline.speculative.errors import ModelError


def test_all_that_an_index_names_is_weighed(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"model-{i}.safetensors").write_bytes(b"whatever")
    names = {"t1": "model-1.safetensors", "n1": "model-1.safetensors", "t0": "model-0.safetensors"}
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": names})
    files, size = read_weights(tmp_path)
    assert [file.name for file in files] == ["model-0.safetensors", "model-1.safetensors"]
    assert size == 16


@pytest.mark.parametrize(
    ("table", "said"),
    [(["a"], "has no weight_map"), ({"a": "model-7.safetensors"}, r"model-7\.safetensors.*fetch it too")],
)
def test_an_index_without_its_files_is_refused(tmp_path: Path, table: object, said: str) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": table})
    with pytest.raises(ModelError, match=said):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x", "", "a\0b", "..", "\ud800"],
)
def test_an_index_names_files_beside_it_only(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": name}})
    with pytest.raises(ModelError, match="names files that are not beside it"):
        read_weights(tmp_path)
