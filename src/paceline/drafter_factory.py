"""Factories of drafters and policies, for the composition root (loading.py)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from importlib import import_module
from time import perf_counter
from typing import Any

from paceline.backends.translated import CrossVocabTarget
from paceline.drafter_table import DATASTORE, DRAFT, DRAFTERS, HEADS
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.parts import MODEL_SOURCE, DrafterInputs, Warn
from paceline.heads.confidence import Confidence
from paceline.heads.draft_base import DraftBase, HeadBase
from paceline.settings import Drafting
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.speculative.interfaces import Drafter, Target
from paceline.speculative.loop import Clock
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.storage.corpora import NO_CORPORA, Corpora
from paceline.vocab.lexicon import TokenizerVocab
from paceline.vocab.translation import SAMPLE, Translation, check_shared

# From this share of common tokens on, TLI has as many tokens a pass as SLEM or up to 9% more; below it, SLEM
# has up to 3% more (docs/log/vocabularies.md).
MIN_COVERAGE = 0.95
REQUIREMENTS = {
    **{
        source: f"a head of that kind: give one (draft, -md); paceline train {kind} trains one"
        for kind, source in HEADS.items()
    },
    HEADS[
        "mtp"
    ]: "a target whose file has layers for multi-token prediction, and no other draft (draft, -md)",
    DRAFT: "a draft model: give one (draft, -md), or use the drafter lookup (drafters, --draft)",
    DATASTORE: "a corpus that has a datastore: give its name (corpora, --corpus; paceline corpus list tells "
    "what there is, paceline corpus build makes one)",
}


def check_needs(drafting: Drafting, available: Collection[str]) -> None:
    """Raise UsageError for a drafter that needs something unavailable."""
    for row in drafting.rows:
        if not row.optional and (missing := row.missing(available)):
            raise UsageError(f"the drafter {row.name!r} needs {REQUIREMENTS[missing[0]]}")


def make(name: str, parts: DrafterInputs) -> Drafter:
    """Make a drafter by its name in the table; a draft model with a translation drafts by SLEM."""
    file = "slem" if name == MODEL_SOURCE and parts.translation is not None else name
    drafter: Drafter = import_module(DRAFTERS[name].module or f"paceline.drafters.{file}").make(parts)
    return drafter


def make_drafter(
    drafting: Drafting,
    target: Target,
    draft: Any,
    corpora: Corpora | None = None,
    costs: DecodingCosts | None = None,
    warn: Warn = lambda _: None,
    confidence: Confidence | None = None,
) -> tuple[Drafter, Drafting]:
    """Make the drafters of the settings. Return them with the settings in which "auto" is resolved.

    Models with different vocabularies need a `text`. Raises VocabError if the vocabularies cannot be mapped,
    UsageError for a draft model that is missing or cannot roll back."""
    corpora, translation = corpora or NO_CORPORA, None
    available = list(corpora.available)
    if draft is not None:
        if draft.caps.rollback == "none":
            raise UsageError(
                "the draft model's state cannot be rolled back, so it cannot draft: give another one (draft, "
                "-md), or use the drafter lookup (drafters, --draft)"
            )
        if isinstance(draft, HeadBase):  # drafts the target's own tokens
            drafting = replace(drafting, cross_vocab="off")
        else:
            drafting, translation = make_cross_vocab(drafting, target, draft)
        if drafting.cross_vocab == "tli" and translation is not None:
            draft, translation = CrossVocabTarget(draft, translation), None
        available.append(HEADS[draft.kind] if isinstance(draft, DraftBase) else DRAFT)
    check_needs(drafting, available)
    if confidence is not None and translation is None and confidence.model != draft.identity()["model"]:
        raise ModelError(
            f"{draft.origin}: is not the draft that the confidence was trained for; train it again"
        )
    parts = DrafterInputs(
        drafting, target, draft, translation, corpora.caches, corpora.stores, costs, confidence, warn
    )
    if drafting.plain:
        return make("none", parts), drafting
    auto = drafting.drafters == ("auto",)
    usable = [row for row in DRAFTERS.values() if row.in_auto and not row.missing(available)]
    drafters = [make(row.name, parts) for row in (usable if auto else drafting.rows)]
    if auto or drafting.policy == "goodput":
        return PortfolioDrafter(drafters), drafting
    return ComposedDrafter(drafters, drafting.min_draft_tokens), drafting


def make_policy(drafting: Drafting, costs: DecodingCosts | None, clock: Clock = perf_counter) -> DraftPolicy:
    """Make the policy. costs: those of passes, which the policy `goodput` needs and updates."""
    if drafting.policy != "goodput" or drafting.plain:
        return FixedPolicy(drafting.budget)
    assert costs is not None  # measured for this policy
    it = drafting.budget
    return GoodputPolicy(
        costs, depth=it.depth, nodes=it.nodes, width=it.width, p_split=it.p_split, clock=clock
    )


def make_cross_vocab(drafting: Drafting, target: Any, draft: Any) -> tuple[Drafting, Translation | None]:
    """Return the settings in which "auto" is resolved, and the translation, None for a shared vocabulary.

    Raises VocabError if the vocabularies differ and cross_vocab is off, or if they have no common token."""
    if drafting.cross_vocab in ("off", "auto"):
        try:
            check_shared(target.vocab, draft.vocab)
            return replace(drafting, cross_vocab="off"), None
        except VocabError as error:
            if drafting.cross_vocab == "off":
                raise VocabError(
                    f"{error}, cross_vocab auto (--cross-vocab auto) to translate, or the drafter lookup "
                    "(drafters, --draft), which needs no draft model"
                ) from error
    ours = TokenizerVocab(target.vocab, lambda text: target.text.encode_continuation(text))
    theirs = TokenizerVocab(draft.vocab, lambda text: draft.text.encode_continuation(text))
    translation = Translation(ours, theirs)
    text_suffices = drafting.draft_temp == 0 and not any(row.token_ids for row in drafting.rows)
    if drafting.cross_vocab == "auto":
        trees = drafting.width > 1 and drafting.policy != "goodput"  # "goodput" accepts chains, too
        sample = ours.encode(SAMPLE.read_bytes())
        if trees or not text_suffices or translation.coverage(sample) >= MIN_COVERAGE:
            drafting = replace(drafting, cross_vocab="tli")
        else:
            drafting = replace(drafting, cross_vocab="slem", width=1)
    if drafting.cross_vocab == "tli" and len(translation.common) == 0:
        raise VocabError(
            "the draft's vocabulary has no token in common with the target's: use cross_vocab slem "
            "(--cross-vocab), or the drafter lookup (drafters, --draft), which needs no draft model"
        )
    return drafting, translation
