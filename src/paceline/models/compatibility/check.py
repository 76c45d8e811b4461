"""Compatibility of a draft with a target, judged from their headers: the vocabulary, and what else decides
how well a model drafts for another.

The rules of a shared vocabulary are those of vocab/shared.py, after llama.cpp; translations use the token
pairs of vocab/translation.py."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from paceline.models.headers.facts import ATTENTION, HEAD_ARCHS, ModelFacts, TokenizerFacts
from paceline.models.headers.vocabulary import make_vocab
from paceline.speculative.speedup_formulas import distinct_experts
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.translation import FIRST_COMPARED_ID, MAX_SIZE_DIFFERENCE

# fatal: drafting is impossible. mapping: tokens must be translated. warning: a possible loss of speed.
FATAL, MAPPING, WARNING, NOTE = ("fatal", "mapping", "warning", "note")

# llama.cpp's architectures that do not generate text from left to right.
NO_LANGUAGE_MODELS = {
    "an embedding model": {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("eurobert", "xlm-roberta", "roberta", "distilbert", "gemma-embedding", "llama-embed"),
    },
    "an encoder": {"t5encoder", "clip", "wavtokenizer-dec"},
    "an encoder-decoder model": {"t5", "mt5", "umt5", "bart", "mbart", "marian", "pegasus", "whisper"},
    "a diffusion model": {"dream", "llada", "llada-moe", "rnd1"},
    "a draft head of another model": {*HEAD_ARCHS, "gemma4-assistant"},
}
KINDS = {arch: kind for kind, archs in NO_LANGUAGE_MODELS.items() for arch in archs}
ROWS = 4  # batch tokens of the pass that the cost of experts is stated for
HARDLY_SMALLER = 0.5  # of the target's parameters
# Markers of chat templates, such as <|im_start|>, <start_of_turn> and [INST].
MARKER = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
MAX_MARKERS = 3  # in a message


@dataclass(frozen=True)
class CompatibilityReason:
    """A compared property of target and draft, None if absent. text: the consequence. advice: the remedy."""

    field: str
    target: str | int | None
    draft: str | int | None
    weight: str
    text: str = ""
    advice: str = ""


def architecture(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    values = target.arch, draft.arch
    for role, facts in (("target", target), ("draft", draft)):
        if kind := KINDS.get(facts.arch) or ("an embedding model" if facts.pooling else ""):
            text = f"the {role} is {kind}: it writes no text"
            yield CompatibilityReason("architecture", *values, FATAL, text, "take a causal language model")
            return
    yield CompatibilityReason("architecture", *values, NOTE)


def memory(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    if target.memory != ATTENTION:
        text = f"the target is {target.memory}: drafts are chains, and after a rejection accepted tokens are "
        text += "computed again"
        yield CompatibilityReason("memory", target.memory, draft.memory, NOTE, text)


def experts(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    n, used = target.experts, target.experts_used
    if 0 < used < n:
        touched = distinct_experts(n, used, ROWS)
        text = f"{ROWS} tokens of a pass read about {touched:.0f} of the target's {n} experts, "
        text += f"{touched / used:.1f}x what one does: only short or sure drafts pay"
        command = f"paceline doctor -m {shlex.quote(str(target.path))}"
        advice = f"measure what a pass costs by its tokens: {command}" if target.format == "gguf" else ""
        theirs = f"{draft.experts_used} of {draft.experts}" if draft.experts else None
        yield CompatibilityReason("experts", f"{used} of {n}", theirs, WARNING, text, advice)


def size(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    if not target.parameters or not draft.parameters:
        return
    ratio = draft.parameters / target.parameters
    large = ratio > HARDLY_SMALLER
    text = f"the draft has {ratio:.1%} of the target's" + (": too many to save much" if large else "")
    weight, advice = (WARNING, "take a smaller draft") if large else (NOTE, "")
    yield CompatibilityReason("parameters", target.parameters, draft.parameters, weight, text, advice)


def context(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    if target.n_ctx and draft.n_ctx:
        shorter = draft.n_ctx < target.n_ctx
        text = f"beyond {draft.n_ctx:,} tokens the draft guesses badly" if shorter else ""
        weight = WARNING if shorter else NOTE
        yield CompatibilityReason("context", target.n_ctx, draft.n_ctx, weight, text)


def template(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    """Compare the chat templates: in chats the draft receives the target's template."""
    ours, theirs = target.chat_template or "", draft.chat_template or ""
    unknown = sorted({*MARKER.findall(ours)} - {*MARKER.findall(theirs)})
    weight, text = NOTE, ""
    if not ours:
        text = "the target has none, so that there are no chats"
    elif unknown:
        shown = ", ".join(unknown[:MAX_MARKERS])
        weight = WARNING if theirs else NOTE  # without a template it may be a base model
        text = f"the draft reads the target's, and may not know {shown}: in chats it may be right less often"
    lengths = [f"{len(template):,} characters" if template else None for template in (ours, theirs)]
    yield CompatibilityReason("chat template", lengths[0], lengths[1], weight, text)


COMPARED = (architecture, memory, experts, size, context, template)
SAME, COMPATIBLE, MAPPABLE, INCOMPATIBLE = "same", "compatible", "mappable", "incompatible"
MAX_SHOWN = 3  # differing tokens
MAX_SHOWN_BYTES = 32  # of a token's text


@dataclass(frozen=True)
class Compatibility:
    """The verdict on a draft model, with all comparisons.
    target, draft: paths.
    verdict: SAME (identical vocabularies), COMPATIBLE (equal ids), MAPPABLE (--cross-vocab) or INCOMPATIBLE.
    reasons: in display order; an agreement is a note without text."""

    target: str
    draft: str
    verdict: str
    reasons: tuple[CompatibilityReason, ...]

    @property
    def usable(self) -> bool:
        return self.verdict != INCOMPATIBLE

    @property
    def advice(self) -> tuple[str, ...]:
        """Return the advice of all reasons; for an unusable draft, only of fatal reasons."""
        relevant = [r for r in self.reasons if r.advice and (self.usable or r.weight == FATAL)]
        return tuple(dict.fromkeys(reason.advice for reason in relevant))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"usable": self.usable, "advice": list(self.advice)}


@dataclass(frozen=True)
class ModelVocabulary:
    """A model's tokenizer, and the vocabulary that llama.cpp would load."""

    facts: ModelFacts
    tokenizer: TokenizerFacts

    @classmethod
    def of(cls, facts: ModelFacts) -> ModelVocabulary | None:
        """Return the vocabulary; None for a model without tokens."""
        return cls(facts, facts.tokenizer) if facts.tokenizer and facts.tokenizer.texts else None

    @cached_property
    def vocab(self) -> Vocab:
        return make_vocab(self.tokenizer)

    @cached_property
    def texts(self) -> list[bytes]:
        return [self.vocab.text(token) for token in range(self.vocab.size)]

    @cached_property
    def emitted_texts(self) -> list[bytes]:
        """Return the texts of all tokens that emit text (vocab/lexicon.py)."""
        tokens = (token for token in range(self.vocab.size) if token not in self.vocab.eos)
        return [piece for token in tokens if (piece := self.vocab.piece(token))]

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what identical vocabularies have in common, besides what makes them compatible."""
        return self.texts, dict(self.tokenizer.special), self.tokenizer.add_space_prefix

    def describe_tokens(self, tokens: Iterable[int | None], *, added: bool = False) -> str | None:
        """Describe tokens for display: "1 <s>, added"; None without tokens."""
        shown = [f"{token} {display_bytes(self.texts[token])}" for token in tokens if token is not None]
        return ", ".join(shown + ["added"] * added) if shown else None


def compare(target: ModelFacts, draft: ModelFacts) -> Compatibility:
    """Compare two models that were read with their tokenizers."""
    return next(compare_all(target, [draft]))


def compare_all(target: ModelFacts, drafts: Iterable[ModelFacts]) -> Iterator[Compatibility]:
    """Compare several drafts; the target's vocabulary, slow to build, is built once."""
    ours = ModelVocabulary.of(target)
    for draft in drafts:
        reasons, verdict = [r for compared in COMPARED for r in compared(target, draft)], COMPATIBLE
        if ours and (theirs := ModelVocabulary.of(draft)):
            tokens = list(_vocabularies(ours, theirs))
            if any(reason.weight == MAPPING for reason in tokens):
                verdict = MAPPABLE
                if all(reason.weight != FATAL for reason in reasons):
                    tokens += _translation(ours, theirs)
            elif ours.key == theirs.key and _same_pre_tokenizer(ours, theirs):
                verdict = SAME
        else:
            text = f"the {'draft' if ours else 'target'} has no tokenizer: tokens cannot be compared"
            fix = "take a file that has one"
            tokens = [CompatibilityReason("tokenizer", None, None, FATAL, text, fix)]
        reasons = tokens + reasons
        if any(reason.weight == FATAL for reason in reasons):
            verdict = INCOMPATIBLE
        yield Compatibility(str(target.path), str(draft.path), verdict, tuple(reasons))


def _vocabularies(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    a, b = ours.vocab, theirs.vocab
    pair = ours, theirs

    def compared(field: str, x: Any, y: Any, same: bool, text: str) -> CompatibilityReason:
        return CompatibilityReason(field, x, y, NOTE if same else MAPPING, "" if same else text)

    text = "another type: no token id means the same to both"
    yield compared("tokenizer", a.kind, b.kind, a.kind == b.kind, text)
    if ours.tokenizer.pre or theirs.tokenizer.pre:
        text = "" if _same_pre_tokenizer(ours, theirs) else "they divide text differently"
        x, y = (side.tokenizer.pre or None for side in pair)
        yield CompatibilityReason("pre-tokenizer", x, y, NOTE, text)
    text = "another token begins a text" if a.bos != b.bos else "only one of them begins every text with it"
    x, y = (side.describe_tokens([side.vocab.bos], added=side.vocab.add_bos) for side in pair)
    yield compared("BOS", x, y, (a.add_bos, a.bos) == (b.add_bos, b.bos), text)
    text = "other tokens end an answer" if a.eos != b.eos else "only one of them ends every text with it"
    x, y = (side.describe_tokens(sorted(side.vocab.eos), added=side.vocab.add_eos) for side in pair)
    yield compared("EOS", x, y, (a.add_eos, a.eos) == (b.add_eos, b.eos), text)
    difference = abs(a.size - b.size)
    weight, text = NOTE, ""
    if difference > MAX_SIZE_DIFFERENCE:
        weight, text = MAPPING, f"{difference:,} apart: at most {MAX_SIZE_DIFFERENCE} may be padding"
    elif difference:
        text = f"{difference:,} apart, taken for padding; vLLM wants them equal"
    yield CompatibilityReason("vocabulary size", a.size, b.size, weight, text)
    yield _texts(ours, theirs)


def _same_pre_tokenizer(ours: ModelVocabulary, theirs: ModelVocabulary) -> bool:
    """Return False if the pre-tokenizers are known to differ; a transformers folder does not name one."""
    naming = [side for side in (ours, theirs) if side.tokenizer.pre or side.facts.format == "gguf"]
    return len({side.tokenizer.pre or "default" for side in naming}) < 2


def _texts(ours: ModelVocabulary, theirs: ModelVocabulary) -> CompatibilityReason:
    """Compare the token texts, except for the control tokens with the first few ids."""
    pairs = zip(ours.texts[FIRST_COMPARED_ID:], theirs.texts[FIRST_COMPARED_ID:], strict=False)
    differing = [i for i, (a, b) in enumerate(pairs, FIRST_COMPARED_ID) if a != b]
    if not differing:
        return CompatibilityReason("token texts", None, None, NOTE, "the same")
    common = min(ours.vocab.size, theirs.vocab.size) - FIRST_COMPARED_ID
    x, y = (side.describe_tokens(differing[:MAX_SHOWN]) for side in (ours, theirs))
    text = f"{len(differing):,} of {common:,} ids mean something else, from {differing[0]:,} on"
    return CompatibilityReason("token texts", x, y, MAPPING, text)


def _translation(ours: ModelVocabulary, theirs: ModelVocabulary) -> Iterator[CompatibilityReason]:
    """Yield the share of tokens that --cross-vocab can translate one to one."""
    n, total = len(set(ours.emitted_texts) & set(theirs.emitted_texts)), len(ours.emitted_texts)
    common = f"{n:,} of {total:,}", f"{n:,} of {len(theirs.emitted_texts):,}"
    family = f" ({ours.facts.family})" if ours.facts.family else ""
    if n == 0:
        advice = f"take a draft of the target's family{family}, or --draft lookup, which needs none"
        text = "none: nothing can be translated"
        yield CompatibilityReason("tokens in common", *common, FATAL, text, advice)
        return
    translate, better = "", f"better take a draft of the target's family{family} and vocabulary"
    if ours.facts.format == theirs.facts.format == "gguf":  # required by both commands
        target, draft = (shlex.quote(str(side.facts.path)) for side in (ours, theirs))
        translate = f"draft with it as it is: paceline run -m {target} -md {draft} --cross-vocab auto"
        transplant = f"paceline transplant {draft} --vocab-of {target} -o OUT.gguf"
        better += f"; or give this one the target's: {transplant}"
    share = f"{n / total:.1%} of the target's translate one to one"
    yield CompatibilityReason("tokens in common", *common, NOTE, share, translate)
    x, y = (side.facts.family or None for side in (ours, theirs))
    yield CompatibilityReason("family", x, y, NOTE, "", better)


def display_bytes(text: bytes) -> str:
    """Return the beginning of a token's text, with invalid UTF-8 escaped."""
    short = text[:MAX_SHOWN_BYTES].decode(errors="backslashreplace")
    return short + "…" if len(text) > MAX_SHOWN_BYTES else short
