"""A vocabulary in both directions: what each token says, and the tokens that say a given text."""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.core.vocab import Vocab

# What decoding with "surrogateescape" makes of bytes that are no whole characters.
BROKEN = re.compile("([\udc80-\udcff]+)")


class Lexicon:
    """encode: the tokenizer, for text within a text, without control tokens.

    pieces: every token's bytes, none for one that says no text: a control token, or one that ends it.
    names: the stored text of those. by_piece, by_name: the token that says it; of several the one that the
    tokenizer takes, or the first."""

    def __init__(self, vocab: Vocab, encode: Callable[[str], list[int]]) -> None:
        self.vocab = vocab
        self._encode = encode
        # All of it is read now: a model that was closed cannot be asked any more.
        self.pieces = [b"" if token in vocab.eos else vocab.piece(token) for token in range(vocab.size)]
        self.names = {token: vocab.text(token) for token, piece in enumerate(self.pieces) if not piece}
        self.by_name = {name: token for token, name in reversed(self.names.items()) if name}
        self._longest = max(map(len, self.pieces), default=0)
        # In place of what cannot be said.
        self.filler = vocab.bos if vocab.bos is not None else min(vocab.eos, default=0)
        self.by_piece: dict[bytes, int] = {}
        again: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            if piece and self.by_piece.setdefault(piece, token) != token:
                again.setdefault(piece, [self.by_piece[piece]]).append(token)
        for piece, tokens in again.items():
            taken = self.spell(piece)
            if len(taken) == 1 and taken[0] in tokens:
                self.by_piece[piece] = taken[0]

    def spell(self, data: bytes) -> list[int]:
        """Tokens that say exactly `data`: the tokenizer's, or where it would change the text or bytes are no
        whole characters the longest there are. A byte that no token says becomes the filler."""
        out: list[int] = []
        for i, run in enumerate(BROKEN.split(data.decode(errors="surrogateescape"))):
            raw = run.encode(errors="surrogateescape")
            tokens = self._encode(run) if run and i % 2 == 0 else []
            out += tokens if self.say(tokens) == raw else self._greedy(raw)
        return out

    def say(self, tokens: list[int]) -> bytes:
        return b"".join(self.pieces[token] for token in tokens)

    def _greedy(self, data: bytes) -> list[int]:
        out: list[int] = []
        at = 0
        while at < len(data):
            for n in range(min(self._longest, len(data) - at), 0, -1):
                token = self.by_piece.get(data[at : at + n])
                if token is not None:
                    break
            else:
                token, n = self.filler, 1
            out.append(token)
            at += n
        return out
