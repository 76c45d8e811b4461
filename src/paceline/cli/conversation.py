"""A conversation with a model: who said what, as messages and as the tokens of the next request."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.api import LLM
from paceline.cli.messages import Message
from paceline.request_handle import Generation

ROOM = 256  # tokens that an answer has at least, or a quarter of a small context


class Conversation:
    """messages: all that was said, the system prompt first. What does not fit the context any more stays
    there, but the model does not see it."""

    def __init__(self, llm: LLM, messages: Sequence[Message] = ()) -> None:
        self._llm = llm
        self.messages = list(messages)
        self._hidden = 0  # messages after the system prompt that the model does not see any more
        self._last: tuple[list[int], list[int]] = [], []  # of the last turn: its prompt, and the answer

    @property
    def system(self) -> str | None:
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str) -> None:
        self.messages[: self.system is not None] = [{"role": "system", "content": text}]

    @property
    def turns(self) -> int:
        return sum(one["role"] == "user" for one in self.messages)

    @property
    def tokens(self) -> int:
        """Of the context that the last turn took."""
        return sum(map(len, self._last))

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def take_back(self) -> None:
        """The question that got no answer."""
        self.messages.pop()

    def answered(self, prompt: Sequence[int], said: Generation) -> None:
        """prompt: the tokens that the question was asked with."""
        self.messages.append({"role": "assistant", "content": said.text})
        self._last = list(prompt), list(said.tokens)

    def clear(self) -> None:
        """All but the system prompt is forgotten."""
        del self.messages[self.system is not None :]
        self._hidden, self._last = 0, ([], [])

    def prompt(self) -> tuple[list[int], int]:
        """The tokens to ask with; and how many turns the model has just lost sight of, because the context is
        full: then as many of the oldest as leave half of it free, so that this happens rarely. None are lost
        to a message that is too long by itself."""
        n_ctx = self._llm.target.caps.n_ctx
        tokens = self._encoded()
        if len(tokens) + min(ROOM, n_ctx // 4) <= n_ctx:
            return tokens, 0
        dropped, before = 0, self._hidden
        while len(tokens) > n_ctx // 2 and (after := self._next_turn()) is not None:
            self._hidden = after
            dropped += 1
            tokens = self._encoded()
        if len(tokens) > n_ctx:  # the last message alone is too long
            self._hidden, dropped = before, 0
        return tokens, dropped

    def _next_turn(self) -> int | None:
        """How many messages are hidden where one more turn is."""
        said = self.messages[self.system is not None :]
        later = (at for at in range(self._hidden + 1, len(said)) if said[at]["role"] == "user")
        return next(later, None)

    def _encoded(self) -> list[int]:
        start = int(self.system is not None)
        seen = self.messages[:start] + self.messages[start + self._hidden :]
        return self._as_said(self._llm.chat_tokens(seen))

    def _as_said(self, tokens: list[int]) -> list[int]:
        """With the last answer in the tokens that it was said in: the same text may have others, which would
        not be in the cache."""
        prompt, answer = self._last
        vocab = self._llm.target.vocab
        if answer and answer[-1] in vocab.eos:
            answer = answer[:-1]
        said, end, read = b"".join(map(vocab.piece, answer)), len(prompt), b""
        if not said or tokens[:end] != prompt:
            return tokens
        while end < len(tokens) and len(read) < len(said):
            read += vocab.piece(tokens[end])
            end += 1
        return prompt + answer + tokens[end:] if read == said else tokens
