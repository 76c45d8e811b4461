"""Write a GGUF file with some of a model's layers: an early exit or a layer skip that any engine loads as a
draft model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import ModelError, UsageError
from paceline.system.whole import check_output, output

BLOCK = re.compile(r"blk\.(\d+)\.")


def shorten(
    source: Path,
    out: Path,
    layers: Collection[int],
    *,
    force: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> int:
    """Write `out` with these layers of `source`, in order, and all that is no layer's; weights stay as they
    are. Returns its bytes. tick: is called after each tensor; what it raises ends the work. Nothing is left
    at `out` unless the whole file was written. Raises UsageError (layers, an existing file), ModelError (a
    source that is no such model) and PacelineError (a place that can't be written to)."""
    import gguf

    check_output(out, source, force=force)
    reader = reader_of(source)
    kind = text_of(reader, "general.architecture", source)
    n = count_of(reader, source)
    kept = sorted(set(layers))
    if not kept or kept[0] < 0 or kept[-1] >= n:
        raise UsageError(f"{source}: has {n} layers, numbered from 0: not all of those are there")
    places = {old: new for new, old in enumerate(kept)}
    with output(out, force=force) as part:
        with closing(gguf.GGUFWriter(str(part), kind)) as writer:
            copy_keys(reader, writer, kind, n, kept)
            chosen = []
            for tensor in reader.tensors:
                block = BLOCK.match(tensor.name)
                if block is not None and int(block[1]) not in places:
                    continue
                name = (
                    tensor.name
                    if block is None
                    else f"blk.{places[int(block[1])]}.{tensor.name[block.end() :]}"
                )
                chosen.append(tensor)
                data = tensor.data
                writer.add_tensor_info(
                    name, data.shape, data.dtype, data.nbytes, raw_dtype=tensor.tensor_type
                )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            stream = writer.fout[0]
            for tensor in chosen:
                writer.write_padding(stream, stream.tell())
                stream.write(np.ascontiguousarray(tensor.data).data)
                tick()
            writer.write_padding(stream, stream.tell())
        return part.stat().st_size


def layers_of(source: Path) -> int:
    """How many there are. Raises ModelError."""
    return count_of(reader_of(source), source)


def reader_of(source: Path) -> Any:
    import gguf

    if not source.is_file():
        what = "is no regular file" if source.exists() else "no such file"
        raise ModelError(f"{source}: {what}; give the path of a .gguf model")
    try:
        return gguf.GGUFReader(source)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise ModelError(f"{source} is not a complete GGUF file ({error})") from error


def count_of(reader: Any, source: Path) -> int:
    field = reader.fields.get(f"{text_of(reader, 'general.architecture', source)}.block_count")
    if field is None:
        raise ModelError(f"{source}: does not say how many layers it has")
    return int(field.contents())


def text_of(reader: Any, key: str, source: Path) -> str:
    field = reader.fields.get(key)
    if field is None or not isinstance(field.contents(), str):
        raise ModelError(f"{source}: does not say its {key}: is it a language model?")
    return str(field.contents())


def copy_keys(reader: Any, writer: Any, kind: str, n: int, kept: list[int]) -> None:
    """All of the source's, with lists of one entry a layer cut to the layers that are kept."""
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in (f"{kind}.block_count", "general.architecture"):
            continue
        value = field.contents()
        if isinstance(value, list) and not value:  # gguf writes no empty list
            continue
        if isinstance(value, list) and len(value) == n and key.startswith(f"{kind}."):
            value = [value[at] for at in kept]
        if key == "general.name":
            value = f"{value}, {len(kept)} of {n} layers"
        writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    writer.add_uint32(f"{kind}.block_count", len(kept))
