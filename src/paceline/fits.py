"""The table of what fits what: kinds of drafts and lossy choices, and the targets that they do not work for.

`load`, `paceline pairs`, `check` and `doctor` read it. What no row excludes works; whether one draft fits one
target is then a question of vocabularies, or of the target that a head was trained for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.drafter_table import DRAFT, DRAFTERS, DRAFTS, HEADS, users

if TYPE_CHECKING:
    from paceline.speculative.interfaces import Rollback


LLAMA_CPP, TRANSFORMERS, TOY = BACKENDS = ("llama.cpp", "transformers", "toy")

NO_MODEL = "drafting without a model"
LAYER_VIEW, EXPERT_VIEW = "view of fewer layers", "view of fewer experts"
LOSSY_EXPERTS, LOSSY_PREFILL = "lossy experts", "lossy prefill"
DRAFT_KINDS = (NO_MODEL, DRAFT, LAYER_VIEW, EXPERT_VIEW, *HEADS.values())
EXITS = (HEADS["exits"], HEADS["kangaroo"])
MTP = HEADS["mtp"]
# What a model's file says of its layers for multi-token prediction (TargetTraits.mtp).
USABLE, ABSENT, STRIPPED, NO_GRAPH, SEPARATE = "usable", "absent", "stripped", "no graph", "in another file"
# What -md names for the kinds that draft as a model does.
NAMED = {DRAFT: "a smaller model", LAYER_VIEW: "view:skip=N or view:exit=N", EXPERT_VIEW: "view:experts=N"}


@dataclass(frozen=True)
class TargetTraits:
    """The properties of a target that decide what fits it. None: not known yet.

    backend: of BACKENDS. rollback: see Caps. is_mixture: it has experts. is_windowed: a layer attends to a
    window of the text. mtp: whether its own layers for multi-token prediction can draft, of USABLE, ..."""

    backend: str
    rollback: Rollback | None = None
    is_mixture: bool | None = None
    is_windowed: bool | None = None
    mtp: str | None = None


@dataclass(frozen=True)
class Exclusion:
    """A row: these kinds do not work for targets with all of these properties. Empty or None: any."""

    kinds: Collection[str]
    reason: str
    backends: Collection[str] = BACKENDS
    rollbacks: Collection[str] = ()
    is_mixture: bool | None = None
    is_windowed: bool | None = None
    mtp: Collection[str] = ()

    def applies(self, kind: str, target: TargetTraits) -> bool:
        return (
            kind in self.kinds
            and target.backend in self.backends
            and (not self.rollbacks or target.rollback in self.rollbacks)
            and self.is_mixture in (None, target.is_mixture)
            and self.is_windowed in (None, target.is_windowed)
            and (not self.mtp or target.mtp in self.mtp)
        )


RECURRENT = ("restore", "none")  # rollbacks of recurrent and hybrid models
NO_PART = "the target has recurrent layers: no part of it can draft for it in transformers"
NO_PROMPT_LEFT_OUT = "no prompt tokens can be left out for "
EXCLUSIONS = (
    Exclusion(DRAFT_KINDS, "the target's state cannot be rolled back, so that nothing can be drafted for it",
              rollbacks=("none",)),
    Exclusion((LAYER_VIEW,), "llama.cpp cannot leave out layers", (LLAMA_CPP,), RECURRENT),
    Exclusion((LAYER_VIEW,), "llama.cpp cannot leave out layers: load the target with transformers "
              "(-m hf:FILE), or write the part to a file of its own (paceline views materialise)",
              (LLAMA_CPP,)),
    Exclusion((LAYER_VIEW, EXPERT_VIEW), "views are for GGUF and transformers models", (TOY,)),
    Exclusion((LAYER_VIEW, EXPERT_VIEW, *EXITS), NO_PART, (TRANSFORMERS,), RECURRENT),
    Exclusion((MTP,), "transformers does not compute the target's layers for multi-token prediction (MTP): "
              "llama.cpp may, in a GGUF file", (TRANSFORMERS,), mtp=(NO_GRAPH,)),
    Exclusion((MTP,), "the target's file has no layers for multi-token prediction (MTP): many models have "
              "them in a repository of their own, whose name ends in -MTP-GGUF", mtp=(ABSENT,)),
    Exclusion((MTP,), "the weights of the target's layers for multi-token prediction (MTP) were left out of "
              "its file: a repository whose name ends in -MTP-GGUF may have them", mtp=(STRIPPED,)),
    Exclusion((MTP,), "the target's layers for multi-token prediction (MTP) are in a file of their own, its "
              "assistant: give it (-md)", mtp=(SEPARATE,)),
    Exclusion((MTP,), "this llama.cpp cannot compute the MTP layers of the target's architecture",
              mtp=(NO_GRAPH,)),
    Exclusion((EXPERT_VIEW, LOSSY_EXPERTS), "the target is no mixture of experts, or does not say how many a "
              "token uses", is_mixture=False),
    Exclusion((LOSSY_PREFILL,), NO_PROMPT_LEFT_OUT + "recurrent models", rollbacks=RECURRENT),
    Exclusion((LOSSY_PREFILL,), NO_PROMPT_LEFT_OUT + "models with an attention window", is_windowed=True),
)  # fmt: skip


def why_not(kind: str, target: TargetTraits) -> str:
    """Return the reason why a kind of draft, or a choice, does not work for a target; "" if it does."""
    return next((row.reason for row in EXCLUSIONS if row.applies(kind, target)), "")


def source_of(kind: str) -> str:
    """Return the source of drafts, as in the table of drafters: a view drafts like a model of its own."""
    return DRAFT if kind in NAMED else kind


def drafters_of(kind: str) -> list[str]:
    """Return the names of the drafters that use a kind of draft, `auto` left out."""
    if kind == NO_MODEL:
        return [name for name, row in DRAFTERS.items() if not set(row.uses) & set(DRAFTS) and name != "none"]
    return [name for name in users(DRAFTERS, source_of(kind)) if name != "auto"]


def what_fits(target: TargetTraits) -> list[dict[str, Any]]:
    """Return a JSON row for every kind of draft: its drafters, and the reason why it does not fit, or ""."""
    return [
        {"kind": kind, "drafters": drafters_of(kind), "reason": why_not(kind, target)} for kind in DRAFT_KINDS
    ]
