"""A vocabulary in both directions: the bytes of each token, and the tokens of given bytes."""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.speculative.vocabulary import Vocab

INVALID_BYTES = re.compile("([\udc80-\udcff]+)")  # as decoded with "surrogateescape"


class TokenizerVocab:
    """A vocabulary and its tokenizer.
    tokenize: tokenizes text inside a text, without control tokens.
    token_bytes: bytes by token; empty for control tokens and ends of text.
    names: stored text of the tokens without bytes.
    by_bytes, by_name: the token with these bytes or this name; of several the tokenizer's, or the first."""

    def __init__(self, vocab: Vocab, tokenize: Callable[[str], list[int]]) -> None:
        self.vocab = vocab
        self._tokenize = tokenize
        # Read everything now, as the model may be closed later.
        self.token_bytes = [b"" if token in vocab.eos else vocab.piece(token) for token in range(vocab.size)]
        self.names = {token: vocab.text(token) for token, data in enumerate(self.token_bytes) if not data}
        self.by_name = {name: token for token, name in reversed(self.names.items()) if name}
        self._longest = max(map(len, self.token_bytes), default=0)
        # Stands for bytes that cannot be encoded.
        self.filler = vocab.bos if vocab.bos is not None else min(vocab.eos, default=0)
        self.by_bytes: dict[bytes, int] = {}
        duplicates: dict[bytes, list[int]] = {}
        for token, data in enumerate(self.token_bytes):
            if data and self.by_bytes.setdefault(data, token) != token:
                duplicates.setdefault(data, [self.by_bytes[data]]).append(token)
        for data, tokens in duplicates.items():
            taken = self.encode(data)
            if len(taken) == 1 and taken[0] in tokens:
                self.by_bytes[data] = taken[0]

    def encode(self, data: bytes) -> list[int]:
        """Return tokens whose bytes are exactly `data`.
        Where the tokenizer would change the text, or bytes are invalid UTF-8, the longest matching tokens are
        used. A byte without a token becomes the filler."""
        out: list[int] = []
        for i, run in enumerate(INVALID_BYTES.split(data.decode(errors="surrogateescape"))):
            raw = run.encode(errors="surrogateescape")
            tokens = self._tokenize(run) if run and i % 2 == 0 else []
            out += tokens if self.decode(tokens) == raw else self._longest_match(raw)
        return out

    def decode(self, tokens: list[int]) -> bytes:
        return b"".join(self.token_bytes[token] for token in tokens)

    def _longest_match(self, data: bytes) -> list[int]:
        out: list[int] = []
        at = 0
        while at < len(data):
            for n in range(min(self._longest, len(data) - at), 0, -1):
                token = self.by_bytes.get(data[at : at + n])
                if token is not None:
                    break
            else:
                token, n = self.filler, 1
            out.append(token)
            at += n
        return out
