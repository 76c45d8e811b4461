"""The models of a bench."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.bench.method import Method
from paceline.drafter_factory import Corpora, make_drafter, make_policy
from paceline.loading import load, open_draft
from paceline.models.names import is_view
from paceline.profiling.pass_costs import costs_of, refresh, save, to_stderr
from paceline.speculative.policy.cost_model import DecodingCosts


class LoadedModels:
    """The owner of a bench's target and draft model, each loaded once.

    given: arguments of `load`. The draft model is loaded at its first use, so that memory can be attributed:
    `memory` is resident bytes without it, `draft_memory` what loading it added.
    keep_prompts: see BenchPlan."""

    def __init__(
        self, given: Mapping[str, Any], draft: Path | None = None, *, keep_prompts: bool = False
    ) -> None:
        excluded = ("target", "draft", "corpora")
        self._given = {name: value for name, value in given.items() if name not in excluded}
        self.plain = load(given["target"], drafters="none", **self._given)
        self._corpora = Corpora.find(given.get("corpora", ()), self.plain.target.vocab)
        self._draft_path, self.keep_prompts = draft, keep_prompts
        self._draft: Backend | None = None
        self._costs: dict[bool, DecodingCosts] = {}  # without and with the draft model
        self.memory = self.draft_memory = 0

    def llm(self, method: Method) -> LLM:
        """Return the target with the drafters of a method. Raises VocabError and UsageError as `load`
        does."""
        drafting, target = method.drafting, self.plain.target
        draft = self._load_draft(self._draft_path) if self._draft_path and method.uses_draft else None
        costs = self._pass_costs(draft) if drafting.policy == "rate" else None
        drafter, drafting = make_drafter(drafting, target, draft, self._corpora, costs, to_stderr)
        policy = make_policy(drafting, costs)
        return LLM(target, drafter, drafting, draft, corpora=self._corpora, policy=policy)

    def _pass_costs(self, draft: Backend | None) -> DecodingCosts:
        """Return the pass costs. All methods update them and share the target's."""
        key = draft is not None
        if key not in self._costs:
            costs = costs_of(self.plain.target, draft)
            for other in self._costs.values():
                costs.target = other.target
            refresh(costs, draft)
            self._costs[key] = costs
        return self._costs[key]

    def _load_draft(self, path: Path) -> Backend:
        if self._draft is None:
            before = resident()
            settings = self._given | {"n_ctx": self.plain.target.caps.n_ctx, "exact_greedy": False}
            self._draft = (
                open_draft(path, self.plain.target, settings)
                if is_view(path)
                else load(path, drafters="none", **settings).target
            )
            self.draft_memory = max(0, resident() - before)
        return self._draft

    def close(self) -> None:
        for drafted, costs in self._costs.items():
            save(self.plain.target, self._draft if drafted else None, costs)
        if self._draft is not None:
            self._draft.close()
        self.plain.close()

    def __enter__(self) -> LoadedModels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resident() -> int:
    """Return the resident bytes of this process, mapped parts of model files included."""
    return int(psutil.Process().memory_info().rss)
