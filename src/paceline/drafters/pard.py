"""A parallel draft (PARD, arXiv:2504.18583): a draft model that drafts several tokens in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.drafters.model import ModelDrafter
from paceline.drafters.parts import DrafterInputs
from paceline.heads.parallel_draft import ParallelDraft
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.tree import DraftTree


class PardDrafter(ModelDrafter):
    """A draft model whose drafts are at most as long as a pass."""

    name = ParallelDraft.kind

    def __init__(self, draft: ParallelDraft, **settings: Any) -> None:
        super().__init__(draft, draft.vocab.size, **settings)
        self._max_depth = draft.max_depth

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        depth = self._max_depth
        return super().propose(
            [(state, budget.limited_to(depth, budget.nodes, budget.width)) for state, budget in batch]
        )


def make(parts: DrafterInputs) -> Drafter:
    draft: Any = parts.draft
    return PardDrafter(draft, **parts.model_settings)
