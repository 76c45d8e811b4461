"""What decides, beside the vocabulary, how well one model drafts for another: told from headers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from paceline.models.compatibility.reason import FATAL, NOTE, WARNING, CompatibilityReason
from paceline.models.headers.facts import ATTENTION, ModelFacts

# llama.cpp's architectures that write no text from left to right, by what they are.
NO_LANGUAGE_MODELS = {
    "an embedding model": {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("eurobert", "xlm-roberta", "roberta", "distilbert", "gemma-embedding", "llama-embed"),
    },
    "an encoder": {"t5encoder", "clip", "wavtokenizer-dec"},
    "an encoder-decoder model": {"t5", "mt5", "umt5", "bart", "mbart", "marian", "pegasus", "whisper"},
    "a diffusion model": {"dream", "llada", "llada-moe", "rnd1"},
    "a draft head of another model": {"eagle3", "dflash", "gemma4-assistant"},
}
KINDS = {arch: kind for kind, archs in NO_LANGUAGE_MODELS.items() for arch in archs}
ROWS = 4  # of the pass that the price of experts is told for
HARDLY_SMALLER = 0.5  # of the target's parameters
# What looks like a marker of a chat template: <|im_start|>, <start_of_turn>, [INST].
MARKER = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
SHOWN = 3  # markers


def reasons(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    for look in (architecture, format_, memory, experts, window, size, context, template):
        yield from look(target, draft)


def architecture(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    said = []
    for role, facts in (("target", target), ("draft", draft)):
        if kind := KINDS.get(facts.arch) or ("an embedding model" if facts.pooling else ""):
            said.append(f"the {role} is {kind}: it writes no text")
    if said:
        yield CompatibilityReason(
            "architecture", target.arch, draft.arch, FATAL, "; ".join(said), "take a causal language model"
        )
    else:
        text = "" if target.arch == draft.arch else "no matter: only their tokens meet"
        yield CompatibilityReason("architecture", target.arch, draft.arch, NOTE, text)


def format_(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    others = [role for role, facts in (("target", target), ("draft", draft)) if facts.format != "gguf"]
    if others:
        yield CompatibilityReason(
            "format",
            target.format,
            draft.format,
            NOTE,
            f"the {' and the '.join(others)}: to be run through transformers ('paceline[hf]')",
        )


def memory(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    values = target.memory, draft.memory
    if target.memory != ATTENTION:
        yield CompatibilityReason(
            "memory",
            *values,
            FATAL,
            "the target's state cannot be rolled back yet: nothing can be drafted for it",
            "decode it plainly (--draft none)",
        )
    elif draft.memory != ATTENTION:
        yield CompatibilityReason(
            "memory",
            *values,
            FATAL,
            "the draft's state cannot be rolled back yet: it cannot draft",
            "take a draft without recurrent layers",
        )


def experts(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    if not target.experts and not draft.experts:
        return
    values = _experts(target), _experts(draft)
    if 0 < target.experts_used < target.experts:
        touched = touched_experts(target.experts, target.experts_used, ROWS)
        yield CompatibilityReason(
            "experts",
            *values,
            WARNING,
            f"{ROWS} tokens of a pass read about {touched:.0f} of the target's {target.experts} experts, "
            f"{touched / target.experts_used:.1f}x what one does: only short or sure drafts pay",
            f"measure what a pass costs by its tokens: paceline doctor -m {shlex.quote(str(target.path))}"
            if target.format == "gguf"
            else "",
        )
    else:
        yield CompatibilityReason(
            "experts", *values, NOTE, "a draft computes one token at a time: few experts each"
        )


def _experts(facts: ModelFacts) -> dict[str, int] | None:
    return {"all": facts.experts, "used": facts.experts_used} if facts.experts else None


def touched_experts(n: int, used: int, tokens: int) -> float:
    """How many different experts `tokens` tokens are expected to use, were each token's drawn by itself."""
    return n * (1 - (1 - used / n) ** tokens)


def window(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    if target.sliding_window or draft.sliding_window:
        yield CompatibilityReason(
            "sliding window",
            target.sliding_window or None,
            draft.sliding_window or None,
            NOTE,
            "the whole context is kept, so that rejected tokens can be taken back: it saves no memory",
        )


def size(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    values = target.parameters, draft.parameters
    if not target.parameters or not draft.parameters:
        return
    ratio = draft.parameters / target.parameters
    if ratio >= 1:
        text, weight = "the draft is no smaller than the target: it cannot save time", WARNING
    elif ratio > HARDLY_SMALLER:
        text, weight = f"the draft has {ratio:.0%} of the target's parameters: too many to save much", WARNING
    else:
        text, weight = f"the draft has {ratio:.1%} of the target's", NOTE
    yield CompatibilityReason(
        "parameters", *values, weight, text, "take a smaller draft" if weight == WARNING else ""
    )


def context(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    if not target.n_ctx or not draft.n_ctx:
        return
    shorter = draft.n_ctx < target.n_ctx
    yield CompatibilityReason(
        "context",
        target.n_ctx,
        draft.n_ctx,
        WARNING if shorter else NOTE,
        f"beyond {draft.n_ctx:,} tokens the draft guesses badly" if shorter else "",
    )


def template(target: ModelFacts, draft: ModelFacts) -> Iterator[CompatibilityReason]:
    """The draft reads the target's tokens, and so the target's template."""
    ours, theirs = target.chat_template, draft.chat_template
    weight, text = NOTE, ""
    if ours and theirs and ours.strip() != theirs.strip():
        missing = sorted(markers(ours) - markers(theirs))
        if missing:
            weight = WARNING
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            text = (
                "the draft reads the target's, and was trained on another, without "
                f"{', '.join(missing[:SHOWN])}{more}: in chats it will be right less often"
            )
        else:
            text = "the draft reads the target's, whose markers it knows"
    elif ours and not theirs:
        text = "the draft, perhaps a base model, reads the target's: in chats it may be right less often"
    elif theirs and not ours:
        text = "the target has none, so that there are no chats"
    yield CompatibilityReason("chat template", _stated(ours), _stated(theirs), weight, text)


def markers(text: str) -> set[str]:
    return set(MARKER.findall(text))


def _stated(text: str | None) -> str | None:
    return f"{len(text):,} characters" if text else None
