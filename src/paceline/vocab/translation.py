"""Whether two models share a vocabulary, the tokens that two vocabularies share, and translation from the
target's to the draft model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import VocabError
from paceline.speculative.interfaces import Caps
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.lexicon import TokenizerVocab

Ids = NDArray[np.int64]
SAMPLE = Path(__file__).with_name("sample.txt")  # typical output, on which tokenizers are compared


@dataclass(frozen=True, slots=True)
class Intersection:
    """Pairs of tokens, target_ids[i] and draft_ids[i], with the same bytes or the same control name.
    Each id is in at most one pair; target_ids ascend."""

    target_ids: Ids
    draft_ids: Ids

    def __len__(self) -> int:
        return len(self.target_ids)

    @classmethod
    def of(cls, target: TokenizerVocab, draft: TokenizerVocab) -> Intersection:
        """Match the tokens of two vocabularies."""
        pairs = {
            ours: draft.by_bytes[data] for data, ours in target.by_bytes.items() if data in draft.by_bytes
        }
        pairs |= {ours: draft.by_name[name] for name, ours in target.by_name.items() if name in draft.by_name}
        ends, their_ends = target.vocab.eos, draft.vocab.eos
        if ends and their_ends and not any(pairs.get(end) in their_ends for end in ends):
            # Names differ, but both end the text.
            end, their_end = min(ends), min(their_ends)
            pairs = {ours: theirs for ours, theirs in pairs.items() if theirs != their_end} | {end: their_end}
        ordered = np.array(sorted(pairs.items()), dtype=np.int64).reshape(-1, 2)
        return cls(ordered[:, 0].copy(), ordered[:, 1].copy())


class Translation:
    """A translation of text. It cannot change the output, only how well the draft model guesses.
    common: the tokens that both have."""

    def __init__(self, target: TokenizerVocab, draft: TokenizerVocab) -> None:
        self.target, self.draft, self.common = target, draft, Intersection.of(target, draft)
        pairs = zip(self.common.target_ids.tolist(), self.common.draft_ids.tolist(), strict=True)
        self._known: dict[int, tuple[int, ...]] = {ours: (theirs,) for ours, theirs in pairs}

    @property
    def lead(self) -> int:
        """Number of leading tokens of `prompt` that are not text: the draft's BOS, if it uses one."""
        return int(self.draft.vocab.add_bos and self.draft.vocab.bos is not None)

    def coverage(self, tokens: Sequence[int]) -> float:
        """Return the share of the target's `tokens` that the draft also has."""
        shared = set(self.common.target_ids.tolist())
        return sum(token in shared for token in tokens) / max(1, len(tokens))

    def token(self, token: int) -> tuple[int, ...]:
        """Return the counterpart, or else the encoded bytes or control-token name; at least one token."""
        translated = self._known.get(token)
        if translated is None:
            data = self.target.token_bytes[token] or self.target.names[token]
            translated = self._known[token] = tuple(self.draft.encode(data)) or (self.draft.filler,)
        return translated

    def text(self, tokens: Sequence[int]) -> list[int]:
        """Tokenize the text of `tokens` with the draft's tokenizer; control tokens divide it into parts."""
        out: list[int] = []
        part = bytearray()
        for token in tokens:
            data = self.target.token_bytes[token]
            part += data
            if not data:
                out += [*self.draft.encode(bytes(part)), *self.token(token)]
                part.clear()
        return out + self.draft.encode(bytes(part))

    def prompt(self, tokens: Sequence[int]) -> list[int]:
        """Return at least one token; the draft's BOS replaces the target's."""
        vocab = self.target.vocab
        if vocab.add_bos and tokens[0] == vocab.bos:
            tokens = tokens[1:]
        return [self.draft.filler] * self.lead + self.text(tokens) or [self.draft.filler]


def window(tokens: list[int], lead: int, caps: Caps) -> list[int]:
    """Return `tokens` limited to what the draft's context holds beside the largest tree.
    It keeps the `lead` and the end of the text, and moves by half its length, so that the cache is seldom
    recomputed."""
    room = caps.n_ctx - largest(caps)
    over = len(tokens) - room
    if over <= 0:
        return tokens
    half = max(1, room // 2)
    return tokens[:lead] + tokens[lead + -(-over // half) * half :]


def largest(caps: Caps) -> int:
    """Return the rows of the largest tree, which leave at least half of the context to the text."""
    return min(caps.max_batch_tokens, caps.n_ctx // 2)


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
