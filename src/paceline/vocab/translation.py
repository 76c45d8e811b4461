"""Translation of the target's tokens to the draft model's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.speculative.interfaces import Caps
from paceline.vocab.intersection import Intersection
from paceline.vocab.lexicon import Lexicon


class Translation:
    """A translation of text. It cannot change the output, only how well the draft model guesses."""

    def __init__(self, target: Lexicon, draft: Lexicon, common: Intersection) -> None:
        self.target, self.draft, self.common = target, draft, common
        pairs = zip(common.target_ids.tolist(), common.draft_ids.tolist(), strict=True)
        self._shared = frozenset(common.target_ids.tolist())
        self._known: dict[int, tuple[int, ...]] = {ours: (theirs,) for ours, theirs in pairs}

    @property
    def lead(self) -> int:
        """Number of leading tokens of `prompt` that are not text: the draft's BOS, if it uses one."""
        return int(self.draft.vocab.add_bos and self.draft.vocab.bos is not None)

    def coverage(self, tokens: Sequence[int]) -> float:
        """Return the share of the target's `tokens` that the draft also has."""
        return sum(token in self._shared for token in tokens) / max(1, len(tokens))

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
