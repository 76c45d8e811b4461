"""A cache of training sequences on disk: .npy files, which are mapped in windows, and an index.

`index.jsonl` has a line for each complete sequence, with a checksum. A build that was killed goes on behind
the last of them."""

from __future__ import annotations

import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.jsonl import LineError, object_of, raw_lines
from paceline.bench.replay.recording import append_line
from paceline.prepare.training.answer_folder import Answer, writing
from paceline.prepare.training.features import FeatureSource, OnlineFeatures, TrainingSequence
from paceline.speculative.errors import PacelineError, UsageError
from paceline.system.strict_json import parse_json
from paceline.system.whole import atomic_write

FORMAT = 1  # raised when a file changes its meaning
HEADER, INDEX = "features.json", "index.jsonl"
TYPES = {"hidden": "<f2", "ids": "<i4", "logprobs": "<f2"}  # of the files NAME.npy


class CacheFiles:
    """The layout of the files: the rows of all sequences, one after the other."""

    def __init__(self, folder: Path, answers: Sequence[Answer], layers: int, width: int, top_k: int) -> None:
        self._answers = answers
        self.paths = {name: folder / f"{name}.npy" for name in TYPES}
        self._row = {"hidden": (layers, width), "ids": (top_k,), "logprobs": (top_k,)}
        answered = [0, *accumulate(len(answer.tokens) for answer in answers)]
        every = [0, *accumulate(len(answer.prompt) + len(answer.tokens) for answer in answers)]
        self._starts = {"hidden": every, "ids": answered, "logprobs": answered}

    def npy_header(self, name: str) -> bytes:
        """Return the header of a complete file; its length does not depend on the number of rows."""
        shape = (self._starts[name][-1], *self._row[name])
        header, fields = io.BytesIO(), {"descr": TYPES[name], "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, fields)
        return header.getvalue()

    def end(self, name: str, n: int) -> int:
        """Return the size of a file of the first `n` sequences."""
        row_bytes = int(np.prod(self._row[name])) * np.dtype(TYPES[name]).itemsize
        return len(self.npy_header(name)) + self._starts[name][n] * row_bytes

    def bytes(self, n: int) -> int:
        return sum(self.end(name, n) for name in TYPES)

    def have(self, n: int) -> bool:
        """Return whether all files reach to the end of sequence `n`."""
        return all(
            path.exists() and path.stat().st_size >= self.end(name, n) for name, path in self.paths.items()
        )

    def read(self, number: int) -> TrainingSequence:
        """Map the window of a sequence."""
        answer, windows = self._answers[number], dict[str, NDArray[Any]]()
        for name, path in self.paths.items():
            starts = self._starts[name]
            shape = (starts[number + 1] - starts[number], *self._row[name])
            windows[name] = np.memmap(path, TYPES[name], "r", self.end(name, number), shape)
        tokens = np.concatenate([answer.prompt, answer.tokens])
        return TrainingSequence(tokens, first_answer=len(answer.prompt), **windows)


class FeatureCache(FeatureSource):
    """The sequences of `answers`, in a folder that `build_cache` has filled. Each is checked when it is first
    read; raises PacelineError for a damaged one."""

    def __init__(self, folder: Path, answers: Sequence[Answer], layers: list[int], files: CacheFiles) -> None:
        self._folder, self.answers, self.layers, self._files = folder, answers, layers, files
        self._checksums, self._checked = read_index(folder, answers), set[int]()

    def __getitem__(self, number: int) -> TrainingSequence:
        number = range(len(self))[number]
        sequence = self._files.read(number)
        if number not in self._checked:
            if checksum(sequence) != self._checksums[number]:
                raise PacelineError(
                    f"{self._folder}: the cache of hidden states is damaged (sequence {number:,} has another "
                    "checksum); remove this folder, and the cache is made again"
                )
            self._checked.add(number)
        return sequence


def build_cache(
    online: OnlineFeatures,
    folder: Path,
    model: str,
    *,
    note: Callable[[str], object] = lambda _: None,
    report: Callable[[int, int], object] = lambda _done, _total: None,
) -> FeatureCache:
    """Compute the sequences that the folder does not have yet, and return all.

    model: the target's fingerprint; a cache of another one, or without one of the layers, is replaced. A
    cache of more layers goes on with all of its own.
    report: called with the number of sequences so far, and of all; if it raises, the folder keeps them.
    Raises UsageError if they do not fit on the disk, and PacelineError if they cannot be written."""
    answers, width = online.answers, online[0].hidden.shape[2]
    key = {"format": FORMAT, "model": model, "width": width, "top_k": online.top_k}
    if (layers := cached_layers(folder, key, online.layers)) != online.layers:
        online = OnlineFeatures(online.target, answers, layers, online.top_k)
    key |= {"layers": list(layers)}
    files = CacheFiles(folder, answers, len(online.layers), width, online.top_k)
    with writing(folder, "the hidden states so far are kept"):
        folder.mkdir(parents=True, exist_ok=True)
        n = _repair(folder, files, answers, key)
        needed, free = files.bytes(len(answers)) - files.bytes(n), shutil.disk_usage(folder).free
        size = f"the hidden states of {len(answers):,} answers take {files.bytes(len(answers)) / 1e9:,.2f} GB"
        note(f"{size} in {folder}, {needed / 1e9:,.2f} GB of them new ({free / 1e9:,.2f} GB are free)")
        if needed > free:
            raise UsageError(
                f"{folder}: {size}, {needed / 1e9:,.2f} GB of them new, and {free / 1e9:,.2f} GB are free: "
                "make room, choose another folder, or train without the cache"
            )
        with ExitStack() as stack:
            opened = {name: stack.enter_context(path.open("r+b")) for name, path in files.paths.items()}
            for name, file in opened.items():
                file.write(files.npy_header(name))
                file.seek(files.end(name, n))
            report(n, len(answers))
            for number in range(n, len(answers)):
                sequence = _in_float16(online[number])
                for name, file in opened.items():
                    file.write(np.ascontiguousarray(getattr(sequence, name), TYPES[name]).data)
                    file.flush()
                line = {"id": answers[number].id, "crc32": checksum(sequence)}
                append_line(folder / INDEX, json.dumps(line).encode() + b"\n")
                report(number + 1, len(answers))
    return FeatureCache(folder, answers, list(layers), files)


def cached_layers(folder: Path, key: Mapping[str, Any], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers of a cache that has those wanted, and otherwise these."""
    try:
        header = parse_json((folder / HEADER).read_bytes())
        layers = header.pop("layers")
        if header == key and set(wanted) <= set(layers):
            return tuple(sorted(layers))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass  # no cache, or none of ours
    return wanted


def _repair(folder: Path, files: CacheFiles, answers: Sequence[Answer], key: dict[str, Any]) -> int:
    """Cut off what is of another target or incomplete; return the number of sequences left."""
    n, header = 0, folder / HEADER
    if header.exists() and header.read_text("utf-8", "replace") == json.dumps(key):
        checksums = read_index(folder, answers)
        n = len(checksums)  # a crash of the system can lose the data of the last ones
        while n and not (files.have(n) and checksum(files.read(n - 1)) == checksums[n - 1]):
            n -= 1
    lines = [line.data + b"\n" for line in raw_lines(folder / INDEX)][:n] if n else []
    with atomic_write(folder / INDEX) as part:
        part.write_bytes(b"".join(lines))
    with atomic_write(header) as part:
        part.write_text(json.dumps(key), "utf-8")
    for name, path in files.paths.items():
        path.touch()
        os.truncate(path, files.end(name, n))
    return n


def read_index(folder: Path, answers: Sequence[Answer]) -> list[int]:
    """Return the checksums of the first sequences, as far as they are of these answers."""
    out, path = list[int](), folder / INDEX
    for line, answer in zip(raw_lines(path) if path.exists() else (), answers, strict=False):
        try:
            data = object_of(line)
            if data["id"] != answer.id:
                break
            out.append(int(data["crc32"]))
        except (LineError, KeyError, TypeError, ValueError):
            break
    return out


def checksum(sequence: TrainingSequence) -> int:
    """Return the CRC-32 of a sequence, its tokens included."""
    crc = zlib.crc32(sequence.tokens.astype("<i4").data)
    for name, type_ in TYPES.items():
        crc = zlib.crc32(np.ascontiguousarray(getattr(sequence, name), type_).data, crc)
    return crc


def _in_float16(sequence: TrainingSequence) -> TrainingSequence:
    with np.errstate(over="ignore"):
        hidden = sequence.hidden.astype(np.float16)
    if not np.isfinite(hidden).all():
        raise PacelineError("a hidden state is beyond the range of float16: train without the cache")
    return replace(sequence, hidden=hidden)
