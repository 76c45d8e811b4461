"""Draft heads in GGUF files draft as the same heads in folders do, and as llama.cpp's own graphs compute."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from gguf_architectures import write_architecture
from gguf_files import rewritten, write_llama
from head_layouts import load_reference, require_agreement
from head_sidecars import (
    BLOCK_HEADS,
    EAGLE3_HEADS,
    VOCAB,
    WIDTH,
    random_head,
    write_reference,
    write_sidecar,
)
from llama_heads import llama_head
from paceline.backends.interface import Backend
from paceline.backends.llama_cpp import mtp_sidecar
from paceline.backends.registry import open_engine
from paceline.backends.toy import ToyTarget
from paceline.drafter_table import DRAFT, HEADS
from paceline.drafts import kind_of, open_draft, open_head
from paceline.heads.decoder import LayerShape
from paceline.heads.files import HeadFiles, head_config
from paceline.heads.target import HeadTarget
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import metadata_field
from paceline.speculative.errors import ModelError, PacelineError
from paceline.speculative.interfaces import NO_OUTPUTS
from paceline.speculative.tree import chain
from rows import table

LAYERS = 3
TOLERANCE, SAMPLE_SIZE = 1e-4, 60


@pytest.fixture(scope="module")
def target_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("target") / "m.gguf", width=WIDTH, layers=LAYERS)


@pytest.fixture(scope="module")
def target(target_file: Path) -> Iterator[Backend]:
    exact = {"kernels": False, "cache_type": "f32", "flash_attention": False}
    with closing(open_engine(target_file, n_ctx=64, threads=1, **exact)) as engine:
        yield engine


N = 9
RNG = np.random.default_rng(1)
FEATURES = RNG.normal(size=(N, LAYERS * WIDTH)).astype(np.float32)
TOKENS = RNG.integers(0, VOCAB, N + 1).tolist()


def logits_of(head: Any, drafted: Sequence[int]) -> np.ndarray:
    """Return the logits behind the text and behind drafted tokens."""
    session, tree = head.open(), chain(list(drafted), "x")
    session.observe(0, FEATURES.reshape(N, LAYERS, WIDTH))
    session.extend(TOKENS)
    return table(head.forward([(session, tree)], NO_OUTPUTS)[0], tree)


def require_equal(ours: np.ndarray, theirs: Any) -> None:
    theirs = np.array(theirs)
    assert (np.isfinite(ours) == np.isfinite(theirs)).all()
    finite = np.isfinite(ours)
    assert np.abs(ours[finite] - theirs[finite]).max() < TOLERANCE


def require_both_equal(file: Path, target: Any, drafted: list[int], expected: Any) -> None:
    """We compute this, and so does the context that llama.cpp has for targets on a GPU."""
    head = open_head(file, target)
    require_equal(logits_of(head, drafted), expected)
    assert open_draft(file, target, {}).description == head.description
    kind: Any = mtp_sidecar.kind_of_draft(head)
    with closing(kind(target, head)) as moved:
        assert (moved.caps.max_branches == 1) == bool(head.config.markov)
        require_equal(logits_of(moved, drafted), expected)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", [*EAGLE3_HEADS, *BLOCK_HEADS])
def test_a_published_head_in_a_gguf_file_computes_what_its_authors_do(
    name: str, kind: str, tmp_path: Path
) -> None:
    reference = load_reference(name)
    file = write_reference(tmp_path / "head.gguf", reference, GGMLQuantizationType[kind])
    head = require_agreement(file, reference)
    assert kind_of(file) == HEADS[head.kind]


SEES_ALL = (1 << 30,) * 2
DSPARK: dict[str, Any] = {"markov": "vanilla", "markov_rank": 32, "from_root": True}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("eagle3", {}),
    ("eagle3", {"norm_before_residual": True}),
    ("eagle3", {"norm_before_fc": True}),
    ("block", {}),
    ("block", {"causal_windows": True, "windows": SEES_ALL}),
    ("block", {"markov": "vanilla", "markov_rank": 8}),
    ("block", DSPARK),
    ("block", {"embedding_scale": 3.0}),
]


@pytest.mark.parametrize("lends", [False, True])
@pytest.mark.parametrize("drafts_all", [False, True])
@pytest.mark.parametrize(("kind", "variant"), VARIANTS)
def test_a_head_computes_what_llama_cpps_graph_does(
    kind: str,
    variant: dict[str, Any],
    drafts_all: bool,
    lends: bool,
    target: Backend,
    target_file: Path,
    tmp_path: Path,
) -> None:
    config, weights = random_head(kind, drafts_all=drafts_all, lends=lends, **variant)
    scale = {"embedding_scale": config.embedding_scale} if config.embedding_scale != 1.0 else {}
    file = write_sidecar(tmp_path / "h.gguf", replace(config, windows=()), weights, **scale)
    drafted, unread = [5, 200, 31], int(not config.from_root)
    with llama_head(file, target_file, WIDTH) as theirs:
        if kind == "eagle3":
            expected = theirs.eagle3(FEATURES, TOKENS, drafted)
        else:
            causal, n = config.causal_windows, config.depth + unread
            expected = theirs.block(FEATURES, TOKENS[-1], config.mask_token, n, causal=causal)[unread:]
            drafted = [int(row.argmax()) for row in expected[:-1]]
    require_both_equal(file, target, drafted, expected)


def llama3_factors(shape: LayerShape, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """Return the rotary factors that llama.cpp's converter writes."""
    out = []
    for i in range(0, shape.head_dim, 2):
        wavelength = 2 * math.pi * shape.rope_theta ** (i / shape.head_dim)
        smooth = (original / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        out.append(
            1.0 if wavelength < original / high else factor if wavelength > original / low else between
        )
    return np.array(out, np.float32)


def test_rotary_factors_of_llama3_are_those_of_the_file(
    target: Backend, target_file: Path, tmp_path: Path
) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    config, weights = random_head("eagle3", layer={"rope_scaling": scaling})
    factors = llama3_factors(config.shape, 8.0, 1.0, 4.0, 64)
    assert {1.0, 8.0} < {*factors.tolist()}
    more = weights | {"rope_freqs.weight": factors}
    found = scaled_logits(write_sidecar(tmp_path / "h.gguf", config, more), target, target_file)
    require_equal(found, logits_of(HeadTarget(HeadFiles(tmp_path, config, weights, None), target), [3, 4]))


def scaled_logits(file: Path, target: Backend, target_file: Path) -> np.ndarray:
    """The logits of an EAGLE-3, which llama.cpp computes, too."""
    found = logits_of(open_head(file, target), [3, 4])
    with llama_head(file, target_file, WIDTH) as theirs:
        require_equal(found, theirs.eagle3(FEATURES, TOKENS, [3, 4]))
    return found


def test_linear_scaling_of_positions_is_that_of_the_file(
    target: Backend, target_file: Path, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    scaled_logits(write_sidecar(tmp_path / "h.gguf", *random_head("eagle3"), **keys), target, target_file)


def test_the_header_tells_what_the_head_is_for(tmp_path: Path) -> None:
    config, weights = random_head("block", drafts_all=False, **DSPARK)
    file = write_sidecar(tmp_path / "h.gguf", config, weights)
    found = head_config(file)
    assert found is not None
    shape = replace(config.shape, eps=float(np.float32(config.shape.eps)))
    assert found == replace(config, shape=shape)


Change = Callable[[dict[str, bytes], dict[str, Any]], object]


def renamed_tensor(old: str, new: str) -> Change:
    return lambda _fields, parts: parts.update({new: replace(parts.pop(old), name=new)})


def changed_field(key: str, value: str | int | float) -> Change:
    return lambda fields, _parts: fields.update({key: metadata_field(key, value)})


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("block", renamed_tensor("fc.weight", "selector_hidden.weight"), "not know: it has selector_hidden"),
        (
            "block",
            renamed_tensor("blk.0.attn_norm.weight", "blk.0.attn_sinks.weight"),
            "has blk.0.attn_sinks",
        ),
        ("block", changed_field("dflash.attention.value_scale", 0.5), "attention.value_scale is 0.5"),
        ("block", changed_field("dflash.hidden_act", "gelu"), "is a variant of dflash .* hidden_act is gelu"),
        ("eagle3", changed_field("eagle3.rope.dimension_count", 12), "rope.dimension_count is 12"),
        ("eagle3", changed_field("eagle3.rope.scaling.type", "yarn"), "rope_type .* in the header is 'yarn'"),
        ("block", lambda fields, _: fields.pop("dflash.block_size"), "block_size in the header is missing"),
        ("eagle3", lambda fields, _: fields.pop("eagle3.embedding_length"), "hidden_size in .* is missing"),
        ("eagle3", changed_field("eagle3.attention.head_count", "4"), "num_attention_heads in .* whole num"),
        ("eagle3", changed_field("eagle3.attention.head_count", 16), "its weights do not fit"),
        ("eagle3", lambda _, parts: parts.pop("blk.0.attn_v.weight"), "has no weights .*v_proj.* incomplete"),
        ("block", lambda _, parts: parts.pop("d2t"), r"drafts 100 tokens, and .* \(d2t\)"),
        ("eagle3", renamed_tensor("fc.weight", "d2t"), "its draft vocabulary is none of the target's tokens"),
    ],
)
def test_a_damaged_or_unknown_file_is_refused(
    kind: str, change: Change, message: str, target: Backend, tmp_path: Path
) -> None:
    config, weights = random_head(kind, drafts_all=False)
    good = write_sidecar(tmp_path / "good.gguf", config, weights)
    bad = rewritten(good, tmp_path / "bad.gguf", change)
    with pytest.raises(ModelError, match=message) as caught:
        open_draft(bad, target, {})
    assert str(caught.value).startswith(f"{bad}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [3, 100, 3000, -1000])
def test_a_file_that_was_cut_short_is_refused(size: int, target: Backend, tmp_path: Path) -> None:
    file = write_sidecar(tmp_path / "h.gguf", *random_head("eagle3"))
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelError, match=f"^{file}: "):
        open_draft(file, target, {})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ToyTarget(VOCAB, width=32, layers=3), "which has hidden states of width 64, not 32"),
        (ToyTarget(VOCAB, width=80, layers=3), "is for hidden states of width 64, and the toy model has 80"),
        (ToyTarget(200, width=64, layers=3), "which has 258 tokens, not 200"),
        (ToyTarget(VOCAB, width=64, layers=1), "reads the layers 0, 1, 2 of its target, which has only 1"),
    ],
)
def test_another_target_is_refused(other: ToyTarget, message: str, tmp_path: Path) -> None:
    for kind in ("eagle3", "block"):
        file = write_sidecar(tmp_path / "h.gguf", *random_head(kind))
        with pytest.raises(ModelError, match=message):
            open_draft(file, other, {})


def test_what_else_is_in_gguf_files(tmp_path: Path) -> None:
    """A whole model, which may draft; Gemma 4's assistant, a head that only llama.cpp computes."""
    assert kind_of(write_architecture(tmp_path / "m.gguf", "qwen35", next_token_heads=1)) == DRAFT
    assert kind_of(write_llama(tmp_path / "a.gguf", arch="gemma4-assistant")) == HEADS["mtp"]


def test_a_head_is_no_target(tmp_path: Path) -> None:
    for kind in ("eagle3", "block"):
        file = write_sidecar(tmp_path / "h.gguf", *random_head(kind))
        with pytest.raises(ModelError, match=r"is a draft head .* give it by -md"):
            open_engine(file, n_ctx=64, threads=1)


def mutations(file: Path) -> Iterator[tuple[str, Change]]:
    """Yield changes of each key and each tensor."""

    def change_list(key: str, numbers: list[int]) -> Change:
        return lambda fields, _parts: fields.update({key: metadata_field(key, numbers)})

    def change_tensor(name: str, **values: Any) -> Change:
        return lambda _fields, parts: parts.update({name: replace(parts[name], **values)})

    def drop(key: str, place: int) -> Change:
        return lambda *both: both[place].pop(key)

    read = GGUFFile(file)
    for key in read.fields:
        yield f"without {key}", drop(key, 0)
        for value in (-1.5, 0, 1, 3, 1 << 31, "x", "", True):
            yield f"{key} = {value!r}", changed_field(key, value)
        for numbers in ([], [-1, 9]):
            yield f"{key} = {numbers}", change_list(key, numbers)
    for name, tensor in read.tensors.items():
        yield f"without {name}", drop(name, 1)
        yield f"{name} renamed", renamed_tensor(name, f"{name}x")
        yield f"{name} of another type", change_tensor(name, type=26)
        for dims in ((), (tensor.elements,), tensor.shape[::-1], (*tensor.shape, 1), (0,)):
            yield f"{name} of {dims}", change_tensor(name, dims=dims)


@pytest.mark.parametrize("sample", [SAMPLE_SIZE, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["eagle3", "block"])
def test_a_mutated_file_drafts_or_is_refused(kind: str, sample: int | None, tmp_path: Path) -> None:
    settings: dict[str, Any] = DSPARK | {"windows": (8, 0)} if kind == "block" else {}
    config, weights = random_head(kind, drafts_all=False, **settings)
    good = write_sidecar(tmp_path / "good.gguf", config, weights)
    toy_target = ToyTarget(VOCAB, width=WIDTH, layers=LAYERS)
    outcomes = set[bool | str]()
    found = list(mutations(good))
    for what, change in found if sample is None else random.Random(7).sample(found, sample):
        bad = rewritten(good, tmp_path / "bad.gguf", change)
        try:
            if kind_of(bad) != DRAFT:
                logits_of(open_draft(bad, toy_target, {}), [3])
            outcomes.add(True)
        except PacelineError as error:
            outcomes.add(str(bad) not in str(error) and what)
        except Exception as error:
            pytest.fail(f"{what}: {type(error).__name__}: {error}")
    assert outcomes == {True, False}
