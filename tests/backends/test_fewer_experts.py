"""Mixtures with fewer experts a token: as a draft of themselves, and as another target."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from gguf_architectures import write_architecture
from gguf_files import rewritten, write_llama
from hf_models import DEVICE, folder_of, model_of
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.views import ModelView
from paceline.bench.provenance import model as describe
from paceline.models.headers.gguf_writer import metadata_field
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, chain
from rows import text_rows

TEXT = [7, 3, 9, 3, 7, 1, 20, 2, 11, 5]
USED = "qwen3moe.expert_used_count"  # 2 of 4


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architecture(tmp_path_factory.mktemp("experts") / "moe.gguf", "qwen3moe")


def last_row(target: Any, tokens: Sequence[int] = TEXT) -> np.ndarray:
    target.forget()
    return text_rows(target, tokens)[0]  # type: ignore[no-any-return]


def with_one(path: Path, out: Path) -> Path:
    """A copy of the file that says one expert."""
    return rewritten(path, out, lambda fields, _: fields.update({USED: metadata_field(USED, 1)}))


def test_fewer_experts_are_those_of_a_file_that_says_so(mixture: Path, tmp_path: Path) -> None:
    with (
        closing(LlamaTarget(mixture, n_ctx=64)) as whole,
        closing(LlamaTarget(with_one(mixture, tmp_path / "one.gguf"), n_ctx=64)) as expected,
        closing(LlamaTarget(mixture, n_ctx=64, experts=1)) as target,
    ):
        assert np.array_equal(last_row(target), last_row(expected))
        assert not np.array_equal(last_row(target), last_row(whole))
        assert target.modification == "with 1 experts a token instead of 2"
        assert describe(target)["alters"] == target.modification
        assert "alters" not in describe(whole)
        assert target.identity() == {**whole.identity(), "experts": 1}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_loads_of_one_file_may_be_closed_in_any_order(mixture: Path, order: tuple[int, ...]) -> None:
    """They share weights that the kernels have laid out."""
    targets = [LlamaTarget(mixture, n_ctx=64, experts=n) for n in (0, 1, 1)]
    rows = [last_row(target) for target in targets]
    for n, i in enumerate(order):
        targets[i].close()
        for left in order[n + 1 :]:
            assert np.array_equal(last_row(targets[left]), rows[left])
    with closing(LlamaTarget(mixture, n_ctx=64)) as again:
        assert np.array_equal(last_row(again), rows[0])


def test_a_mixture_drafts_for_itself_without_changing_its_text(mixture: Path) -> None:
    with paceline.load(mixture, drafters="none", threads=1) as llm:
        plain = llm.generate(TEXT, max_tokens=40, ignore_eos=True).tokens
    with paceline.load(mixture, "view:experts=1", "model", threads=1, policy="fixed", n_draft=3) as llm:
        drafted = llm.generate(TEXT, max_tokens=40, ignore_eos=True)
        assert drafted.tokens == plain
        assert 0 < drafted.stats.accepted < drafted.stats.drafted
    with paceline.load(mixture, lossy="experts=1", drafters="none", threads=1) as llm:
        assert llm.generate(TEXT, max_tokens=40, ignore_eos=True).tokens != plain


def test_numbers_that_cannot_be_are_refused(mixture: Path, tmp_path: Path) -> None:
    for n in (2, 5):
        with pytest.raises(UsageError, match=rf"experts={n}: a token uses 2 of 4"):
            LlamaTarget(mixture, experts=n)
    with pytest.raises(UsageError, match="is no mixture of experts"):
        LlamaTarget(write_llama(tmp_path / "dense.gguf"), experts=1)
    with closing(LlamaTarget(mixture, n_ctx=64)) as target:
        for view in (ModelView(experts=2), ModelView(experts=3)):
            with pytest.raises(UsageError, match="has no more experts"):
                target.view(view)
    for text in ("experts", "experts=0", "experts=1,x=2"):
        with pytest.raises(UsageError, match="write experts=N"):
            paceline.load(mixture, lossy=text)
    with pytest.raises(UsageError, match="is no mixture"):
        paceline.load("toy:", lossy="experts=1")


def test_a_file_without_a_usable_key_says_which_it_has(mixture: Path, tmp_path: Path) -> None:
    def per_layer(fields: dict[str, bytes], _: Any) -> None:
        fields[USED] = metadata_field(USED, [2, 1])

    def without(fields: dict[str, bytes], _: Any) -> None:
        del fields[USED]

    for change, reason in ((per_layer, "has a number for each layer"), (without, "is missing")):
        path = rewritten(mixture, tmp_path / f"{change.__name__}.gguf", change)
        with pytest.raises(
            UsageError, match=rf"{USED} {reason}; its keys of experts are .*qwen3moe.expert_count"
        ):
            LlamaTarget(path, experts=1)


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_a_transformers_model_shares_all_but_its_routers(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from paceline.backends.transformers.target import HfTarget

    path = folder_of(kind, tmp_path)
    with (
        closing(HfTarget(path, n_ctx=64, device=DEVICE, sessions=2)) as whole,
        closing(HfTarget(path, n_ctx=64, device=DEVICE, experts=1)) as target,
        closing(HfTarget.around(model_of(kind, num_experts_per_tok=1))) as expected,
    ):
        before = last_row(whole)
        view = whole.view(ModelView(experts=1))
        assert np.allclose(last_row(view), last_row(expected), atol=1e-4)
        assert np.allclose(last_row(target), last_row(expected), atol=1e-4)
        assert np.array_equal(last_row(whole), before)
        assert not np.allclose(last_row(view), before, atol=1e-2)
        assert view.modification == target.modification == "with 1 experts a token instead of 2"
        session = whole.open()
        session.extend(TEXT)
        whole.forward([(session, session.pending_tokens)], RequiredOutputs())
        beside = view.open(session)
        beside.extend(TEXT)
        assert beside.pending_tokens == 0  # it reads the whole model's cache
        view.forward([(beside, chain([4, 5], "test"))], RequiredOutputs())
        row = np.array(whole.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0))
        assert np.allclose(row, before, atol=1e-4)
        with pytest.raises(UsageError, match="has no more experts"):
            whole.view(ModelView(experts=9))
    with pytest.raises(UsageError, match="is no mixture"):
        HfTarget(folder_of("llama", tmp_path), n_ctx=64, device=DEVICE, experts=1)
