"""The models of a bench and their pass costs."""

from __future__ import annotations

from pathlib import Path

from paceline.api import LLM
from paceline.bench.models import LoadedModels
from paceline.config import Drafting
from paceline.speculative.policy.cost_model import DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy

DRAFTING = Drafting(drafters=("model",), policy="rate")
ALONE = Drafting(drafters=("lookup",), policy="rate")


def _costs(llm: LLM) -> DecodingCosts:
    assert isinstance(llm.policy, GoodputPolicy)
    return llm.policy.costs


def _draft(llm: LLM) -> PassCosts:
    cost = _costs(llm).draft
    assert cost is not None
    return cost


def test_each_draft_has_costs_of_its_own_and_all_are_kept(models: Path, however_busy: None) -> None:
    """All share the target's costs."""
    target, draft = models / "target.gguf", models / "draft.gguf"
    with LoadedModels({"target": target, "threads": 1}) as loaded:
        alone, one, other = loaded.llm(ALONE, None), loaded.llm(DRAFTING, draft), loaded.llm(DRAFTING, target)
        assert len({id(_costs(llm).target) for llm in (alone, one, other)}) == 1
        for llm, seconds in ((one, 2e-4), (other, 3e-4)):
            assert llm.draft is not None
            assert llm.draft.on_forward is not None
            for _ in range(3):
                llm.draft.on_forward(99, 16, seconds)
        for _ in range(3):
            _costs(alone).target.update(99, 16, 1e-4)
        assert [_draft(llm).seconds(99, 16) for llm in (one, other)] == [2e-4, 3e-4]
    with LoadedModels({"target": target, "threads": 1}) as again:
        for path, seconds in ((draft, 2e-4), (target, 3e-4)):
            llm = again.llm(DRAFTING, path)
            assert _draft(llm).seconds(99, 16) == seconds
            assert 99 in _costs(llm).target.rows
