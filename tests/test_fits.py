"""The table of what fits what is true: models of each kind load, or are refused with the table's reason."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import paceline
from gguf_architectures import write_architecture
from paceline.backends.interface import SupportsExits
from paceline.backends.registry import open_engine
from paceline.drafts import header_traits, traits_of
from paceline.fits import (
    ABSENT,
    DRAFT_KINDS,
    EXITS,
    EXPERT_VIEW,
    LAYER_VIEW,
    LLAMA_CPP,
    LOSSY_PREFILL,
    NO_MODEL,
    TOY,
    TRANSFORMERS,
    TargetTraits,
    what_fits,
    why_not,
)
from paceline.speculative.errors import UsageError

VIEWS = {LAYER_VIEW: "view:exit=1", EXPERT_VIEW: "view:experts=1"}
COLUMNS = {
    "GGUF": TargetTraits(LLAMA_CPP, "free", is_mixture=False, is_windowed=False),
    "GGUF, mixture": TargetTraits(LLAMA_CPP, "free", is_mixture=True, is_windowed=False),
    "GGUF, recurrent": TargetTraits(LLAMA_CPP, "restore", is_mixture=False, is_windowed=False),
    "transformers": TargetTraits(TRANSFORMERS, "free", is_mixture=False, is_windowed=False),
    "transformers, recurrent": TargetTraits(
        TRANSFORMERS, "restore", is_mixture=False, is_windowed=False, mtp=ABSENT
    ),
}


def test_views_load_or_are_refused_with_the_tables_reason(target_kind: tuple[str, str]) -> None:
    target = target_kind[1]
    for kind, view in VIEWS.items():
        reason = why_not(kind, header_traits(Path(target)))
        if not reason:
            with paceline.load(target, view, "model", threads=1, n_ctx=64) as llm:
                assert llm.generate([5, 6, 7], max_tokens=6, ignore_eos=True).n_tokens == 6
            continue
        # The backend's own reason names its numbers.
        expected = "mixture of experts" if "mixture" in reason else reason.partition(":")[0]
        with pytest.raises(UsageError, match=expected.replace("(", ".").replace(")", ".")):
            paceline.load(target, view, "model", threads=1, n_ctx=64)


def test_exits_open_where_the_table_says(target_kind: tuple[str, str]) -> None:
    with closing(open_engine(Path(target_kind[1]), n_ctx=64, threads=1)) as engine:
        assert isinstance(engine, SupportsExits)
        reasons = {why_not(kind, traits_of(engine)) for kind in EXITS}
        if reasons == {""}:
            engine.first_layers(1).close()
        else:
            with pytest.raises((UsageError, AssertionError)):
                engine.first_layers(1)


def test_copies_and_prompts_follow_the_table(target_kind: tuple[str, str]) -> None:
    with paceline.load(target_kind[1], None, "lookup", threads=1, n_ctx=64) as llm:
        traits = traits_of(llm.target)
        assert why_not(NO_MODEL, traits) == ""
        assert header_traits(Path(target_kind[1])).rollback == traits.rollback
        if llm.target.caps.sparse_prompts:
            assert why_not(LOSSY_PREFILL, traits) == ""


def _architecture(name: str) -> Callable[[Path, Any], str]:
    return lambda folder, _: str(write_architecture(folder / f"{name}.gguf", name))


def _transformers(kind: str) -> Callable[[Path, Any], str]:
    def make(folder: Path, _: Any) -> str:
        pytest.importorskip("transformers")
        from hf_models import folder_of

        return f"hf:{folder_of(kind, folder / kind)}"

    return make


KINDS: dict[str, Callable[[Path, Any], str]] = {
    "toy": lambda *_: "toy:layers=3",
    "dense": lambda _, models: str(models / "target.gguf"),
    "mixture": _architecture("qwen3moe"),
    "recurrent": _architecture("mamba2"),
    "transformers": _transformers("llama"),
    "transformers, recurrent": _transformers("falcon_h1"),
}


@pytest.fixture(scope="module", params=KINDS)
def target_kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, models: Path
) -> tuple[str, str]:
    return request.param, KINDS[request.param](tmp_path_factory.mktemp("target"), models)


def test_nothing_fits_a_target_that_cannot_roll_back() -> None:
    assert all("rolled back" in row["reason"] for row in what_fits(TargetTraits(LLAMA_CPP, "none")))


def test_unknown_traits_exclude_nothing_by_themselves() -> None:
    assert {row["kind"] for row in what_fits(TargetTraits(LLAMA_CPP)) if row["reason"]} == {LAYER_VIEW}
    assert why_not(LAYER_VIEW, TargetTraits(TOY)) == "views are for GGUF and transformers models"


def test_docs_have_the_table() -> None:
    docs = Path(__file__).parents[1] / "docs" / "pairs.md"
    rows = [f"| draft | drafters | {' | '.join(COLUMNS)} |", "|---|---|" + "---|" * len(COLUMNS)]
    fits = {name: {row["kind"]: row for row in what_fits(traits)} for name, traits in COLUMNS.items()}
    for kind in DRAFT_KINDS:
        cells = ["no" if column[kind]["reason"] else "yes" for column in fits.values()]
        drafters = ", ".join(fits["GGUF"][kind]["drafters"])
        rows.append(f"| {kind} | {drafters} | {' | '.join(cells)} |")
    assert "\n".join(rows) in docs.read_text()
