"""What a vocabulary is, and whether two models share one (same type, special tokens and text)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.errors import VocabError

# llama.cpp's own tolerances for a draft model: padding may differ by this many tokens, and the
# first few ids may be spelled differently (they are control tokens).
MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED_ID = 5


@dataclass(frozen=True)
class Vocab:
    """size: rows of the output layer. eos: every token that ends generation.
    text: the token's stored text, as the model file spells it. piece: the bytes it stands for in a text;
    a control token stands for none."""

    size: int
    kind: str
    bos: int | None
    eos: frozenset[int]
    add_bos: bool
    add_eos: bool
    text: Callable[[int], bytes]
    piece: Callable[[int], bytes]


def check_shared(target: Vocab, draft: Vocab) -> None:
    """Raise VocabError unless a token id means the same to both models."""
    advice = (
        "use a draft of the same family, --cross-vocab auto to translate, or --draft lookup, "
        "which needs no draft model"
    )
    for what, ours, theirs in (
        ("tokenizer type", target.kind, draft.kind),
        ("BOS token", (target.add_bos, target.bos), (draft.add_bos, draft.bos)),
        ("EOS token", (target.add_eos, sorted(target.eos)), (draft.add_eos, sorted(draft.eos))),
    ):
        if ours != theirs:
            raise VocabError(f"the draft has another vocabulary: {what} is {theirs}, target {ours}; {advice}")
    if abs(target.size - draft.size) > MAX_SIZE_DIFFERENCE:
        raise VocabError(
            f"the draft has another vocabulary: {draft.size:,} tokens, target {target.size:,}; {advice}"
        )
    for token in range(FIRST_COMPARED_ID, min(target.size, draft.size)):
        if target.text(token) != draft.text(token):
            raise VocabError(
                f"the draft has another vocabulary: token {token} is {draft.text(token)!r}, "
                f"target {target.text(token)!r}; {advice}"
            )
