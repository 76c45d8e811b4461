"""The models of a bench and their pass costs."""

from __future__ import annotations

from pathlib import Path

from paceline.api import LLM
from paceline.bench.method import parse
from paceline.bench.models import LoadedModels
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.goodput import GoodputPolicy

ALONE, DRAFTED = (parse(f"{name}:policy=rate", {}) for name in ("lookup", "model"))


def _costs(llm: LLM) -> DecodingCosts:
    assert isinstance(llm.policy, GoodputPolicy)
    return llm.policy.costs


def test_methods_share_the_targets_costs_and_all_are_kept(models: Path, however_busy: None) -> None:
    given, draft = {"target": models / "target.gguf", "threads": 1}, models / "draft.gguf"
    with LoadedModels(given, draft) as loaded:
        alone, drafted = loaded.llm(ALONE), loaded.llm(DRAFTED)
        assert alone.draft is None
        assert loaded.draft_memory > 0
        assert _costs(alone).target is _costs(drafted).target
        assert drafted.draft is not None
        assert drafted.draft.on_forward is not None
        for _ in range(3):
            drafted.draft.on_forward(99, 16, 2e-4)
            _costs(alone).target.update(99, 16, 1e-4)
    with LoadedModels(given, draft) as again:
        costs = _costs(again.llm(DRAFTED))
        assert costs.draft is not None
        assert costs.draft.seconds(99, 16) == 2e-4
        assert 99 in costs.target.rows
