"""A head's folder with one thing wrong opens and drafts without an exception, or is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding import decoded
from gguf_files import write_llama
from head_layouts import (
    HeadReference,
    ReferenceTarget,
    load_reference,
    write_layout,
    write_safetensors,
    zlab_config,
)
from paceline.backends.toy import ToyTarget
from paceline.drafter_factory import make_drafter
from paceline.drafter_table import HEADS
from paceline.drafters.none import NoDrafter
from paceline.drafts import kind_of, open_confidence, open_draft
from paceline.heads.confidence import NAMES, Confidence
from paceline.heads.config import ExitFacts
from paceline.heads.files import CONFIG, read_safetensors
from paceline.settings import Drafting
from paceline.speculative.errors import PacelineError
from paceline.speculative.interfaces import Budget
from tiny_heads import toy, write_tiny_head

V, SEED, SAMPLE_SIZE, PROMPT = 6, 7, 50, [1, 2, 3, 1, 2]
RAW = {"@huge": "1" * 400, "@inf": "1e999", "@nan": "NaN", "@deep": "[" * 100_000 + "]" * 100_000}
NUMBERS = (-1, 0, 1, 2, 3, 7, 10**12, 1.5, -1e300)
BAD: tuple[Any, ...] = (None, True, *NUMBERS, "x", "", "\ud800", "a\0b", [], {}, [[]], [-9], *RAW)
Mutation = Callable[[Path], object]


def own(kind: str) -> Callable[[Path], ToyTarget]:
    def write(folder: Path) -> ToyTarget:
        facts = {"exits": (ExitFacts(1.5), ExitFacts(0.7))} if kind == "exits" else {}
        write_tiny_head(folder, kind, toy(V), **facts)
        return toy(V)

    return write


def published(
    name: str, config: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Callable[[Path], ToyTarget]:
    def write(folder: Path) -> ToyTarget:
        reference: HeadReference = load_reference(name)
        write_layout(reference, folder, config=config(reference.config))
        return (
            ReferenceTarget(reference)
            if "features" in reference.values
            else ToyTarget(96, width=32, layers=6)
        )

    return write


def parallel(folder: Path) -> ToyTarget:
    write_llama(folder / "m.gguf")
    target = {"name": "a toy", "model": "", "layers": 1, "hidden": 8, "vocab": 259}
    config = {"paceline_head": "pard", "version": 1, "draft": "m.gguf", "mask_token_id": 3, "depth": 4}
    (folder / CONFIG).write_text(json.dumps(config | {"target": target}))
    return toy(259)


def confidence(folder: Path) -> ToyTarget:
    Confidence("toy:", "x", tuple(0.5 for _ in NAMES)).write(folder, {"kind": "confidence"})
    return toy(V)


LAYOUTS: dict[str, Callable[[Path], ToyTarget]] = {
    **{kind: own(kind) for kind in ("medusa", "eagle", "eagle3", "block", "exits", "kangaroo")},
    "eagle of its authors": published("eagle"),
    "eagle3 of its authors": published("eagle3_safeailab"),
    "medusa of its authors": published("medusa_two_blocks"),
    "kangaroo of its authors": published("kangaroo"),
    "speculators' eagle3": published("eagle3_norm_before_fc"),
    "speculators' dflash": published("dflash_sliding"),
    "speculators' dspark": published("dspark_gated"),
    "dflash of its authors": published("dflash_full_vocabulary", zlab_config),
    "pard": parallel,
    "confidence": confidence,
}


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all entries."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def changed_entry(path: tuple[Any, ...], *value: Any) -> Mutation:
    """Replace an entry of config.json; delete it without a value."""

    def change(folder: Path) -> None:
        data = json.loads((folder / CONFIG).read_text())
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        if value:
            inner[path[-1]] = value[0]
        else:
            del inner[path[-1]]
        text = json.dumps(data)
        for name, raw in RAW.items():
            text = text.replace(json.dumps(name), raw)
        (folder / CONFIG).write_text(text)

    return change


TENSOR_CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "flat": lambda it: it.ravel(),
    "one number": lambda it: it.ravel()[0].reshape(()),
    "deeper": lambda it: it[None],
    "turned": lambda it: it.T.copy(),
    "shorter": lambda it: it[:-1],
    "empty": lambda it: it[:0],
    "longer": lambda it: np.concatenate([it, it]),
    "narrower": lambda it: it[..., :-1].copy(),
    "whole": lambda it: it.astype(np.int64),
    "truth": lambda it: it.astype(np.bool_),
    "float": lambda it: it.astype(np.float32) - 0.5,
}


def changed_tensor(file: str, name: str, change: str) -> Mutation:
    def write(folder: Path) -> None:
        tensors = read_safetensors(folder / file)
        tensor = tensors.pop(name)
        if change in TENSOR_CHANGES:
            tensors[name] = TENSOR_CHANGES[change](tensor)
        elif change == "renamed":
            tensors[f"{name}x"] = tensor
        write_safetensors(folder / file, tensors, "F32")

    return write


def changed_bytes(file: str, change: Callable[[bytes], bytes]) -> Mutation:
    return lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes()))


def removed(file: str) -> Mutation:
    return lambda folder: (folder / file).unlink()


def mutations(folder: Path) -> list[tuple[str, Mutation]]:
    config = json.loads((folder / CONFIG).read_text())
    found: list[tuple[str, Mutation]] = []
    for path in paths(config):
        found.append((f"without {path}", changed_entry(path)))
        found += [(f"{path} = {value!r}", changed_entry(path, value)) for value in BAD]
    for file in folder.glob("*.safetensors"):
        changes = (*TENSOR_CHANGES, "dropped", "renamed")
        found += [
            (f"{file.name}: {name} {change}", changed_tensor(file.name, name, change))
            for name in read_safetensors(file)
            for change in changes
        ]
    damages: list[tuple[str, Callable[[bytes], bytes]]] = [
        *((f"cut at {n}", lambda data, n=n: data[:n]) for n in (0, 1, 7, 8, 9, 40, -1)),
        ("garbled", lambda data: data.replace(b'"', b"'")),
        ("with a long header", lambda data: b"\xff" * 5 + b"\0\0\0" + data),
    ]
    for name in [path.name for path in folder.iterdir() if path.suffix != ".gguf"]:
        found += [(f"{name} {what}", changed_bytes(name, damage)) for what, damage in damages]
        found.append((f"{name} gone", removed(name)))
    return found


def text_with(folder: Path, target: ToyTarget) -> list[int] | None:
    """Open a draft as the program does, and return a greedy text; None for a folder that is no draft."""
    _, scores = open_confidence(folder)
    if scores is not None:
        assert np.isfinite(scores.probability(np.array([0.7, 0.3]), 2, 0.5))
        return None
    source = kind_of(folder)
    kind = next((kind for kind, name in HEADS.items() if name == source), "")
    if not kind:
        return None
    draft: Any = open_draft(folder, target, {})
    drafting = Drafting((kind,), cross_vocab="off")
    if kind == "pard":
        from paceline.drafters.head import DraftVocabDrafter

        drafter: Any = DraftVocabDrafter(draft)
    else:
        drafter, _ = make_drafter(drafting, target, draft)
    out = text(target, drafter)
    drafter.close()
    return out


def text(target: ToyTarget, drafter: Any) -> list[int]:
    return decoded(target, drafter, PROMPT, 8, Budget(4, 8, 2), ignore_eos=True)[0]


@pytest.mark.parametrize("sample", [SAMPLE_SIZE, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mutated_head_drafts_or_is_refused(layout: str, sample: int | None, tmp_path: Path) -> None:
    (original := tmp_path / "original").mkdir()
    target = LAYOUTS[layout](original)
    plain = text(target, NoDrafter())
    assert text_with(original, target) == (None if layout == "confidence" else plain)
    found = mutations(original)
    chosen = found if sample is None else random.Random(SEED).sample(found, min(sample, len(found)))
    outcomes = set[bool | str]()
    for name, mutate in chosen:
        shutil.copytree(original, mutated := tmp_path / "mutated")
        mutate(mutated)
        try:
            outcomes.add(text_with(mutated, target) in (plain, None))
        except PacelineError as error:
            outcomes.add(str(mutated) in str(error) or "its first" in str(error) or name)
        except Exception as error:
            pytest.fail(f"{name}: {type(error).__name__}: {error}")
        shutil.rmtree(mutated)
    assert outcomes == {True}
