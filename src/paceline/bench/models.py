"""The models of a bench: one target and the draft models tried with it, each loaded once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.config import Drafting
from paceline.drafter_factory import Corpora, make_drafter, make_policy
from paceline.loading import load, open_draft
from paceline.models.names import is_view
from paceline.profiling.pass_costs import costs_of, refresh, save, to_stderr
from paceline.speculative.policy.cost_model import DecodingCosts


class LoadedModels:
    """The owner of the models of a bench. given: arguments of `load` without the drafters.

    A draft model is loaded at its first use, so that memory can be attributed: `memory` is resident bytes
    without draft models, `added` those of each draft model."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        excluded = ("target", "draft", "corpora")
        self._given = {name: value for name, value in given.items() if name not in excluded}
        self.plain = load(given["target"], drafters="none", **self._given)
        self._corpora = Corpora.find(given.get("corpora", ()), self.plain.target.vocab)
        self.memory = 0
        self.added: dict[Path, int] = {}
        self._drafts: dict[Path, Backend] = {}
        self._costs: dict[Path | None, DecodingCosts] = {}  # by draft

    def llm(self, drafting: Drafting, draft: Path | None) -> LLM:
        """Return the target with the drafters of `drafting`. Raises VocabError and UsageError as `load`
        does."""
        small = self._small(draft)
        costs = self._measured(draft) if drafting.policy == "rate" else None
        drafter, drafting = make_drafter(drafting, self.plain.target, small, self._corpora, costs, to_stderr)
        policy = make_policy(drafting, costs)
        return LLM(self.plain.target, drafter, drafting, small, corpora=self._corpora, policy=policy)

    def _measured(self, draft: Path | None) -> DecodingCosts:
        """Return the pass costs with this draft model. All methods update them and share the target's."""
        if draft not in self._costs:
            small = self._small(draft)
            costs = costs_of(self.plain.target, small)
            for other in self._costs.values():
                costs.target = other.target
            refresh(costs, small)
            self._costs[draft] = costs
        return self._costs[draft]

    def _small(self, path: Path | None) -> Backend | None:
        if path is None:
            return None
        if path not in self._drafts:
            before = resident()
            settings = self._given | {"n_ctx": self.plain.target.caps.n_ctx, "exact_greedy": False}
            self._drafts[path] = (
                open_draft(path, self.plain.target, settings)
                if is_view(path)
                else load(path, drafters="none", **settings).target
            )
            self.added[path] = max(0, resident() - before)
        return self._drafts[path]

    def close(self) -> None:
        for path, costs in self._costs.items():
            save(self.plain.target, self._small(path), costs)
        for draft in self._drafts.values():
            draft.close()
        self.plain.close()

    def __enter__(self) -> LoadedModels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resident() -> int:
    """Return the resident bytes of this process, mapped parts of model files included."""
    return int(psutil.Process().memory_info().rss)
