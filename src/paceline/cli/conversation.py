"""A conversation with a model: who said what, in files and as the tokens of the next request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli.options import PROMPT, option
from paceline.cli.texts import read_text
from paceline.speculative import validation as typed
from paceline.speculative.errors import PacelineError, UsageError

if TYPE_CHECKING:
    from paceline.api import LLM
    from paceline.request_handle import Generation

Message = dict[str, str]
MessagesFile = Annotated[
    Path | None,
    option(
        PROMPT,
        "--messages",
        "FILE",
        "Begin with a conversation: a JSON list of messages with role and content.",
        env=False,
    ),
]
SystemPrompt = Annotated[
    str | None, option(PROMPT, "--system", "TEXT", "A system prompt: how the model is to answer.")
]
FORM = 'write a list: [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
MIN_ANSWER_TOKENS = 256  # tokens that an answer has at least, or a quarter of a small context


def read_messages(file: Path) -> list[Message]:
    """Read a JSON list of messages with role and content. Raises UsageError for what is no conversation."""
    try:
        data = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is no JSON ({error}); {FORM}") from error
    if isinstance(data, dict):
        data = data.get("messages")  # as a request to a server has it
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise UsageError(f"{file}: is no list of messages; {FORM}")
    messages = []
    for number, one in enumerate(data):
        where = f"{file}: messages[{number}]"
        role = typed.text(f"{where}: its role", one.get("role"))
        messages.append({"role": role, "content": typed.text(f"{where}: its content", one.get("content"))})
        if number and role == "system":
            raise UsageError(f"{where}: a system prompt in the middle: it has to be the first message")
    return messages


def first_messages(system: str | None, file: Path | None) -> list[Message]:
    """Return what --system and --messages begin a conversation with. Raises UsageError."""
    messages = [] if file is None else read_messages(file)
    if system is None:
        return messages
    if messages and messages[0]["role"] == "system":
        raise UsageError(f"--system and {file}, which has a system prompt: leave out one of them")
    return [{"role": "system", "content": typed.text("--system", system)}, *messages]


def write_messages(file: Path, messages: list[Message]) -> None:
    """Replace a file that `read_messages` can read, and no other. Raises PacelineError."""
    from paceline.system.whole import atomic_write, check_output

    check_output(file, force=True)
    if file.exists():
        try:
            read_messages(file)
        except PacelineError:
            raise UsageError(f"{file} exists, and is no conversation: choose another name") from None
    with atomic_write(file) as part:
        part.write_text(json.dumps(messages, ensure_ascii=False, indent=1) + "\n", "utf-8")


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
    def tokens(self) -> int:
        """The part of the context that the last turn took."""
        return sum(map(len, self._last))

    def add_user_message(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def remove_last_message(self) -> None:
        """Forget the question that got no answer."""
        self.messages.pop()

    def add_answer(self, prompt: Sequence[int], generation: Generation) -> None:
        """Add an answer. prompt: the tokens that the question was asked with."""
        self.messages.append({"role": "assistant", "content": generation.text})
        self._last = list(prompt), list(generation.tokens)

    def clear(self) -> None:
        """Forget all but the system prompt."""
        del self.messages[self.system is not None :]
        self._hidden, self._last = 0, ([], [])

    def prompt(self) -> tuple[list[int], int]:
        """Return the tokens to ask with, and how many turns the model has just lost sight of.

        Where the context is full these are as many of the oldest as leave half of it free, so that this
        happens rarely. None are lost to a message that is too long by itself."""
        n_ctx = self._llm.target.caps.n_ctx
        tokens = self._encoded(self._hidden)
        if len(tokens) + min(MIN_ANSWER_TOKENS, n_ctx // 4) <= n_ctx:
            return tokens, 0
        after_system = self.messages[self.system is not None :]
        turns = [
            at for at in range(self._hidden + 1, len(after_system)) if after_system[at]["role"] == "user"
        ]
        for dropped, hidden in enumerate(turns, 1):
            shorter = self._encoded(hidden)
            if len(shorter) <= n_ctx // 2 or (hidden == turns[-1] and len(shorter) <= n_ctx):
                self._hidden = hidden
                return shorter, dropped
        return tokens, 0

    def _encoded(self, hidden: int) -> list[int]:
        start = int(self.system is not None)
        tokens = self._llm.chat_tokens(self.messages[:start] + self.messages[start + hidden :])
        # The last answer keeps the tokens that it was said in: the same text may have others, which would not
        # be in the cache.
        prompt, answer = self._last
        vocab = self._llm.target.vocab
        if answer and answer[-1] in vocab.eos:
            answer = answer[:-1]
        value, end, read = b"".join(map(vocab.piece, answer)), len(prompt), b""
        if not value or tokens[:end] != prompt:
            return tokens
        while end < len(tokens) and len(read) < len(value):
            read += vocab.piece(tokens[end])
            end += 1
        return prompt + answer + tokens[end:] if read == value else tokens
