"""Which draft: every one that fits, by what was measured of it here, and else by what its files say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.doctor.draft_advice.row import (
    DOWNLOAD,
    MODEL,
    NO_MODEL,
    AdviceRequest,
    DraftAdvice,
    DraftCandidate,
    DraftOption,
    MeasuredFacts,
)
from paceline.models.compatibility.check import COMPATIBLE, MAPPABLE, SAME
from paceline.models.compatibility.known_pairs import KnownPair
from paceline.models.headers.facts import ATTENTION, ModelFacts
from paceline.models.headers.family import family_of
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.speedup_formulas import break_even

USABLE_VERDICTS = (SAME, COMPATIBLE, MAPPABLE)
BITS = {"Q8_0": 8.5, "Q4_K_M": 4.9}  # of a weight, in files not here yet
LONGEST = 16  # tokens of a draft
# Bytes of the cache beside F16; q8_0 has a scale of two bytes for 32 values.
BY_TYPE = {"f32": 2.0, "f16": 1.0, "bf16": 1.0, "q8_0": 34 / 64}
NEVER_PAYS = 2.0  # an acceptance that no draft has


def advise(
    target: ModelFacts,
    candidates: Sequence[DraftCandidate],
    question: AdviceRequest,
    known: MeasuredFacts,
    pairs: Sequence[KnownPair] = (),
) -> DraftAdvice:
    """pairs: what could be downloaded; told where no draft of the target's own vocabulary is here."""
    refused, two_rows = "", None
    rows: list[DraftOption] = []
    downloads: list[DraftOption] = []
    if target.memory != ATTENTION:
        refused = (
            f"nothing can be drafted for it yet: it is {target.memory}, and its state cannot be rolled back"
        )
    else:
        # Of drafts, too, the state has to be rolled back.
        able = [one for one in candidates if one.verdict in USABLE_VERDICTS and one.facts.memory == ATTENTION]
        found = [_row(target, one, question, known) for one in able]
        rows = sorted([*found, _row(target, None, question, known)], key=_order)
        if not any(row.verdict != MAPPABLE and row.fits for row in found):
            downloads = [_download(target, pair, question, known) for pair in pairs]
    if (costs := known.costs(None)) is not None:
        curve = costs.target.curve(2, question.depth)
        two_rows = float(curve[2] / curve[1])
    return DraftAdvice(target, question, tuple(rows), tuple(downloads), two_rows, known.available, refused)


def _order(row: DraftOption) -> tuple[Any, ...]:
    """What was measured stands where its speed puts it, what was not at the speed of plain decoding: a draft
    of the target's family first, then what needs to be right least often, then what is smaller."""
    return (
        not row.fits,
        row.verdict == MAPPABLE,
        -(1.0 if row.measured is None else row.measured.speedup),
        not row.kin,
        1.0 if row.needed is None else row.needed,
        row.size,
        row.reference,
    )


def _row(
    target: ModelFacts, one: DraftCandidate | None, question: AdviceRequest, known: MeasuredFacts
) -> DraftOption:
    """one: None for what copies."""
    draft = None if one is None else one.facts
    here = one is None or one.verdict != DOWNLOAD
    costs = known.costs(draft) if here else None
    models = (target,) if draft is None else (target, draft)
    size, memory_known = memory_needed(models, question.n_ctx, question.cache_type)
    token = None
    if costs is not None and costs.draft is not None:
        token = costs.draft.seconds(1, question.depth) / costs.target.seconds(1, question.depth)
    return DraftOption(
        drafter=NO_MODEL if one is None else MODEL if here else DOWNLOAD,
        reference="suffix, lookup" if one is None else one.reference,
        verdict="no model" if one is None else one.verdict,
        size=0 if draft is None else draft.size,
        parameters=None if draft is None else draft.parameters,
        quantisation="" if draft is None else draft.quantisation,
        kin=draft is not None and bool(draft.family) and draft.family == target.family,
        token=token,
        needed=None if costs is None else break_even_acceptance(costs, question.depth),
        measured=known.measured(draft) if here else None,
        memory=size,
        memory_known=memory_known,
        fits=size <= known.available,
    )


def _download(
    target: ModelFacts, pair: KnownPair, question: AdviceRequest, known: MeasuredFacts
) -> DraftOption:
    row = _row(target, DraftCandidate(_absent(pair), pair.draft, DOWNLOAD), question, known)
    return replace(row, why=pair.why, caveat=pair.caveat, source=pair.source)


def break_even_acceptance(costs: DecodingCosts, depth: int) -> float:
    """Return the least acceptance at which drafts of any one length gain something; NEVER where none does."""
    passes = costs.target.curve(LONGEST + 1, depth)
    token = 0.0 if costs.draft is None else costs.draft.seconds(1, depth)
    plain = passes[1] + costs.step
    found = [break_even((passes[1 + k] + k * token + costs.step) / plain, k) for k in range(1, LONGEST + 1)]
    return min((a for a in found if a is not None and a < 1.0), default=NEVER_PAYS)


def _absent(pair: KnownPair) -> ModelFacts:
    """What is known of a file that is not here."""
    repository, _, kind = pair.draft.rpartition(":")
    name = repository.rpartition("/")[2]
    return ModelFacts(
        files=(Path(pair.draft),),
        format="gguf",
        name=name,
        arch="",
        family=family_of([name]),
        parameters=pair.largest,
        quantisation=kind,
        size=round(pair.largest * BITS.get(kind, 8.5) / 8),
    )


def memory_needed(models: tuple[ModelFacts, ...], n_ctx: int, cache_type: str = "f16") -> tuple[int, bool]:
    """Bytes of models that are used together, each with the same context, and whether all of it is known. A
    model without keys and values (recurrent) has none to pay for; one whose size of them is not known makes
    the sum a lower bound."""
    scale = BY_TYPE.get(cache_type, 1.0)
    total = sum(model.size + round(model.kv_bytes * scale) * n_ctx for model in models)
    return total, all(model.kv_bytes or model.memory == "recurrent" for model in models)
