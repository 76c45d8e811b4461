"""Prompts and messages from files, stdin, and a terminal with line editing and a history; a conversation."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli.interrupts import on_interrupt
from paceline.cli.options import PROMPT, option
from paceline.speculative import validation as typed
from paceline.speculative.errors import PacelineError, UsageError
from paceline.system.home import make_private_folder
from paceline.system.shutdown import cleanup_on_exit
from paceline.text.messages import Message, parse_messages

if TYPE_CHECKING:
    from paceline.api import LLM
    from paceline.request_handle import Generation

MESSAGES = "Begin with a JSON list of messages. Each has a role and content."
MessagesFile = Annotated[Path | None, option(PROMPT, "--messages", "FILE", MESSAGES, env=False)]
SystemPrompt = Annotated[
    str | None, option(PROMPT, "--system", "TEXT", "A system prompt: how the model is to answer.")
]
FORM = 'write a list: [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
MIN_ANSWER_TOKENS = 256  # reserved for an answer, at most a quarter of the context
QUOTES = '"""'
MAX_TEXT_BYTES = 1 << 26  # more than any context holds; a device may be endless
HISTORY_LINES = 1000


def read_text(file: Path) -> str:
    """Return the text of a file. Raises UsageError if it cannot be read or is not UTF-8."""
    try:
        with file.open("rb") as stream:
            return decode(stream.read(MAX_TEXT_BYTES + 1), str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); give a text file") from error


def read_prompt(argument: str | None, option: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, -p, -f or stdin ("-", or no source). Raises UsageError."""
    if sum(x is not None for x in (argument, option, file)) > 1:
        raise UsageError("more than one prompt: give it as an argument, with -p, with -f or on stdin")
    text = argument if argument is not None else option
    where = "the prompt"
    if file is not None and str(file) != "-":
        text, where = read_text(file), f"{file}: the file"
    elif text is not None and text != "-":
        text = typed.text("the prompt", text)
    elif sys.stdin is not None and (text is not None or file is not None or not sys.stdin.isatty()):
        text, where = decode(sys.stdin.buffer.read(MAX_TEXT_BYTES + 1), "stdin"), "stdin: the prompt"
    if not text:
        why = "no prompt" if text is None else f"{where} is empty"
        raise UsageError(f"{why}: give it as an argument, with -p, with -f FILE or on stdin")
    return text


def read_prompts(file: Path) -> list[str]:
    """Return a prompt for each line: text or (.jsonl) an object with a "prompt". Raises UsageError."""
    prompts = []
    # splitlines() would also split at form feeds and other characters of a prompt.
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), 1):
        where, text = f"{file}, line {number}", line.removesuffix("\r")
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            text = json.loads(text)["prompt"] if file.suffix == ".jsonl" else text
            if typed.text(where, text).strip():
                prompts.append(text)
                continue
        form = 'a JSON object with a "prompt"' if file.suffix == ".jsonl" else "a prompt"
        raise UsageError(f"{where}: give {form} in every line")
    return prompts


def decode(data: bytes, where: str) -> str:
    """Return UTF-8 text without a byte order mark. Raises UsageError."""
    if len(data) > MAX_TEXT_BYTES:
        why = f"has more than {MAX_TEXT_BYTES >> 20} MiB, which no model reads: shorten it"
        raise UsageError(f"{where}: {why}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: is not UTF-8 text (byte {error.start}); convert it first") from error


def strip_block_quotes(text: str) -> str:
    """Return a message without the quotes of a block."""
    inner = text.strip()
    if not inner.startswith(QUOTES):
        return text
    return inner.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def is_complete(lines: list[str]) -> bool:
    """Return True if the lines are a whole message: one line, or a block with its closing quotes."""
    first = lines[0].strip()
    if len(lines) == 1 and first.startswith(QUOTES):
        return first[len(QUOTES) :].endswith(QUOTES)
    return len(lines) == 1 or lines[-1].rstrip().endswith(QUOTES)


def read_piped_messages() -> Iterator[str]:
    """Yield the messages of stdin. Raises UsageError for one that is not UTF-8."""
    lines = list[str]()
    for line in [] if sys.stdin is None else sys.stdin.buffer:
        lines.append(decode(line, "stdin"))
        if is_complete(lines):
            yield "".join(lines).removesuffix("\n").removesuffix("\r")
            lines = []
    if lines:
        yield "".join(lines)


def read_typed_messages(file: Path, warn: Callable[[str], None], sent: Callable[[], None]) -> Iterator[str]:
    """Yield messages typed at a terminal until Ctrl-D.
    file: of earlier lines. sent: called as soon as a line is sent."""
    lines = list[str]()
    with _terminal_restored():
        save = _history(file, warn)
        while True:
            try:
                with on_interrupt():
                    lines.append(input("... " if lines else ">>> "))
                    sent()
            except KeyboardInterrupt:
                sys.stderr.write("\nCtrl-D or /bye ends the chat.\n")
                lines = []
            except EOFError:
                return
            else:
                with suppress(OSError):
                    save()
                if is_complete(lines):
                    yield "\n".join(lines)
                    lines = []


def _history(file: Path, warn: Callable[[str], None]) -> Callable[[], None]:
    """Enable line editing. Return the function that saves the history, readable by the user only."""
    try:
        import readline
    except ImportError:  # Windows
        return lambda: None
    try:
        make_private_folder(file.parent)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        if file.stat().st_size:
            readline.read_history_file(file)
    except OSError as error:
        warn(f"{file}: cannot be used ({error.strerror}); what is typed is not kept")
        return lambda: None
    readline.set_history_length(HISTORY_LINES)
    return lambda: readline.write_history_file(file)


@contextmanager
def _terminal_restored() -> Iterator[None]:
    """Restore the terminal's settings, however the process ends."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    with cleanup_on_exit(lambda: termios.tcsetattr(descriptor, termios.TCSANOW, before)):
        yield


def read_messages(file: Path) -> list[Message]:
    """Read a JSON list of messages in OpenAI's form. Raises UsageError."""
    text = read_text(file)
    try:
        data = json.loads(text)
        # A mapping is the body of a chat request.
        messages = parse_messages(data["messages"] if isinstance(data, dict) else data)
    except (ValueError, RecursionError, KeyError, UsageError) as error:
        raise UsageError(f"{file}: is no JSON list of messages ({error}); {FORM}") from error
    if any(message["role"] == "system" for message in messages[1:]):
        raise UsageError(f"{file}: a system prompt in the middle: it has to be the first message")
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
    from paceline.system.atomic import atomic_write, check_output

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
        return next((one["content"] for one in self.messages[:1] if one["role"] == "system"), None)

    @system.setter
    def system(self, text: str) -> None:
        self.messages[: self.system is not None] = [{"role": "system", "content": text}]

    @property
    def tokens(self) -> int:
        """The number of tokens of the last turn, in the context."""
        return sum(map(len, self._last_turn))

    def add_answer(self, prompt: Sequence[int], generation: Generation) -> None:
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
