"""What a drafter can be made from: the argument of each `make` in this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.config import Drafting
from paceline.speculative.interfaces import Target
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.vocab.translation import Translation

Warn = Callable[[str], None]
MODEL = "model"


@dataclass(frozen=True)
class DrafterInputs:
    """draft: the draft model, in the target's vocabulary unless there is a `translation`: then it drafts text
    (SLEM). caches: n-gram caches in llama.cpp's format. stores: folders of suffix arrays. costs: of passes
    here, where they are known. warn: is called with what is wrong with a draft model. name: of the draft
    model's drafter, where there are several."""

    drafting: Drafting
    target: Target
    draft: Target | None = None
    translation: Translation | None = None
    caches: tuple[Path, ...] = ()
    stores: tuple[Path, ...] = ()
    costs: DecodingCosts | None = None
    warn: Warn = lambda _: None
    name: str = MODEL
