"""A check that two models share a vocabulary: tokenizer type, special tokens and token texts."""

from __future__ import annotations

from paceline.speculative.errors import VocabError
from paceline.speculative.vocabulary import Vocab

# llama.cpp's tolerances for a draft model: padding may differ by so many tokens, and the first ids, which are
# control tokens, may have other texts.
MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED_ID = 5


def check_shared(target: Vocab, draft: Vocab) -> None:
    """Raise VocabError unless token ids mean the same to both models."""
    if difference := _difference(target, draft):
        raise VocabError(f"the draft has another vocabulary: {difference}; use a draft of the same family")


def _difference(target: Vocab, draft: Vocab) -> str:
    for what, ours, theirs in zip(
        ("tokenizer type", "BOS token", "EOS token"), _described(target), _described(draft), strict=True
    ):
        if ours != theirs:
            return f"{what} is {theirs}, target {ours}"
    if abs(target.size - draft.size) > MAX_SIZE_DIFFERENCE:
        return f"{draft.size:,} tokens, target {target.size:,}"
    for token in range(FIRST_COMPARED_ID, min(target.size, draft.size)):
        if target.text(token) != draft.text(token):
            return f"token {token} is {draft.text(token)!r}, target {target.text(token)!r}"
    return ""


def _described(vocab: Vocab) -> tuple[str, str, str]:
    bos, eos = "none" if vocab.bos is None else vocab.bos, ", ".join(map(str, sorted(vocab.eos))) or "none"
    before, after = ("every" if added else "no" for added in (vocab.add_bos, vocab.add_eos))
    return vocab.kind, f"{bos} (is put before {before} text)", f"{eos} (is put after {after} text)"
