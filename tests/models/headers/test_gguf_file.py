from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_files import finish, write_llama
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile, SkippedArray
from paceline.speculative.errors import ModelError
from raw_gguf import ARCH, ARRAY, BOOL, F32, I32, STRING, U32, array, key, tensor, text
from raw_gguf import gguf as raw

HUGE = 1 << 60
EVERY = lambda _key, _count: True  # noqa: E731


def plain(value: Any) -> Any:
    """Convert a value to the form that GGUFReader.contents() gives."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [it.decode() for it in value] if isinstance(value, list) else value


def assert_as_the_library_reads(path: Path) -> None:
    ours, theirs = GGUFFile(path, EVERY), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    tensors = ours.tensors.values()
    assert {name: plain(value) for name, value in ours.values.items()} == fields
    assert [(t.name, list(t.shape), t.type, ours.data + t.offset, t.elements) for t in tensors] == [
        (t.name, t.shape.tolist(), int(t.tensor_type), t.data_offset, t.n_elements) for t in theirs.tensors
    ]
    assert ours.data == theirs.data_offset
    assert ours.size == path.stat().st_size


@pytest.mark.parametrize("path", [zoo.draft_path(), zoo.target_path()], ids=["draft", "target"])
def test_embedded_models_read_as_the_library_reads_them(path: Path) -> None:
    assert_as_the_library_reads(path)


def test_every_type_of_value_reads_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in (
        *(("uint8", 255), ("int8", -1), ("uint16", 65535), ("int16", -2), ("uint32", 1 << 31), ("int32", -3)),
        *(("float32", 0.5), ("uint64", (1 << 64) - 1), ("int64", -4), ("float64", 1e300), ("bool", True)),
        *(("string", "a\x00b∞"), ("array", [1, -2, 3]), ("array", [0.25, 2.0]), ("array", ["", "a", "ab∞"])),
        ("array", [True, False]),
    ):
        getattr(writer, f"add_{kind}")(f"test.{kind}.{value!r}", value)
    writer.add_tensor("one", np.ones((3, 5), np.float32))
    writer.add_tensor("two", np.ones(7, np.float16))
    finish(writer)
    assert_as_the_library_reads(path)


def test_arrays_that_are_not_wanted_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    numbers = array(I32, 5000, bytes(20_000))
    path.write_bytes(
        raw([key("n", ARRAY, numbers), key("t", ARRAY, array(STRING, 2, text("a") + text("b"))), ARCH])
    )
    found = GGUFFile(path).values
    assert found == {"n": SkippedArray(5000), "t": SkippedArray(2), "general.architecture": "llama"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML" + bytes(40), "is not a GGUF file"),
        (b"GGUF", "not downloaded whole, fetch it again"),
        (raw(version=1), "version 1, or big-endian"),
        (raw(version=0x03000000), "big-endian"),
        (raw(n_keys=HUGE), "no model has so many"),
        (raw(n_keys=60_000), "a key ends"),
        (raw([text("", HUGE) + bytes(9)]), "a key ends"),
        (raw([key("k", 13, bytes(8))]), "of type 13"),
        (raw([key("k\n\x1b", STRING, text("abc", HUGE))]), r"'k\n\x1b' ends"),
        (raw([key("k", ARRAY, array(ARRAY, 1, array(U32, 1, bytes(4))))]), "of type 9"),
        (raw([key("k", ARRAY, array(U32, HUGE, b""))]), "'k' ends"),
        (raw([key("k", ARRAY, array(STRING, HUGE, b""))]), "no model has so many"),
        (raw([key("k", ARRAY, array(STRING, 1, text("", HUGE)))]), "'k' ends"),
        (raw([key("general.alignment", U32, struct.pack("<I", 0))]), "alignment is 0"),
        (raw([key("general.alignment", F32, struct.pack("<f", float("nan")))]), "alignment is nan"),
        (raw([key("general.alignment", STRING, text("32" * 999))]), "alignment is '3232"),
        (raw(tensors=[tensor("t", (8,))]), "not downloaded whole"),
        (raw(tensors=[tensor("t", (9,))], weights=32), "ends 4 bytes after the end"),
        (raw(tensors=[tensor("t", (8,), offset=HUGE)], weights=32), "after the end of the file"),
        (raw(tensors=[tensor("t", (8,), kind=4)], weights=99), "of type 4"),
        (raw(tensors=[tensor("t", (8,), kind=2)], weights=99), "cannot have the shape (8,)"),
        (raw(tensors=[tensor("t", (HUGE, HUGE))], weights=99), "cannot have the shape"),
        (raw(tensors=[tensor("t", (1 << 63, 0))], weights=99), "cannot have the shape"),
        (raw(tensors=[tensor("t", (1,) * 5)], weights=99), "5 dimensions"),
        (raw(tensors=[tensor("t", (), dims=(1 << 32) - 1)], weights=99), "4,294,967,295 dimensions"),
    ],
)
def test_false_content_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as refused:
        GGUFFile(path, EVERY)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.parametrize("path", [Path("nowhere.gguf"), Path("nul\0.gguf"), Path()])
def test_what_is_no_file_is_refused(path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be read|neither a file"):
        GGUFFile(path, EVERY)


EVERYTHING = raw(
    [
        ARCH,
        key("general.alignment", U32, struct.pack("<I", 64)),
        key("numbers", ARRAY, array(I32, 3, bytes(12))),
        key("texts", ARRAY, array(STRING, 3, text("a") + text("") + text("bc"))),
        key("flag", BOOL, b"\x01"),
    ],
    [tensor("one", (4, 2)), tensor("two", (32,), kind=2, offset=64)],
    weights=64 + 18,
    alignment=64,
)


def test_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf", width=8, layers=1, heads=2, kv_heads=1)
    small = path.read_bytes()
    path.write_bytes(EVERYTHING)
    assert GGUFFile(path).size == len(EVERYTHING)
    cuts = [EVERYTHING[:size] for size in range(len(EVERYTHING))]
    for cut in cuts + [small[:size] for size in range(0, len(small) - 64, 997)]:
        path.write_bytes(cut)
        with pytest.raises(ModelError):
            GGUFFile(path, EVERY)
