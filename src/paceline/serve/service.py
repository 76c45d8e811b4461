"""One thread that owns a loaded model and decodes for many clients at once.

Others hand it what they want through a queue of calls, and are told through functions of their own; nothing
else is shared. Between two passes it looks what has come, takes as many requests as there are sessions, and
goes on: requests join and leave at any pass (core/schedule.py).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from time import monotonic

from paceline.core.errors import UsageError
from paceline.core.record import Stats, Step
from paceline.core.schedule import Job, Scheduler
from paceline.engines.grammar import CompiledGrammar, TextGrammar
from paceline.engines.stream import TextStream, spelling
from paceline.engines.syntax import Syntax
from paceline.llm import LLM
from paceline.serve.asking import (
    Ask,
    ClosingError,
    Deliver,
    End,
    FullError,
    Limits,
    TooSlowError,
    Update,
)
from paceline.serve.grammar_pool import GrammarJob, GrammarPool
from paceline.serve.lately import Lately
from paceline.serve.line import Line
from paceline.serve.metrics import Metrics

CHUNK = 512  # tokens of prompts in a pass: what others wait for beside somebody's long prompt
TICK = 1.0  # seconds between two looks at the clock, where nothing else happens
STALLED = 120.0  # seconds in one pass, after which the thread is taken to be stuck

log = logging.getLogger("paceline.serve")


class Ticket:
    """One answer on its way. Only the service's thread touches what is not given here."""

    def __init__(self, ask: Ask, client: str, deliver: Deliver, now: float) -> None:
        self.ask, self.client = ask, client
        self._deliver = deliver
        self.arrived, self.first = now, 0.0
        self.begun: float | None = None  # when it left the queue
        self.job: Job | None = None
        self.compiling: GrammarJob | None = None
        self.grammar: CompiledGrammar | None = None
        self.queued: Future[bool] = Future()  # whether it has joined the queue, its grammar compiled
        self.queued.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it
        self.text: TextStream | None = None
        self.tokens: list[int] = []
        self.sources: list[str] = []
        self.over = False
        self._told_end = False

    def tell(self, update: Update) -> None:
        """Nothing comes after an end."""
        if self._told_end:
            return
        self._told_end = update.end is not None
        try:
            self._deliver(update)
        except Exception:  # whoever listened has gone
            log.debug("an update was for nobody", exc_info=True)


class Service:
    """Use it as a context manager, or close it. The model stays its caller's, who must not use it
    meanwhile."""

    def __init__(
        self,
        llm: LLM,
        limits: Limits | None = None,
        *,
        chunk: int = CHUNK,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.llm, self.limits = llm, limits or Limits()
        self.metrics, self.lately = Metrics(), Lately(llm, clock)
        self._clock = clock
        self._scheduler = Scheduler(llm.target, llm.drafter, llm.policy, chunk=chunk)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._line: Line[Ticket] = Line()
        self._grammars = GrammarPool(lambda: llm.target.trie)
        self._compiling: set[Ticket] = set()  # not in the queue yet
        self._turned = clock()  # when the thread began the pass that it is in
        self._running: dict[Job, Ticket] = {}
        self._lock = threading.Lock()  # of the three below, which any thread asks
        self._open: dict[str, dict[Ticket, None]] = {}  # by client, in order: those that wait, and that run
        self._closing = False
        self._failure: BaseException | None = None
        self._logged: Exception | None = None
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="paceline-serve", daemon=True)
        self._thread.start()

    # What other threads call.

    @property
    def sessions(self) -> int:
        caps = self.llm.target.caps
        return min(caps.sessions, caps.rows)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return max(0, self._n_open - self.running)

    @property
    def _n_open(self) -> int:
        return sum(map(len, list(self._open.values())))

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    @property
    def problem(self) -> str:
        """Why nothing can be asked of it; empty where all is well."""
        if self._failure is not None:
            return f"the server has failed ({type(self._failure).__name__}; its log says why): start it again"
        return "the server is going down" if self._closing else ""

    @property
    def pass_seconds(self) -> float:
        """How long the thread has been in the pass that it is in; 0 where nothing waits or runs."""
        return max(0.0, self._clock() - self._turned) if self._open else 0.0

    @property
    def health(self) -> str:
        """Why nothing can be expected of it; empty where all is well."""
        if not self.problem and (seconds := self.pass_seconds) > STALLED:
            return f"the model has been in one pass for {seconds:.0f} seconds: start the server again"
        return self.problem

    def submit(self, asks: Sequence[Ask], client: str, deliver: Callable[[int], Deliver]) -> list[Ticket]:
        """Queue the answers of one request; all of them, or none. deliver: told every update of each, in the
        service's thread: it must not wait. Raises UsageError for what cannot be decoded, FullError where the
        queue is full or the client has too much in it, and ClosingError."""
        now, n = self._clock(), len(asks)
        if any(ask.syntax is not None for ask in asks):
            self.llm.target.trie  # noqa: B018  # UsageError for a model that cannot end a text
        with self._lock:
            if self.problem:
                raise ClosingError(self.problem)
            limits, own = self.limits, len(self._open.get(client, ()))
            if n > (most := min(self.sessions + limits.queue, limits.each or n)):
                raise UsageError(f"{n} answers at once: this server gives at most {most}; ask for less")
            if limits.each and own + n > limits.each:
                raise FullError(
                    f"{own} of your requests are open, and {limits.each} may be: wait for one of them",
                    self._expected(1),
                )
            for ticket in self._outvoted(client, n):
                self._release(ticket)
                self._calls.put(partial(self._evict, ticket))
            tickets = [Ticket(ask, client, deliver(at), now) for at, ask in enumerate(asks)]
            self._open.setdefault(client, {}).update(dict.fromkeys(tickets))
            groups: dict[Syntax | None, list[Ticket]] = {}
            for ticket in tickets:
                groups.setdefault(ticket.ask.syntax, []).append(ticket)
            for syntax, group in groups.items():
                self._queue(syntax, group)
        return tickets

    def _outvoted(self, client: str, n: int) -> list[Ticket]:
        """The waiting requests whose places `n` of that client take where the queue is full: the last of
        whoever has most there, as long as that is more than the client would have. Raises FullError."""
        waiting = {
            name: [ticket for ticket in own if ticket.begun is None] for name, own in self._open.items()
        }
        would_have = len(waiting.pop(client, ())) + n
        out: list[Ticket] = []
        for _ in range(self._n_open + n - self.sessions - self.limits.queue):
            most = max(waiting.values(), key=len, default=[])
            if len(most) <= would_have:
                raise self._full()
            out.append(most.pop())
        return out

    def _full(self) -> FullError:
        return FullError(
            f"the queue is full ({self.limits.queue} requests wait): try again later",
            self._expected(self.waiting),
        )

    def _release(self, ticket: Ticket) -> bool:
        """Give its place away, under the lock. False where it has none."""
        own = self._open.get(ticket.client, {})
        if ticket not in own:
            return False
        del own[ticket]
        if not own:
            del self._open[ticket.client]
        return True

    def _queue(self, syntax: Syntax | None, tickets: Sequence[Ticket]) -> None:
        """Tickets of one client with the same grammar, which is compiled first where it has not been yet."""
        if syntax is None or (grammar := self.llm.target.trie.cached(syntax)) is not None:
            self._calls.put(partial(self._join, tickets, None if syntax is None else grammar))
            return
        self._calls.put(lambda: self._compiling.update(one for one in tickets if not one.over))
        job = self._grammars.submit(
            syntax,
            tickets[0].client,
            lambda outcome: self._calls.put(partial(self._join, tickets, outcome)),
        )
        for ticket in tickets:
            ticket.compiling = job

    def cancel(self, ticket: Ticket) -> None:
        """Nothing more is told of it. Harmless where it is over."""
        self._calls.put(lambda: self._cancel(ticket))

    def announce(self) -> None:
        """Take nothing more. (Of a signal handler too: it takes no lock.)"""
        self._closing = True

    def break_off(self) -> None:
        """End all answers by an error, told at once: the pass under way may take long."""
        self.announce()
        self._calls.put(self._halt)
        with self._lock:
            tickets = [ticket for own in self._open.values() for ticket in own]
        for ticket in tickets:
            ticket.tell(Update(end=self._ended(ticket, ClosingError(self.problem))))

    def close(self, wait: float = 0.0, patience: float | None = None) -> bool:
        """Take nothing more, and give those that are here `wait` seconds to end. patience: seconds for the
        pass under way; None: until it ends. Returns whether it has: where not, the model is in use still."""
        self.announce()
        until = self._clock() + wait
        while self._open and self._thread.is_alive() and (left := until - self._clock()) > 0:
            threading.Event().wait(min(left, 0.05))
        self._calls.put(self._halt)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _expected(self, before: int) -> float:
        """Seconds until so many have left the queue, guessed from how long answers took of late."""
        return min(60.0, max(1.0, self.lately.seconds * (before / self.sessions)))

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stop:
                self._hear()
                self._turned = self._clock()
                self._expire()
                self._admit()
                self._pass()
        except BaseException as error:  # a bug: what waits must not wait for ever
            log.exception("the service has failed")
            self._failure = error
        finally:
            closing: Exception = ClosingError(self.problem or "the server is going down")
            for ticket in [*self._running.values(), *self._waiting()]:
                self._finish(ticket, closing)
            self._running.clear()
            self._hear_out(closing)
            self._grammars.close()
            try:
                self._scheduler.close()
            except Exception:  # an engine that has failed may do so here, too
                log.exception("sessions cannot be closed")

    def _halt(self) -> None:
        self._stop = True

    def _evict(self, ticket: Ticket) -> None:
        if not ticket.over:
            self._line.remove(ticket.client, ticket)
            self._finish(ticket, self._full())

    def _hear(self) -> None:
        """What has been asked for; where there is nothing to do, wait for it."""
        idle = self._scheduler.idle and not len(self._line)
        try:
            call = self._calls.get(timeout=TICK) if idle else self._calls.get_nowait()
            while True:
                call()
                call = self._calls.get_nowait()
        except queue.Empty:
            if idle:
                self.lately.rest()

    def _hear_out(self, closing: Exception) -> None:
        """What came too late is told so."""
        with self._lock:  # nothing is submitted from here on
            self._closing = True
        while not self._calls.empty():
            self._calls.get_nowait()()
        for ticket in self._waiting():
            self._finish(ticket, closing)

    def _waiting(self) -> list[Ticket]:
        return [*self._compiling, *(self._line.next() for _ in range(len(self._line)))]

    def _join(self, tickets: Sequence[Ticket], grammar: CompiledGrammar | Exception | None) -> None:
        """What comes of their grammar has come."""
        for ticket in tickets:
            self._compiling.discard(ticket)
            if ticket.over:
                continue
            if isinstance(grammar, Exception):
                self._finish(ticket, grammar)
                continue
            ticket.grammar = grammar
            ticket.queued.set_result(True)
            self._line.add(ticket.client, ticket)

    def _expire(self) -> None:
        """What has taken too long, waiting or running."""
        end = self._clock() - self.limits.seconds
        late = TooSlowError(f"the answer took longer than the {self.limits.seconds:g} seconds allowed here")
        for job, ticket in list(self._running.items()):
            if ticket.arrived < end:
                self._scheduler.cancel(job)
                self._drop(job, late)
        for ticket in self._line.those(lambda one: one.arrived < end):
            self._line.remove(ticket.client, ticket)
            self._finish(ticket, late)
        for ticket in [one for one in self._compiling if one.arrived < end]:
            self._finish(ticket, late)

    def _admit(self) -> None:
        while len(self._line) and len(self._running) < self.sessions:
            ticket = self._line.next()
            ask, llm = ticket.ask, self.llm
            with self._lock:
                if ticket not in self._open.get(ticket.client, ()):  # its place is another's since
                    continue
                ticket.begun = self._clock()
            try:
                ticket.text = TextStream(spelling(llm.target.text.piece, ask.spelled), ask.stop)
                grammar = None if ticket.grammar is None else TextGrammar(ticket.grammar)
                ticket.job = self._scheduler.add(
                    ask.prompt,
                    max_tokens=ask.max_tokens,
                    sampling=ask.sampling,
                    seed=ask.seed,
                    stop=ticket.text,
                    ignore_eos=ask.ignore_eos,
                    rule=llm.drafting.verify,
                    grammar=grammar,
                    logprobs=ask.logprobs,
                    n_draft=ask.n_draft,
                    only=ask.only,
                    scope=ticket.client if self.limits.apart else "",
                )
            except Exception as error:
                self._finish(ticket, error)
            else:
                self._running[ticket.job] = ticket

    def _pass(self) -> None:
        if not self._running:
            return
        began, n = self._clock(), 0
        for job, step in self._scheduler.step():
            n += len(step.tokens)
            self._take(self._running[job], step)
        self.lately.passed(self._clock() - began, n)
        for job in [job for job in self._running if job.state not in ("waiting", "running")]:
            self._drop(job, job.error)
        self.lately.look(len(self._running))

    def _take(self, ticket: Ticket, step: Step) -> None:
        assert ticket.text is not None  # it runs
        self.metrics.step(step)
        self.lately.step(step)
        if not step.tokens:
            return
        if not ticket.tokens:
            ticket.first = self._clock()
        ticket.tokens += step.tokens
        ticket.sources += step.sources
        last = step.stop_reason is not None
        taken = ticket.text.finish() if last else ticket.text.take()
        parts = tuple((text, ticket.sources[min(at, len(ticket.sources) - 1)]) for text, at in taken)
        end = self._ended(ticket, None) if last else None
        if end is not None:
            self._close(ticket, end)
        ticket.tell(Update(parts, step.tokens, step.logprobs, end))

    def _cancel(self, ticket: Ticket) -> None:
        if ticket.over:
            return
        if ticket.job is None:
            self._line.remove(ticket.client, ticket)
        else:
            self._scheduler.cancel(ticket.job)
            self._running.pop(ticket.job)
        self._close(ticket, self._ended(ticket, None))

    def _drop(self, job: Job, error: Exception | None) -> None:
        """It is no longer running."""
        ticket = self._running.pop(job)
        if not ticket.over:
            self._finish(ticket, error or ClosingError("the answer was broken off"))

    def _finish(self, ticket: Ticket, error: Exception) -> None:
        """By an error. What was decoded so far stays told."""
        if not isinstance(error, UsageError | ClosingError | TooSlowError) and error is not self._logged:
            self._logged = error  # of a pass, for all that were in it
            log.error("the model has failed at a request", exc_info=error)
        end = self._ended(ticket, error)
        self._close(ticket, end)
        ticket.tell(Update(end=end))

    def _ended(self, ticket: Ticket, error: Exception | None) -> End:
        now, request = self._clock(), None if ticket.job is None else ticket.job.request
        first = ticket.first or now
        return End(
            reason=None if request is None or error is not None else request.stop_reason,
            error=error,
            n_prompt=len(ticket.ask.prompt),
            n_cached=0 if request is None else request.n_cached,
            n_tokens=len(ticket.tokens),
            waited=(now if ticket.begun is None else ticket.begun) - ticket.arrived,
            first=first - ticket.arrived,
            rest=now - first,
            stats=Stats() if request is None else request.stats,
        )

    def _close(self, ticket: Ticket, end: End) -> None:
        ticket.over = True
        self._compiling.discard(ticket)
        if not ticket.queued.done():
            ticket.queued.set_result(False)
        job = ticket.compiling
        if job is not None and not any(one.compiling is job for one in self._compiling):
            self._grammars.cancel(job)
        self.metrics.end(end)
        self.lately.end(end)
        if self.llm.remembered is not None and end.reason is not None and ticket.ask.n_draft:
            self.llm.remembered.add(ticket.tokens)
        with self._lock:
            self._release(ticket)
