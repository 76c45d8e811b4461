"""One request's answer: piece by piece as a stream, and whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from paceline.core.account import Account
from paceline.core.decode import Request, decode, start
from paceline.core.policy import Policy
from paceline.core.ports import UNLIMITED, Drafter
from paceline.core.record import Logprob, Stats, Step, StopReason
from paceline.core.request import TOGETHER
from paceline.engines.engine import Engine
from paceline.engines.grammar import TextGrammar
from paceline.engines.stream import TextStream, spelling
from paceline.sharing import Sharing

if TYPE_CHECKING:
    from paceline.machine.remembered import Remembered


# Tokens of a long prompt that are read in one pass: as many as llama.cpp computes at a time anyway. Between
# passes whoever waits is told how far it is, and can stop it.
PART = 512

OnRead = Callable[[int, int], object]


@dataclass(frozen=True)
class Piece:
    """What one step added: text, with the source of each part; and the tokens, with theirs, and with their
    log-probabilities where the request asked for them."""

    text: str
    parts: tuple[tuple[str, str], ...]
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True)
class Generation:
    """seconds: from the first draft to the last token; prompt_seconds: the target's prompt before it.
    n_prompt: tokens of the prompt; n_read: those that were read before the first draft. The others were in
    the cache already, or few enough to be computed with it.
    stop_reason: None where the stream was left early. logprobs: one a token where the request asked for them.
    complete: whether the text matches the request's grammar; None without one. account: what the policy has
    to say for itself, of all requests so far; None where it decides nothing."""

    text: str
    tokens: tuple[int, ...]
    stop_reason: StopReason | None
    n_prompt: int
    n_tokens: int
    prompt_seconds: float
    seconds: float
    stats: Stats = field(repr=False)
    logprobs: tuple[Logprob, ...] = field(default=(), repr=False)
    complete: bool | None = None
    account: Account | None = field(default=None, repr=False)
    n_read: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Of reading the prompt; None where nothing of it was read by itself."""
        return self.n_read / self.prompt_seconds if self.n_read and self.prompt_seconds > 0 else None


class Stream(Iterator[Piece]):
    """Pieces as they are decoded; `result()` at any point tells what there is so far. Threads may take pieces
    of one stream in turns.

    close, or a `with` statement, gives the session back before the end. A stream that is dropped, as by
    `break` in a loop over it, gives it back when the model is used next."""

    def __init__(
        self,
        target: Engine,
        sharing: Sharing,
        prompt: Sequence[int],
        drafter: Drafter,
        policy: Policy,
        remembered: Remembered | None,
        on_read: OnRead | None = None,
        **request: Any,
    ) -> None:
        self._sharing = sharing
        piece = spelling(target.text.piece, request.pop("spelled"))
        self._text = TextStream(piece, request.pop("stop"))
        self._prompt = prompt
        self._grammar: TextGrammar | None = request["grammar"]
        self._parts: list[str] = []
        self._tokens: list[int] = []
        self._sources: list[str] = []
        self._logprobs: list[Logprob] = []
        self._prompt_seconds, self._n_read, self._on_read = 0.0, 0, on_read
        self._seconds = 0.0  # in the loop only: what the reader of the stream does between steps is not ours
        self._policy = policy
        self._remembered = remembered

        def begin() -> Request:
            began = perf_counter()
            started = start(target, drafter, prompt, stop=self._text, **request)
            self._prompt_seconds = perf_counter() - began
            return started

        self._request = sharing.start(self, begin)
        self._decoding = partial(decode, target, drafter, policy)
        # Passes of one shape read a prompt in one go, or what is in the cache could not be used again.
        part = UNLIMITED if target.settings.get("exact_rows") else PART
        self._steps = self._decoding([self._request], chunk=part)
        self._open = True

    def __next__(self) -> Piece:
        with self._sharing.turn():
            if not self._open:
                raise StopIteration
            try:
                self._read()
                return self._step()
            except BaseException:
                self._close()
                raise

    def _read(self) -> None:
        """A long prompt, part by part, but for what is computed with the first draft."""
        session = self._request.session
        if (total := session.unread) <= TOGETHER:
            return
        while True:
            if self._on_read is not None:
                self._on_read(total - session.unread, total)
            if session.unread <= TOGETHER:
                return
            began = perf_counter()
            _, step = next(self._steps)
            self._prompt_seconds += perf_counter() - began
            self._n_read += step.rows

    def _step(self) -> Piece:
        began = perf_counter()
        _, step = next(self._steps)
        self._seconds += perf_counter() - began
        return self._take(step)

    def _take(self, step: Step) -> Piece:
        self._tokens += step.tokens
        self._sources += step.sources
        self._logprobs += step.logprobs
        taken = self._text.take() if step.stop_reason is None else self._text.finish()
        parts = tuple((text, self._sources[min(index, len(self._sources) - 1)]) for text, index in taken)
        text = "".join(part for part, _ in parts)
        self._parts.append(text)
        if step.stop_reason is not None:
            self._close()
        return Piece(text, parts, step.tokens, step.sources, step.logprobs)

    @staticmethod
    def finish(streams: Sequence[Stream]) -> list[Exception | None]:
        """Decode streams of one LLM to their ends, all of them in each pass. What went wrong with each of
        them, which does not keep the others from theirs."""
        first, of = streams[0], {id(stream._request): stream for stream in streams}
        steps = first._decoding([stream._request for stream in streams])
        while True:
            with first._sharing.turn():
                try:
                    request, step = next(steps)
                except StopIteration:
                    return [None for _ in streams]
                except Exception as error:  # of one, told at the end; or of a pass, which was everybody's
                    requests = [stream._request for stream in streams]
                    return [None if one.stop_reason else one.error or error for one in requests]
                stream = of[id(request)]
                if step.tokens:
                    stream._seconds += step.times.total
                    stream._take(step)
                else:
                    stream._prompt_seconds += step.times.total
                    stream._n_read += step.rows

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._sharing.later(self._close)

    def close(self) -> None:
        """Give the session back; the text so far stays. Called by itself at the end."""
        if self._open and self._sharing.process.is_this:
            with self._sharing.turn():
                self._close()

    def _close(self) -> None:
        """In this stream's turn. Where Ctrl-C comes in between, the next call does the rest."""
        if not self._open:
            return
        if self._request.stop_reason is None:
            self._parts += [text for text, _ in self._text.finish()]
        self._request.close()
        remembered, self._remembered = self._remembered, None
        if remembered is not None:
            remembered.add(self._tokens)
        self._open = False
        self._sharing.done(self)

    def result(self) -> Generation:
        text = "".join(self._parts)
        with self._sharing.turn():
            account = self._policy.account
        return Generation(
            text=text,
            tokens=tuple(self._tokens),
            stop_reason=self._request.stop_reason,
            n_prompt=len(self._prompt),
            n_tokens=len(self._tokens),
            prompt_seconds=self._prompt_seconds,
            seconds=self._seconds,
            stats=self._request.stats,
            logprobs=tuple(self._logprobs),
            account=account,
            complete=None if self._grammar is None else self._grammar.syntax.matches(text),
            n_read=self._n_read,
        )
