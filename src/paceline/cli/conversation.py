"""A conversation with a model: its messages, their file, and the prompt of the next request."""

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
MESSAGES = "Begin with a JSON list of messages. Each has a role and content."
MessagesFile = Annotated[Path | None, option(PROMPT, "--messages", "FILE", MESSAGES, env=False)]
SystemPrompt = Annotated[
    str | None, option(PROMPT, "--system", "TEXT", "A system prompt: how the model is to answer.")
]
FORM = 'write a list: [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
MIN_ANSWER_TOKENS = 256  # reserved for an answer, at most a quarter of the context


def read_messages(file: Path) -> list[Message]:
    """Read a JSON list of messages with role and content. Raises UsageError."""
    try:
        data = json.loads(read_text(file))
        listed = data["messages"] if isinstance(data, dict) else data  # the body of a chat request
        messages: list[Message] = [{name: item[name] for name in ("role", "content")} for item in listed]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise UsageError(f"{file}: is no JSON list of messages ({error}); {FORM}") from error
    for number, message in enumerate(messages):
        where = f"{file}: messages[{number}]"
        for name, value in message.items():
            typed.text(f"{where}: its {name}", value)
        if number and message["role"] == "system":
            raise UsageError(f"{where}: a system prompt in the middle: it has to be the first message")
    return messages


def first_messages(system: str | None, file: Path | None) -> list[Message]:
    """Return the messages of --system and --messages. Raises UsageError."""
    messages = [] if file is None else read_messages(file)
    if system is None:
        return messages
    if messages and messages[0]["role"] == "system":
        raise UsageError(f"--system and {file}, which has a system prompt: leave out one of them")
    return [{"role": "system", "content": typed.text("--system", system)}, *messages]


def write_messages(file: Path, messages: list[Message]) -> None:
    """Write messages to a new file, or to one that `read_messages` can read. Raises PacelineError."""
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
    """A conversation with a model.
    messages: all messages, the system prompt first, also those that no longer fit the context."""

    def __init__(self, llm: LLM, messages: Sequence[Message] = ()) -> None:
        self._llm = llm
        self.messages = list(messages)
        self._hidden = 0  # messages after the system prompt that no longer fit the context
        self._last_turn: tuple[list[int], list[int]] = [], []  # prompt and answer

    @property
    def system(self) -> str | None:
        """The system prompt, if there is one."""
        first = self.messages[0] if self.messages else {"role": ""}
        return first["content"] if first["role"] == "system" else None

    @system.setter
    def system(self, text: str) -> None:
        self.messages[: self.system is not None] = [{"role": "system", "content": text}]

    @property
    def tokens(self) -> int:
        """The number of tokens of the last turn, in the context."""
        return sum(map(len, self._last_turn))

    def add_answer(self, prompt: Sequence[int], generation: Generation) -> None:
        """Add an answer to a prompt."""
        self.messages.append({"role": "assistant", "content": generation.text})
        self._last_turn = list(prompt), list(generation.tokens)

    def clear(self) -> None:
        """Remove all messages except the system prompt."""
        del self.messages[self.system is not None :]
        self._hidden, self._last_turn = 0, ([], [])

    def prompt(self) -> tuple[list[int], int]:
        """Return the tokens of the next prompt, and the number of turns that were dropped from it.
        If the context is full, the oldest turns are dropped until half of it is free, so that this happens
        rarely. A message that is too long by itself drops none."""
        n_ctx = self._llm.target.caps.n_ctx
        tokens = self._encoded(self._hidden)
        if len(tokens) + min(MIN_ANSWER_TOKENS, n_ctx // 4) <= n_ctx:
            return tokens, 0
        later = self.messages[self.system is not None :]
        turns = [at for at in range(self._hidden + 1, len(later)) if later[at]["role"] == "user"]
        for dropped, hidden in enumerate(turns, 1):
            shorter = self._encoded(hidden)
            if len(shorter) <= n_ctx // 2 or (hidden == turns[-1] and len(shorter) <= n_ctx):
                self._hidden = hidden
                return shorter, dropped
        return tokens, 0

    def _encoded(self, hidden: int) -> list[int]:
        start = int(self.system is not None)
        tokens = self._llm.chat_tokens(self.messages[:start] + self.messages[start + hidden :])
        # The last answer keeps its tokens: the text may be tokenized otherwise, and miss the cache.
        prompt, answer = self._last_turn
        vocab = self._llm.target.vocab
        if answer and answer[-1] in vocab.eos:
            answer = answer[:-1]
        text, end, prefix = b"".join(map(vocab.piece, answer)), len(prompt), b""
        if not text or tokens[:end] != prompt:
            return tokens
        while end < len(tokens) and len(prefix) < len(text):
            prefix += vocab.piece(tokens[end])
            end += 1
        return prompt + answer + tokens[end:] if prefix == text else tokens
