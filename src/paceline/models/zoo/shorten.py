"""Write some of a model's layers as a GGUF file: an early-exit or layer-skip draft for any engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import copy_part, metadata_field, select_elements, write_gguf
from paceline.speculative.errors import UsageError
from paceline.system.whole import check_output, write_output

BLOCK = re.compile(r"blk\.(\d+)\.")


def shorten(
    source: Path,
    out: Path,
    layers: Collection[int],
    *,
    force: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> int:
    """Write `out` with the given layers of `source` and all other tensors unchanged. Return the file's bytes.
    tick: called after each tensor; its exceptions end the work. `out` appears only when it is complete.
    Raises UsageError (layers, existing file), ModelError (unsuitable source) and PacelineError."""
    check_output(out, source, force=force)
    file = GGUFFile(source)
    n = layer_count(file)
    selected = sorted(set(layers))
    if not selected or selected[0] < 0 or selected[-1] >= n:
        raise UsageError(f"{source}: has {n} layers, numbered from 0: not all of those are there")
    places = {str(old): str(new) for new, old in enumerate(selected)}
    parts = []
    for tensor in file.tensors.values():
        block = BLOCK.match(tensor.name)
        if block is None:
            parts.append(copy_part(file, tensor))
        elif block[1] in places:
            new_name = f"blk.{places[block[1]]}.{tensor.name[block.end() :]}"
            parts.append(replace(copy_part(file, tensor), name=new_name))
    prefix = f"{file.text('general.architecture')}."
    fields = {  # per-layer lists have the selected layers only
        key: select_elements(field, n, selected) if key.startswith(prefix) else field
        for key, field in file.fields.items()
    }
    fields[f"{prefix}block_count"] = metadata_field(f"{prefix}block_count", len(selected))
    if name := file.text("general.name"):
        fields["general.name"] = metadata_field("general.name", f"{name}, {len(selected)} of {n} layers")
    with write_output(out, force=force) as part:
        write_gguf(part, list(fields.values()), parts, file.alignment, tick)
        return part.stat().st_size


def layer_count(file: GGUFFile) -> int:
    """Return the number of layers, 0 if the file does not state it. Raises ModelError."""
    return file.number(f"{file.text('general.architecture')}.block_count")
