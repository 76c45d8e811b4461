"""The loop of a chat: answers messages and runs commands; an error does not end the chat."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any

from rich.console import Console

from paceline.api import LLM
from paceline.cli.completion import PrefillProgress, as_record, until_interrupted
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.output import with_typed_names
from paceline.cli.texts import Conversation, strip_block_quotes, write_messages
from paceline.report.table import SourceMarks, details, summary, write_phases
from paceline.request_handle import Generation
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.printable import count, printable, truncated
from paceline.speculative.sampling import Sampling
from paceline.speculative.validation import did_you_mean
from paceline.system.home import expand_user
from paceline.system.terminal import WordWrap, wrapped

COMMAND = re.compile(r"/([a-z?]+)(?:\s+(.*))?", re.DOTALL)
HELP = '''\
/help           print this list
/stats          the last answer: speed, acceptance of drafts, time of each phase
/sources        colour the text by drafter, or stop colouring it
/system TEXT    set the system prompt; without TEXT: show it
/save FILE      save the conversation as JSON, for --messages FILE
/clear          forget the conversation, except the system prompt
/bye            end the chat; so does Ctrl-D
"""             begins a message of several lines, and ends it
Ctrl-C          stops an answer, which stays as far as it came; at the prompt it clears the line
'''

CONTEXT_ADVICE = "-c N for a larger one; /clear begins anew"


@dataclass
class ChatLoop:
    """A chat with a model. Answers go to stdout, everything else to stderr.
    request: arguments of LLM.stream, without the prompt and the sampling; each turn increments the seed.
    early: set by Ctrl-C before an answer has begun. interactive: Ctrl-C stops an answer, not the chat."""

    llm: LLM
    conversation: Conversation
    request: dict[str, Any]
    sampling: Sampling
    early: Event
    interactive: bool

    def __post_init__(self) -> None:
        self._marks, self._show_sources = SourceMarks(Console(file=sys.stdout)), False
        self._last: dict[str, Any] | None = None  # the last answer's record
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: note(HELP.rstrip("\n")),
            "stats": self._stats,
            "sources": self._sources,
            "system": self._system,
            "save": self._save,
            "clear": self._clear,
        }

    def run(self, lines: Iterable[str]) -> int:
        """Answer until /bye or the last line. Return the exit code of the last error or of Ctrl-C."""
        code = 0
        for line in lines:
            command = COMMAND.fullmatch(line.rstrip())
            if command and command[1] in ("bye", "exit", "quit"):
                break
            try:
                if command and command[1] not in self._commands:
                    near, code = did_you_mean(command[1], self._commands), UsageError.exit_code
                    note(f"paceline: /{command[1]}: no such command{near}; /help lists them")
                elif command:
                    self._commands[command[1]]((command[2] or "").strip())
                elif message := strip_block_quotes(line.strip()):
                    stopped = self._answer(message)
                    if stopped and not self.interactive:
                        return INTERRUPTED
            except BrokenPipeError:
                raise
            except (PacelineError, OSError) as error:
                code = getattr(error, "exit_code", 1)
                note(f"paceline: {printable(str(error))}")
        return code

    def _answer(self, message: str) -> bool:
        """Answer a message. Return True if Ctrl-C stopped the answer."""
        conversation = self.conversation
        conversation.messages.append({"role": "user", "content": message})
        with ExitStack() as unanswered, Interrupts() as interrupts:
            unanswered.callback(conversation.messages.pop)
            interrupts.defer_first()
            if self.early.is_set():
                self.early.clear()
                interrupts.pressed = True
            prompt, dropped = conversation.prompt()
            if dropped:
                full = f"the context of {self.llm.target.caps.n_ctx:,} tokens is full"
                note(f"{full}: the model no longer sees the oldest turns, {dropped} more ({CONTEXT_ADVICE})")
            generation = self._decode(prompt, interrupts)
            if generation.tokens:
                unanswered.pop_all()
        self._last = as_record(generation)
        if not generation.tokens:
            note("stopped before the first word: your message was removed")
            return True
        conversation.add_answer(prompt, generation)
        self.request["seed"] += 1
        if not generation.text.strip():
            note("(an empty answer: the model ended its turn at once)")
        if generation.stop_reason == "context":
            note(f"the context is full, and the answer ends here ({CONTEXT_ADVICE})")
        elif generation.stop_reason == "length":
            note(f"(cut after {count(generation.n_tokens, 'token')}: -n N for longer answers)")
        return interrupts.pressed

    def _decode(self, prompt: list[int], interrupts: Interrupts) -> Generation:
        """Print an answer until its end or Ctrl-C."""
        length, reading = 0, PrefillProgress(interrupts)
        request = self.request | asdict(self.sampling)
        request["max_tokens"] = request["max_tokens"] or self.llm.target.caps.n_ctx
        wrap = WordWrap(shutil.get_terminal_size().columns).feed if self.interactive else str
        with closing(reading), self.llm.stream(prompt, on_prefill=reading, **request) as stream:
            for piece in until_interrupted(stream, interrupts):
                length += len(piece.text)
                text = self._marks.marked(piece.parts) if self._show_sources else wrap(piece.text)
                print(text, end="", flush=True)
        generation = stream.result()
        ends = generation.text.endswith("\n") or not generation.tokens
        print(wrap(generation.text[length:]), end="" if ends else "\n", flush=True)
        return generation

    def _stats(self, _: str) -> None:
        conversation, n_ctx = self.conversation, self.llm.target.caps.n_ctx
        if self._last is not None:
            note(f"{summary(self._last)}\n{details(self._last)}")
            write_phases(self._last, sys.stderr)
        turns = sum(message["role"] == "user" for message in conversation.messages)
        note(f"turns: {turns}, {conversation.tokens:,} of {n_ctx:,} tokens of context")

    def _sources(self, _: str) -> None:
        self._show_sources = not self._show_sources
        drafters = self.llm.drafter.name.split(",")
        note(self._marks.legend(drafters) if self._show_sources else "sources: not shown")

    def _system(self, text: str) -> None:
        if text:
            self.conversation.system = strip_block_quotes(text)
        prompt = self.conversation.system
        note(f"system prompt: {'the template may have one' if prompt is None else truncated(prompt)}")

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save: where to? Name a file: /save talk.json")
        file = expand_user(name)
        write_messages(file, self.conversation.messages)
        note(f"{printable(str(file))}: {count(len(self.conversation.messages), 'message')} written")

    def _clear(self, _: str) -> None:
        self.conversation.clear()
        note("history cleared; system prompt kept")


def note(text: str) -> None:
    print(wrapped(with_typed_names(text), sys.stderr), file=sys.stderr, flush=True)
