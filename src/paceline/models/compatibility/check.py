"""Whether one model can draft for another, told from their headers alone.

A shared vocabulary is what loading the two would accept (vocab/shared.py, after llama.cpp). A translation
stands on the tokens that vocab/intersection.py would pair. The reasons say why, and how far apart they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from paceline.models.compatibility import fitness
from paceline.models.compatibility.reason import FATAL, MAPPING, NOTE, CompatibilityReason
from paceline.models.headers.facts import ModelFacts, TokenizerFacts
from paceline.models.headers.vocabulary import vocabulary
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.shared import FIRST_COMPARED_ID, MAX_SIZE_DIFFERENCE

SAME, COMPATIBLE, MAPPABLE, INCOMPATIBLE = "same", "compatible", "mappable", "incompatible"
SHOWN = 5  # token texts that differ
LONGEST = 64  # bytes of a token's text that are shown
DEFAULT_PRE = ("", "default")  # one and the same to llama.cpp


@dataclass(frozen=True)
class Compatibility:
    """target, draft: their files. verdict: SAME (every token, flag and special token), COMPATIBLE (an id
    means the same to both), MAPPABLE (--cross-vocab can translate) or INCOMPATIBLE. reasons: all that was
    compared, in the order of a table; what agrees is a note without a text."""

    target: str
    draft: str
    verdict: str
    reasons: tuple[CompatibilityReason, ...]

    @property
    def usable(self) -> bool:
        return self.verdict != INCOMPATIBLE

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, in the order of the reasons."""
        # Of what cannot be used, only why.
        told = [r for r in self.reasons if r.advice and (self.usable or r.weight == FATAL)]
        return tuple(dict.fromkeys(reason.advice for reason in told))

    def reason(self, field: str) -> CompatibilityReason | None:
        return next((reason for reason in self.reasons if reason.field == field), None)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"usable": self.usable, "advice": list(self.advice)}


@dataclass(frozen=True)
class ModelVocabulary:
    """A model's tokenizer, and the vocabulary that it comes to."""

    facts: ModelFacts
    tokenizer: TokenizerFacts

    @classmethod
    def of(cls, facts: ModelFacts) -> ModelVocabulary | None:
        """None without a token."""
        return cls(facts, facts.tokenizer) if facts.tokenizer and facts.tokenizer.texts else None

    @cached_property
    def vocab(self) -> Vocab:
        return vocabulary(self.tokenizer)

    @cached_property
    def texts(self) -> list[bytes]:
        return [self.vocab.text(token) for token in range(self.vocab.size)]

    @cached_property
    def says(self) -> list[bytes]:
        """Every text that a token stands for. One that ends a text stands for none (vocab/lexicon.py)."""
        tokens = (token for token in range(self.vocab.size) if token not in self.vocab.eos)
        return [piece for token in tokens if (piece := self.vocab.piece(token))]

    def named(self, token: int | None) -> dict[str, Any] | None:
        return None if token is None else {"id": token, "text": spelled(self.texts[token])}


def compare(target: ModelFacts, draft: ModelFacts) -> Compatibility:
    """Facts with their tokenizers (models/headers/header.py): a model without one cannot be drafted with."""
    return next(compare_all(target, [draft]))


def compare_all(target: ModelFacts, drafts: Iterable[ModelFacts]) -> Iterator[Compatibility]:
    """As compare for each, with the target's side, slow to make of many tokens, made once."""
    ours = ModelVocabulary.of(target)
    for draft in drafts:
        yield _compatibility(target, ours, draft)


def _compatibility(target: ModelFacts, ours: ModelVocabulary | None, draft: ModelFacts) -> Compatibility:
    found = list(fitness.reasons(target, draft))
    same = False
    if ours and (theirs := ModelVocabulary.of(draft)):
        about_tokens = list(_vocabularies(ours, theirs))
        same = _same(ours, theirs)
        fatal = any(reason.weight == FATAL for reason in found)
        if not fatal and any(reason.weight == MAPPING for reason in about_tokens):
            about_tokens += _translation(ours, theirs)
        found = about_tokens + found
    else:
        found.insert(0, _no_tokenizer(target, draft))
    weights = {reason.weight for reason in found}
    if FATAL in weights:
        verdict = INCOMPATIBLE
    elif MAPPING in weights:
        verdict = MAPPABLE
    else:
        verdict = SAME if same else COMPATIBLE
    return Compatibility(str(target.path), str(draft.path), verdict, tuple(found))


def _no_tokenizer(target: ModelFacts, draft: ModelFacts) -> CompatibilityReason:
    kinds = [
        side.tokenizer.kind if (side := ModelVocabulary.of(facts)) else None for facts in (target, draft)
    ]
    without = [role for role, kind in zip(("target", "draft"), kinds, strict=True) if kind is None]
    return CompatibilityReason(
        "tokenizer",
        kinds[0],
        kinds[1],
        FATAL,
        f"the {' and the '.join(without)} has no tokenizer: tokens cannot be compared",
        "take a file that has one",
    )


def _vocabularies(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    a, b = ours.vocab, theirs.vocab
    text = "another type: no token id means the same to both"
    yield _compared("tokenizer", (a.kind, b.kind), a.kind == b.kind, text)
    yield from _pre_tokenizers(ours, theirs)
    yield _bos(ours, theirs)
    yield _ends(ours, theirs)
    yield from _other_specials(ours, theirs)
    yield _sizes(a.size, b.size)
    yield _texts(ours, theirs)


def _compared(field: str, said: Sequence[Any], same: bool, text: str) -> CompatibilityReason:
    """Has to be the same. said: what is shown, which may yet differ: texts of the first ids do not count."""
    return CompatibilityReason(field, said[0], said[1], NOTE if same else MAPPING, "" if same else text)


def _pre_tokenizers(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    a, b = ours.tokenizer.pre, theirs.tokenizer.pre
    if a or b:
        text = "" if _divide_alike(ours, theirs) else "they divide text differently"
        yield CompatibilityReason("pre-tokenizer", a or None, b or None, NOTE, text)


def _divide_alike(ours: ModelVocabulary, theirs: ModelVocabulary) -> bool:
    """As far as one can tell: a folder for transformers does not name what llama.cpp would divide by."""
    names = {
        "default" if side.tokenizer.pre in DEFAULT_PRE else side.tokenizer.pre
        for side in (ours, theirs)
        if side.tokenizer.pre or side.facts.format == "gguf"
    }
    return len(names) < 2


def _bos(ours: ModelVocabulary, theirs: ModelVocabulary) -> CompatibilityReason:
    a, b = ours.vocab, theirs.vocab
    said = [(side.named(side.vocab.bos) or {}) | {"added": side.vocab.add_bos} for side in (ours, theirs)]
    if a.bos == b.bos:
        text = "one of them begins every text with it, the other does not"
    elif said[0].get("text") == said[1].get("text"):
        text = "the same text, another id"
    else:
        text = "another token begins a text" if a.add_bos or b.add_bos else "another one, if not in use"
    if a.kind == "BPE" and {a.bos, b.bos} & {11} and a.bos != b.bos:
        text += "; 11 is what llama.cpp assumes where a file names none"
    return _compared("BOS", said, (a.add_bos, a.bos) == (b.add_bos, b.bos), text)


def _ends(ours: ModelVocabulary, theirs: ModelVocabulary) -> CompatibilityReason:
    said = [
        {"ends": [side.named(token) for token in sorted(side.vocab.eos)], "added": side.vocab.add_eos}
        for side in (ours, theirs)
    ]
    a, b = ours.vocab.eos, theirs.vocab.eos
    if a == b:
        text = "one of them ends every text with it, the other does not"
    elif {ours.texts[token] for token in a} == {theirs.texts[token] for token in b}:
        text = "the same texts, other ids"
    elif a - b:
        text = f"{_first_end(ours, a - b)} ends the target's answers, not the draft's"
    else:
        text = f"{_first_end(theirs, b - a)} ends the draft's answers, not the target's"
    return _compared("EOS", said, a == b and ours.vocab.add_eos == theirs.vocab.add_eos, text)


def _first_end(side: ModelVocabulary, ends: frozenset[int]) -> str:
    eos = side.tokenizer.special.get("eos")
    return spelled(side.texts[eos if eos in ends and eos is not None else min(ends)])


def _other_specials(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    """What is no id of a text and no end of one: told, not judged."""
    a, b = ({**side.tokenizer.special} for side in (ours, theirs))
    roles = sorted(role for role in {*a, *b} - {"bos", "eos"} if a.get(role) != b.get(role))
    if roles:
        said = [{role: side.get(role) for role in roles} for side in (a, b)]
        yield CompatibilityReason(
            "other specials", said[0], said[1], NOTE, "no matter: none of them begins or ends a text"
        )


def _sizes(a: int, b: int) -> CompatibilityReason:
    if abs(a - b) > MAX_SIZE_DIFFERENCE:
        text, weight = f"{abs(a - b):,} apart: at most {MAX_SIZE_DIFFERENCE} may be padding", MAPPING
    elif a != b:
        text, weight = f"{abs(a - b):,} apart, taken for padding; vLLM wants them equal", NOTE
    else:
        text, weight = "", NOTE
    return CompatibilityReason("vocabulary size", a, b, weight, text)


def _texts(ours: ModelVocabulary, theirs: ModelVocabulary) -> CompatibilityReason:
    """Control tokens with the first few ids may be named differently."""
    pairs = zip(ours.texts[FIRST_COMPARED_ID:], theirs.texts[FIRST_COMPARED_ID:], strict=False)
    differing = [i for i, (a, b) in enumerate(pairs, FIRST_COMPARED_ID) if a != b]
    if not differing:
        return CompatibilityReason("token texts", None, None, NOTE, "the same")
    n, common = len(differing), min(ours.vocab.size, theirs.vocab.size) - FIRST_COMPARED_ID
    said = [[side.named(token) for token in differing[:SHOWN]] for side in (ours, theirs)]
    text = f"{n:,} of {common:,} ids mean something else, from {differing[0]:,} on"
    return CompatibilityReason("token texts", said[0], said[1], MAPPING, text)


def _same(ours: ModelVocabulary, theirs: ModelVocabulary) -> bool:
    """Beyond what compatible models agree in: the first texts, sizes, every special token and flag."""
    a, b = ours.tokenizer, theirs.tokenizer
    return (
        ours.vocab.size == theirs.vocab.size
        and ours.texts == theirs.texts
        and dict(a.special) == dict(b.special)
        and _divide_alike(ours, theirs)
        and a.add_space_prefix == b.add_space_prefix
    )


def _translation(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    """How far --cross-vocab gets: with the tokens that say the same in both."""
    a, b = ours.says, theirs.says
    n, all_ = len(set(a) & set(b)), len(a)
    said = {"texts": all_, "common": n}, {"texts": len(b), "common": n}
    if n == 0:
        yield CompatibilityReason(
            "tokens in common",
            said[0],
            said[1],
            FATAL,
            "none: nothing can be translated",
            f"take a draft of the target's family{_family(ours.facts)}, or --draft lookup, which needs none",
        )
        return
    as_it_is, better = "", f"better take a draft of the target's family{_family(ours.facts)} and vocabulary"
    if ours.facts.format == theirs.facts.format == "gguf":  # the commands read nothing else
        target, draft = _file(ours), _file(theirs)
        as_it_is = f"draft with it as it is: paceline run -m {target} -md {draft} --cross-vocab auto"
        better += (
            f"; or give this one the target's: paceline transplant {draft} --vocab-of {target} -o OUT.gguf"
        )
    share = f"{n / all_:.1%} of the target's translate one to one"
    yield CompatibilityReason("tokens in common", said[0], said[1], NOTE, share, as_it_is)
    yield CompatibilityReason(
        "family",
        ours.facts.family or None,
        theirs.facts.family or None,
        NOTE,
        "" if ours.facts.family == theirs.facts.family else "another one",
        better,
    )


def _file(side: ModelVocabulary) -> str:
    return shlex.quote(str(side.facts.path))


def _family(facts: ModelFacts) -> str:
    return f" ({facts.family})" if facts.family else ""


def spelled(text: bytes) -> str:
    """At most so much of it, with what is no UTF-8 as escapes."""
    short = text[:LONGEST].decode(errors="backslashreplace")
    return short + "…" if len(text) > LONGEST else short
