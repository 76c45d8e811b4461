"""The law of equal rows: a row's logits have the same bits whatever else is in the pass.

With kernels of our own, the number and the order of rows, trees, other sessions, chunks of a prompt and
threads change no bit. Each row of a random program is compared with plain decoding: one session, one token a
pass, one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from architectures import write_bloom, write_gemma2, write_gpt_oss
from gguf_files import write_llama
from paceline.backends.llama_cpp import LlamaTarget, gate, kernels
from paceline.backends.llama_cpp.binding import llama_cpp
from paceline.backends.logit_drift import teacher_forced_logits
from programs import CONTEXT, SESSIONS, Action, differences, programs, running
from quantised import quantised

THREADS = 8
ROTATED = {"MUL_MAT"}  # what goes into a quantised cache, by llama.cpp's own products
EXAMPLES = 10  # programs a model


@dataclass(frozen=True)
class Case:
    """A model's file, in a type, and the type of its cache."""

    write: Callable[[Path], Path]
    kind: Type = Type.F32
    cache_type: str = "f16"

    def file(self, folder: Path) -> Path:
        source = folder / f"{self.write.__name__}.gguf"
        if not source.exists():
            self.write(source)
        out = folder / f"{self.write.__name__}-{self.kind.name}.gguf"
        return out if out.exists() else quantised(source, out, self.kind)

    def __str__(self) -> str:
        return f"{self.write.__name__}-{self.kind.name}-{self.cache_type}"


def llama(path: Path) -> Path:
    """Rows of whole blocks of every type; two heads of queries for one of keys."""
    return write_llama(path, width=256, layers=2, spread=0.2)


def one_kv_head(path: Path) -> Path:
    return write_llama(path, heads=8, kv_heads=1)


def experts(path: Path) -> Path:
    """Write a model with four experts, two for each token."""
    return write_llama(path, experts=4, metadata={"llama.expert_used_count": 2})


def odd(path: Path) -> Path:
    """Numbers of rows and of columns that fill no register, and matrices of one row and of one column."""
    return write_llama(path, width=36, inner=1, heads=2, kv_heads=1, extra_tokens=("ab",))


def narrow(path: Path) -> Path:
    """Write a model with one block a row and matrices of two rows."""
    return write_llama(path, width=32, inner=32, heads=16, kv_heads=1, extra_tokens=("ab",))


def one_expert(path: Path) -> Path:
    """Write a model whose router has one row."""
    return write_llama(path, width=32, inner=96, heads=2, kv_heads=2, experts=1)


CACHES = ("f16", "q8_0", "bf16", "f32")
SMALL = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.IQ4_NL, Type.MXFP4)
LARGE = (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS)
TYPES = (Type.F32, Type.F16, Type.BF16, *SMALL, *LARGE)
CASES = [
    *(Case(llama, kind, CACHES[i % len(CACHES)]) for i, kind in enumerate(TYPES)),
    *(Case(llama, Type.Q4_K, cache_type) for cache_type in CACHES),
    *(Case(experts, kind) for kind in (Type.F16, Type.Q4_0, Type.MXFP4)),
    *(Case(odd, kind, "bf16") for kind in (Type.F32, Type.F16, Type.BF16)),
    *(Case(narrow, kind, "f32") for kind in (Type.F16, Type.Q8_0, Type.IQ4_NL)),
    Case(one_expert, Type.Q5_1),
    Case(one_kv_head, Type.Q8_0),
    Case(write_gemma2),
    Case(write_gemma2, Type.Q4_1, "f32"),
    Case(write_gpt_oss, Type.MXFP4),
    Case(write_gpt_oss, Type.Q8_0, "bf16"),
    Case(write_bloom),
    Case(write_bloom, Type.Q5_0, "f32"),
]


@dataclass(frozen=True)
class Pair:
    """A target for programs, and one for plain decoding."""

    target: Any
    plain: Any


@pytest.fixture(scope="module", autouse=True)
def entered() -> Iterator[None]:
    """Files of these architectures are not tried first: they are known to be sound."""
    if not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "in_load_subprocess", True)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("equal_rows")


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request: pytest.FixtureRequest, folder: Path) -> Iterator[Pair]:
    case: Case = request.param
    given: dict[str, Any] = {"n_ctx": CONTEXT, "flash_attention": True, "cache_type": case.cache_type}
    path = case.file(folder)
    with (
        closing(LlamaTarget(path, sessions=SESSIONS, **given)) as target,
        closing(LlamaTarget(path, **given)) as plain,
    ):
        yield Pair(target, plain)


@given(program=programs, threads=st.integers(1, THREADS))
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_row_of_a_program_has_the_bits_of_plain_decoding(
    pair: Pair, program: list[Action], threads: int
) -> None:
    llama_cpp().llama_set_n_threads(pair.target.context, threads, threads)
    rows: list[Any] = []
    with running(pair.target) as machine:
        left = set(kernels.foreign_operations(lambda: rows.extend(machine.run(program))))
    assert differences(rows, pair.plain) == []
    by_amx = {"MUL_MAT", "MUL_MAT_ID"} if "by AMX" in kernels.load_kernels().path else set()
    assert left <= by_amx | (ROTATED if pair.plain.settings["cache_type"] == "q8_0" else set())


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_the_kernels_compute_the_logits_of_ggml(folder: Path, kind: Type) -> None:
    rows = []
    for on in (True, False):
        given: dict[str, Any] = {"flash_attention": True, "cache_type": "f32", "kernels": on}
        with closing(LlamaTarget(Case(llama, kind).file(folder), n_ctx=CONTEXT, **given)) as target:
            rows.append(teacher_forced_logits(target, [7, 3, 9, 3, 7, 1, 0, 2, 11, 5, 8, 8, 4] * 3, 1, 8))
    assert (rows[0] - rows[1]).std() < (0.2 if kind in LARGE else 0.1) * rows[1].std()


def test_operations_that_stay_with_ggml_are_reported(folder: Path) -> None:
    path = Case(llama, Type.F16).file(folder)
    with closing(LlamaTarget(path, n_ctx=CONTEXT, flash_attention=False)) as target:
        with running(target) as machine:
            assert "MUL_MAT" in kernels.foreign_operations(lambda: machine.run([]))
        assert not target.caps.exact
