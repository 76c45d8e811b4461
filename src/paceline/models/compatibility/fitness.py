"""Properties other than the vocabulary that decide how well a model drafts for another, from headers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.models.headers.facts import ATTENTION, HEAD_ARCHS, ModelFacts
from paceline.speculative.policy.speedup_formulas import distinct_experts

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


def reasons(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    for look in (architecture, memory, experts, size, context, template):
        yield from look(target, draft)


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
