"""A chat as it goes: messages are answered, commands obeyed, and what goes wrong in between ends nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.api import LLM
from paceline.cli import messages
from paceline.cli.completion import as_record
from paceline.cli.conversation import Conversation
from paceline.cli.interrupts import INTERRUPTED, Interrupts, PendingInterrupt
from paceline.cli.lines import unquoted
from paceline.cli.reading import PrefillProgress, until_stopped
from paceline.cli.slowness import SlowPassMonitor
from paceline.report import where
from paceline.report.sources import SourceMarks
from paceline.report.table import summary
from paceline.request_handle import Generation
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.printable import printable, shortened
from paceline.speculative.sampling import Sampling

COMMAND = re.compile(r"/([a-z?]+)(?:\s+(.*))?", re.DOTALL)
HELP = '''\
/help           this
/stats          the last answer: speed, who drafted, where the time went
/sources        colour the text by who drafted it, or no longer
/system TEXT    a system prompt from now on; without TEXT: the one there is
/sampling       how words are drawn; /sampling temp=0 top-k=40: from now on
/save FILE      the conversation as JSON, for --messages FILE
/clear          forget what was said, but for the system prompt
/bye            end the chat; so does Ctrl-D
"""             begins a message of several lines, and ends it; or Alt-Enter for a new line
Ctrl-C          stops an answer, which stays as far as it came; at the prompt it clears the line
'''


NAMES = {"temp": "temperature", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}  # as the options are


def shown(sampling: Sampling) -> str:
    return ", ".join(f"{name} {getattr(sampling, field):g}" for name, field in NAMES.items())


class ChatLoop:
    """request: what LLM.stream takes besides the prompt and the sampling; its seed is the first turn's, and
    each turn has the next one. early: Ctrl-C before an answer has begun.
    interactive: somebody is there, so that Ctrl-C stops an answer only. The answers go to stdout, all else to
    stderr."""

    def __init__(
        self,
        llm: LLM,
        conversation: Conversation,
        request: dict[str, Any],
        sampling: Sampling,
        early: PendingInterrupt,
        *,
        interactive: bool,
        show_stats: bool,
    ) -> None:
        self._llm, self._conversation, self._early, self._interactive = llm, conversation, early, interactive
        self._request, self._sampling, self._show_stats = request, sampling, show_stats
        self._marks, self._show_sources = SourceMarks(Console(file=sys.stdout)), False
        self._answered, self._slowness, self._said_slow = 0, SlowPassMonitor(llm), False
        self._last: dict[str, Any] | None = None  # the last answer's record
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "stats": self._stats,
            "sources": self._sources,
            "system": self._system,
            "sampling": self._set_sampling,
            "save": self._save,
            "clear": self._clear,
        }

    def go(self, lines: Iterable[str]) -> int:
        """Until there are no more of them, or /bye. The exit code is that of the last error, if any; or of
        Ctrl-C, where nobody is there to go on."""
        code = 0
        for line in lines:
            command = COMMAND.fullmatch(line.rstrip())
            if command and command[1] in ("bye", "exit", "quit"):
                break
            try:
                if command:
                    self._obey(command[1], (command[2] or "").strip())
                elif message := unquoted(line.strip()):
                    stopped = self._answer(message)
                    if stopped and not self._interactive:
                        return INTERRUPTED
            except PacelineError as error:
                code = error.exit_code
                say(f"paceline: {printable(str(error))}")
            except BrokenPipeError:
                raise
            except OSError as error:
                code = 1
                say(f"paceline: {printable(f'{error.filename}: {error.strerror}')}")
        return code

    def _obey(self, name: str, rest: str) -> None:
        obey = self._commands.get("help" if name == "?" else name)
        if obey is None:
            raise UsageError(
                f"/{name}: no such command; /help lists them (with a space before it, it is a message)"
            )
        obey(rest)

    def _answer(self, message: str) -> bool:
        """Whether Ctrl-C stopped it."""
        conversation = self._conversation
        conversation.ask(message)
        try:
            with Interrupts() as interrupts:
                interrupts.hold()
                if self._early.pressed:  # after the message was sent off
                    self._early.forget()
                    interrupts.pressed = True
                prompt, dropped = conversation.prompt()
                if dropped:
                    turns = "turn" if dropped == 1 else f"{dropped} turns"
                    say(
                        f"the context of {self._llm.target.caps.n_ctx:,} tokens is full: the model no longer "
                        f"sees the oldest {turns} (-c N for a larger one; /clear begins anew)"
                    )
                said = self._decode(prompt, interrupts)
        except BaseException:
            conversation.take_back()
            raise
        self._last = as_record(said)
        if not said.tokens:
            conversation.take_back()
            say("stopped before the first word: your message is taken back")
            return True
        conversation.answered(prompt, said)
        self._answered += 1
        self._comment(said)
        return interrupts.pressed

    def _decode(self, prompt: list[int], interrupts: Interrupts) -> Generation:
        """To its end, or to Ctrl-C."""
        room = {"max_tokens": self._request["max_tokens"] or self._llm.target.caps.n_ctx}
        seed = {"seed": self._request["seed"] + self._answered}
        reading, shown, asked = (
            PrefillProgress(interrupts),
            0,
            self._request | asdict(self._sampling) | room | seed,
        )
        with closing(reading), self._llm.stream(prompt, on_prefill=reading, **asked) as stream:
            for piece in until_stopped(stream, interrupts):
                shown += len(piece.text)
                self._show(self._marks.marked(piece.parts) if self._show_sources else piece.text)
        said = stream.result()
        rest = said.text[shown:]
        self._show(rest + ("" if said.text.endswith("\n") or not said.tokens else "\n"))
        return said

    def _comment(self, said: Generation) -> None:
        if not said.text.strip():
            say("(an empty answer: the model ended its turn at once)")
        if said.stop_reason == "context":
            say(
                "the context is full, and the answer ends here: the next turn loses sight of the oldest ones "
                "(-c N for a larger one; /clear begins anew)"
            )
        elif said.stop_reason == "length":
            say(f"(cut after {said.n_tokens:,} tokens: -n)")
        if not self._said_slow and (slow := self._slowness.warning()):
            self._said_slow = True  # once is enough
            say(f"paceline: {slow}")
        if self._show_stats and self._last is not None:
            say(summary(self._last))

    def _show(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _help(self, _: str) -> None:
        say(HELP.rstrip("\n"))

    def _stats(self, _: str) -> None:
        conversation, n_ctx = self._conversation, self._llm.target.caps.n_ctx
        used = f"{conversation.tokens:,} of {n_ctx:,} tokens of context"
        if self._last is None:
            say(f"nothing was said yet; {used}")
            return
        say(summary(self._last))
        where.write(self._last, sys.stderr)
        turns = conversation.turns
        say(f"{turns} turn{'s' * (turns != 1)}, {used}")

    def _sources(self, _: str) -> None:
        self._show_sources = not self._show_sources
        drafters = self._llm.drafter.name.split(",")
        say(self._marks.legend(drafters) if self._show_sources else "sources: not shown")

    def _system(self, text: str) -> None:
        conversation = self._conversation
        if text:
            conversation.system = unquoted(text)
        shown = conversation.system
        say(
            "no system prompt of yours; the model's template may have one"
            if shown is None
            else f"system prompt: {shortened(shown)}"
        )

    def _set_sampling(self, text: str) -> None:
        given: dict[str, Any] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            field = NAMES.get(name.lstrip("-"))
            try:
                given[field or ""] = int(value) if field == "top_k" else float(value)
            except ValueError:
                field = None
            if field is None:
                raise UsageError(f"/sampling {word}: write NAME=NUMBER; the names are {', '.join(NAMES)}")
        self._sampling = replace(self._sampling, **given)
        say(shown(self._sampling))

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save: where to? Name a file: /save talk.json")
        from paceline.system.home import expanded

        file = Path(expanded(name))
        messages.write(file, self._conversation.messages)
        say(f"{len(self._conversation.messages)} messages are in {printable(str(file))}")

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        say("forgotten; the system prompt stays" if self._conversation.system else "forgotten")


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
