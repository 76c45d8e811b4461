"""Whether one model can draft for another, told from their headers alone.

A shared vocabulary is what loading the two would accept (vocab/shared.py, after llama.cpp). A translation
stands on the tokens that vocab/intersection.py would pair.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

from paceline.models.compatibility import fitness
from paceline.models.compatibility.fitness import FATAL, MAPPING, NOTE, CompatibilityReason
from paceline.models.headers.facts import ModelFacts, TokenizerFacts
from paceline.models.headers.vocabulary import make_vocab
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.shared import FIRST_COMPARED_ID, MAX_SIZE_DIFFERENCE

SAME, COMPATIBLE, MAPPABLE, INCOMPATIBLE = "same", "compatible", "mappable", "incompatible"
T = TypeVar("T")
MAX_SHOWN = 3  # token texts that differ
MAX_SHOWN_BYTES = 32  # of a token's text


@dataclass(frozen=True)
class Compatibility:
    """The verdict on a draft model, with all that was compared.

    target, draft: their files.
    verdict: SAME (every token, flag and special token), COMPATIBLE (an id means the same to both), MAPPABLE
    (--cross-vocab can translate) or INCOMPATIBLE.
    reasons: in the order of a table; what agrees is a note without a text.
    """

    target: str
    draft: str
    verdict: str
    reasons: tuple[CompatibilityReason, ...]

    @property
    def usable(self) -> bool:
        return self.verdict != INCOMPATIBLE

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, in the order of the reasons; for an unusable draft only about what is fatal."""
        reported = [r for r in self.reasons if r.advice and (self.usable or r.weight == FATAL)]
        return tuple(dict.fromkeys(reason.advice for reason in reported))

    def reason(self, field: str) -> CompatibilityReason | None:
        return next((reason for reason in self.reasons if reason.field == field), None)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"usable": self.usable, "advice": list(self.advice)}


@dataclass(frozen=True)
class ModelVocabulary:
    """A model's tokenizer, and the vocabulary that llama.cpp would make of it."""

    facts: ModelFacts
    tokenizer: TokenizerFacts

    @classmethod
    def of(cls, facts: ModelFacts) -> ModelVocabulary | None:
        """Return None for a model without tokens."""
        return cls(facts, facts.tokenizer) if facts.tokenizer and facts.tokenizer.texts else None

    @cached_property
    def vocab(self) -> Vocab:
        return make_vocab(self.tokenizer)

    @cached_property
    def texts(self) -> list[bytes]:
        return [self.vocab.text(token) for token in range(self.vocab.size)]

    @cached_property
    def emitted_texts(self) -> list[bytes]:
        """The texts that tokens stand for; those that end a text stand for none (vocab/lexicon.py)."""
        tokens = (token for token in range(self.vocab.size) if token not in self.vocab.eos)
        return [piece for token in tokens if (piece := self.vocab.piece(token))]

    def describe_token(self, tokens: Iterable[int | None], *, added: bool = False) -> str | None:
        """Return tokens as a table shows them: "1 <s>, added"; None without one."""
        shown = [f"{token} {display_bytes(self.texts[token])}" for token in tokens if token is not None]
        return ", ".join(shown + ["added"] * added) if shown else None


def compare(target: ModelFacts, draft: ModelFacts) -> Compatibility:
    """Compare two models, read with their tokenizers; one without a tokenizer cannot be drafted with."""
    return next(compare_all(target, [draft]))


def compare_all(target: ModelFacts, drafts: Iterable[ModelFacts]) -> Iterator[Compatibility]:
    """Compare each draft, with the target's side, slow to make of many tokens, made once."""
    ours = ModelVocabulary.of(target)
    for draft in drafts:
        found = list(fitness.reasons(target, draft))
        same, theirs = False, ModelVocabulary.of(draft)
        if ours and theirs:
            about_tokens = list(_vocabularies(ours, theirs))
            same = _same(ours, theirs)
            weights = {reason.weight for reason in about_tokens}
            if MAPPING in weights and all(reason.weight != FATAL for reason in found):
                about_tokens += _translation(ours, theirs)
            found = about_tokens + found
        else:
            role = "draft" if ours else "target"
            text = f"the {role} has no tokenizer: tokens cannot be compared"
            found.insert(
                0, CompatibilityReason("tokenizer", None, None, FATAL, text, "take a file that has one")
            )
        weights = {reason.weight for reason in found}
        verdict = (
            INCOMPATIBLE
            if FATAL in weights
            else MAPPABLE
            if MAPPING in weights
            else SAME
            if same
            else COMPATIBLE
        )
        yield Compatibility(str(target.path), str(draft.path), verdict, tuple(found))


def _vocabularies(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    a, b = ours.vocab, theirs.vocab

    def compared(field: str, x: Any, y: Any, same: bool, text: str) -> CompatibilityReason:
        return CompatibilityReason(field, x, y, NOTE if same else MAPPING, "" if same else text)

    text = "another type: no token id means the same to both"
    yield compared("tokenizer", a.kind, b.kind, a.kind == b.kind, text)
    if ours.tokenizer.pre or theirs.tokenizer.pre:
        text = "" if _same_pre_tokenizer(ours, theirs) else "they divide text differently"
        pres = _both(ours, theirs, lambda side: side.tokenizer.pre or None)
        yield CompatibilityReason("pre-tokenizer", *pres, NOTE, text)
    text = "another token begins a text" if a.bos != b.bos else "only one of them begins every text with it"
    bos = _both(ours, theirs, lambda side: side.describe_token([side.vocab.bos], added=side.vocab.add_bos))
    yield compared("BOS", *bos, (a.add_bos, a.bos) == (b.add_bos, b.bos), text)
    text = "other tokens end an answer" if a.eos != b.eos else "only one of them ends every text with it"
    eos = _both(
        ours, theirs, lambda side: side.describe_token(sorted(side.vocab.eos), added=side.vocab.add_eos)
    )
    yield compared("EOS", *eos, a.eos == b.eos and a.add_eos == b.add_eos, text)
    apart = abs(a.size - b.size)
    text = f"{apart:,} apart: at most {MAX_SIZE_DIFFERENCE} may be padding"
    if apart <= MAX_SIZE_DIFFERENCE:
        text = f"{apart:,} apart, taken for padding; vLLM wants them equal" if apart else ""
    weight = MAPPING if apart > MAX_SIZE_DIFFERENCE else NOTE
    yield CompatibilityReason("vocabulary size", a.size, b.size, weight, text)
    yield _texts(ours, theirs)


def _both(ours: ModelVocabulary, theirs: ModelVocabulary, say: Callable[[ModelVocabulary], T]) -> tuple[T, T]:
    return say(ours), say(theirs)


def _same_pre_tokenizer(ours: ModelVocabulary, theirs: ModelVocabulary) -> bool:
    """Whether no difference is known: a folder for transformers does not name llama.cpp's pre-tokenizer."""
    names = {
        side.tokenizer.pre or "default"
        for side in (ours, theirs)
        if side.tokenizer.pre or side.facts.format == "gguf"
    }
    return len(names) < 2


def _texts(ours: ModelVocabulary, theirs: ModelVocabulary) -> CompatibilityReason:
    """Compare the tokens' texts; control tokens with the first few ids may be named differently."""
    pairs = zip(ours.texts[FIRST_COMPARED_ID:], theirs.texts[FIRST_COMPARED_ID:], strict=False)
    differing = [i for i, (a, b) in enumerate(pairs, FIRST_COMPARED_ID) if a != b]
    if not differing:
        return CompatibilityReason("token texts", None, None, NOTE, "the same")
    common = min(ours.vocab.size, theirs.vocab.size) - FIRST_COMPARED_ID
    shown = _both(ours, theirs, lambda side: side.describe_token(differing[:MAX_SHOWN]))
    text = f"{len(differing):,} of {common:,} ids mean something else, from {differing[0]:,} on"
    return CompatibilityReason("token texts", *shown, MAPPING, text)


def _same(ours: ModelVocabulary, theirs: ModelVocabulary) -> bool:
    """Compare what compatible models may differ in: the first texts, sizes, every special token and flag."""
    a, b = ours.tokenizer, theirs.tokenizer
    return (
        ours.texts == theirs.texts
        and dict(a.special) == dict(b.special)
        and _same_pre_tokenizer(ours, theirs)
        and a.add_space_prefix == b.add_space_prefix
    )


def _translation(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    """Tell how far --cross-vocab gets: with the tokens that say the same in both."""
    n, total = len(set(ours.emitted_texts) & set(theirs.emitted_texts)), len(ours.emitted_texts)
    common = f"{n:,} of {total:,}", f"{n:,} of {len(theirs.emitted_texts):,}"
    family = f" ({ours.facts.family})" if ours.facts.family else ""
    if n == 0:
        advice = f"take a draft of the target's family{family}, or --draft lookup, which needs none"
        text = "none: nothing can be translated"
        yield CompatibilityReason("tokens in common", *common, FATAL, text, advice)
        return
    as_it_is, better = "", f"better take a draft of the target's family{family} and vocabulary"
    if ours.facts.format == theirs.facts.format == "gguf":  # the commands read nothing else
        target, draft = _both(ours, theirs, lambda side: shlex.quote(str(side.facts.path)))
        as_it_is = f"draft with it as it is: paceline run -m {target} -md {draft} --cross-vocab auto"
        better += (
            f"; or give this one the target's: paceline transplant {draft} --vocab-of {target} -o OUT.gguf"
        )
    share = f"{n / total:.1%} of the target's translate one to one"
    yield CompatibilityReason("tokens in common", *common, NOTE, share, as_it_is)
    families = _both(ours, theirs, lambda side: side.facts.family or None)
    yield CompatibilityReason("family", *families, NOTE, "", better)


def display_bytes(text: bytes) -> str:
    """Return the beginning of a token's text; what is no UTF-8 as escapes."""
    short = text[:MAX_SHOWN_BYTES].decode(errors="backslashreplace")
    return short + "…" if len(text) > MAX_SHOWN_BYTES else short
