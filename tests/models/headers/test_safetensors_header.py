from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from hub_files import safetensors, write_json
from paceline.models.headers.safetensors_header import WeightFiles, read_weights
from paceline.speculative.errors import ModelError


def header(said: object) -> bytes:
    raw = json.dumps(said).encode()
    return struct.pack("<Q", len(raw)) + raw


def test_all_that_an_index_names_is_counted(tmp_path: Path) -> None:
    contents = [safetensors({f"t{i}": ("BF16", (3, 5), 30), f"n{i}": ("F32", (5,), 20)}) for i in range(2)]
    for i, content in enumerate(contents):
        (tmp_path / f"model-{i}.safetensors").write_bytes(content)
    names = {"t1": "model-1.safetensors", "n1": "model-1.safetensors", "t0": "model-0.safetensors"}
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": names})
    weights = read_weights(tmp_path)
    assert [file.name for file in weights.files] == ["model-0.safetensors", "model-1.safetensors"]
    assert (weights.parameters, weights.kind, weights.size) == (40, "BF16", sum(map(len, contents)))


def test_packed_weights_are_not_counted(tmp_path: Path) -> None:
    content = safetensors({"qweight": ("I32", (10, 10), 400), "scales": ("F16", (10,), 20)})
    (tmp_path / "model.safetensors").write_bytes(content)
    assert read_weights(tmp_path).parameters is None


def test_pickles_are_weighed_and_never_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"whatever")
    assert read_weights(tmp_path) == WeightFiles((tmp_path / "pytorch_model.bin",), 8)


def test_a_folder_can_be_without(tmp_path: Path) -> None:
    assert read_weights(tmp_path) == WeightFiles()


def test_an_index_without_a_table_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": ["a"]})
    with pytest.raises(ModelError, match="has no weight_map"):
        read_weights(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": "model-7.safetensors"}})
    with pytest.raises(ModelError, match=r"model-7\.safetensors.*fetch it too"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x", "", "a\0b", "..", "\ud800"],
)
def test_an_index_names_files_beside_it_only(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": name}})
    with pytest.raises(ModelError, match="names files that are not beside it"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the header needs 8 bytes"),
        (struct.pack("<Q", 1 << 60) + b"{}", "the header needs"),
        (struct.pack("<Q", 2) + b"{", "the header needs"),
        (struct.pack("<Q", 2) + b"{]", "is no safetensors file"),
        (struct.pack("<Q", 2) + b"\xff\xff", "is no safetensors file"),
        (header([1]), "is no JSON object"),
        (header({"t": []}), "not described as safetensors does"),
        (header({"t": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}), "not described"),
        (header({"t": {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 0]}}), "not described"),
        (header({"t": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 0]}}), "not described"),
        (header({"t": {"dtype": 7, "shape": [2], "data_offsets": [0, 8]}}), "not described"),
        (header({"t": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}) + bytes(8), "ends behind"),
        (safetensors({"t": ("F32", (2,), 8)}, short=1), "ends behind the end of the file"),
    ],
)
def test_what_lies_is_refused_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=reason) as refused:
        read_weights(tmp_path)
    assert str(refused.value).startswith(str(tmp_path / "model.safetensors"))
