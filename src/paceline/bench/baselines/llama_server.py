"""llama.cpp's server as a System."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from paceline.bench.baselines.endpoint import Endpoint, Event
from paceline.bench.baselines.llama_programs import (
    find_program,
    model_arguments,
    needs_draft,
    spec_types,
    speculation_arguments,
)
from paceline.bench.baselines.process import LOCAL, BackgroundProgram, free_port
from paceline.bench.baselines.replies import CompletionEnd, CompletionReply, build_answer, with_drafts
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.speculative.errors import PeerError
from paceline.speculative.printable import truncated

XLLAMACPP = "xllamacpp"
HEALTH = 5.0  # seconds for a health check
VERSION_SECONDS = 60.0
GRACE = 0.3  # seconds from the end of connections to that of the process
NO_SPECULATION = re.compile(r"[^\n]*(?:vocabs are not compatible|failed to initialize speculative)[^\n]*")
# Fields of the last message; by default it repeats the prompt and every setting.
LAST = ("stop", "timings", "tokens_predicted", "tokens_evaluated", "stop_type")


def find_server(where: str | None = None) -> tuple[str, ...]:
    """Return the command of a llama-server: at the path `where`, in the package xllamacpp, or on PATH. Raises
    PeerError if there is none."""
    if where == XLLAMACPP:
        if find_spec(XLLAMACPP) is None:
            raise PeerError("llama-server=xllamacpp needs the package: pip install xllamacpp")
        return (sys.executable, "-m", "paceline.bench.baselines.xllamacpp_server")
    return (find_program(where or "llama-server", "or pip install xllamacpp and use llama-server=xllamacpp"),)


class LlamaServer:
    """A llama-server that is stopped by `close`. It samples greedily, or at a temperature without filters.

    method: plain, model, lookup, a --spec-type of the program, or a comma-separated list. n_ctx: of each of
    `parallel` slots. n_draft, p_min: None uses the program's default. settings: of `model_arguments`. extra:
    further arguments. start_timeout, timeout: seconds to load, and of silence. Raises PeerError, which quotes
    the log, if it does not start or cannot speculate."""

    def __init__(
        self,
        command: Sequence[str],
        target: Path,
        draft: Path | None = None,
        *,
        name: str,
        method: str = "plain",
        n_draft: int | None = None,
        p_min: float | None = None,
        n_ctx: int,
        parallel: int = 1,
        extra: Sequence[str] = (),
        start_timeout: float = 300.0,
        timeout: float = 120.0,
        **settings: Any,
    ) -> None:
        self.name = name
        self._command = tuple(command)
        types, port = spec_types(method), free_port()
        self.url = f"http://{LOCAL}:{port}"
        argv = [
            *command,
            *model_arguments(
                target, draft if needs_draft(types) else None, n_ctx=n_ctx * parallel, **settings
            ),
            *speculation_arguments(types, n_draft, p_min),
            *("-np", str(parallel), "--cache-ram", "0", "--host", LOCAL, "--port", str(port)),
            *extra,
        ]
        self._endpoint = Endpoint(name, self.url, timeout, {})
        self._program = BackgroundProgram(name, argv)
        with ExitStack() as stack:
            stack.callback(self.close)
            self._program.wait_ready(self._healthy, start_timeout)
            # The server continues without speculation that it cannot set up. Only its log, written by another
            # thread, shows that: wait for the line after it.
            deadline = monotonic() + 1.0
            while "model loaded" not in self._program.output_tail() and monotonic() < deadline:
                sleep(0.01)
            if types and (failed := NO_SPECULATION.search(self._program.output_tail())):
                raise PeerError(f"{name} does not speculate; its log: {truncated(failed[0])}")
            stack.pop_all()

    def _healthy(self) -> bool:
        try:
            replace(self._endpoint, timeout=HEALTH).fetch("/health")
        except PeerError:
            return False
        return True

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        try:
            events = self._endpoint.stream("/completion", self.body(ask))
            with self._endpoint.validating():
                return self._answered(ask, events)
        except PeerError as error:
            ended = self._program.ended(GRACE)
            why = f"{self.name} {self._program.exit_description()}" if ended else str(error)
            raise PeerError(why) from error

    def body(self, ask: BenchRequest) -> dict[str, Any]:
        """Return the body for /completion; benchmarks override this."""
        return request(ask)

    def _answered(self, ask: BenchRequest, events: Sequence[Event]) -> BenchAnswer:
        end = CompletionEnd.model_validate(events[-1].data if events else {})
        if ask.ignore_eos and end.tokens_predicted < ask.max_tokens:
            raise PeerError(
                f"{self.name} stopped after {end.tokens_predicted} of {ask.max_tokens} tokens "
                f"({truncated(end.stop_type) or 'unknown reason'}): does it need a larger context?"
            )
        n_tokens, last = end.tokens_predicted, events[-1].seconds
        replies = [(event.seconds, CompletionReply.model_validate(event.data)) for event in events]
        replies = [(at, one) for at, one in replies if not one.stop and (one.tokens or one.content)]
        # It holds back incomplete characters: the last tokens may arrive without text.
        if replies and replies[-1][1].tokens_predicted == n_tokens:
            last = replies[-1][0]
        n_first = (replies[0][1].tokens_predicted or 1) if replies else n_tokens
        pieces = [(at, one.content, one.tokens) for at, one in replies]
        answer = build_answer(pieces, n_tokens, end.tokens_evaluated, end.timings, n_first, last)
        return with_drafts(answer, end.timings)

    def memory(self) -> int | None:
        return self._program.memory()

    def version(self) -> str:
        with closing(BackgroundProgram(self.name, [*self._command, "--version"])) as program:
            program.run_to_end(VERSION_SECONDS)
            lines = program.output_tail().splitlines()
        return next((truncated(line[8:].strip()) for line in lines if line.startswith("version:")), "unknown")

    @property
    def pid(self) -> int:
        return self._program.pid

    def close(self) -> None:
        self._program.close()


def request(ask: BenchRequest) -> dict[str, Any]:
    """Return the body for /completion, without the prompt cache and the server's default filters. Greedy
    sampling is top-k 1, which avoids a softmax over the vocabulary."""
    sampling = ask.sampling
    return {
        "prompt": list(ask.tokens),
        "n_predict": ask.max_tokens,
        "seed": ask.seed,
        "ignore_eos": ask.ignore_eos,
        "stream": True,
        "cache_prompt": False,
        "return_tokens": True,
        "response_fields": list(LAST),
        "sse_ping_interval": -1,
        "stop": [],
        "samplers": ["penalties"] * sampling.penalised + ["top_k" if sampling.greedy else "temperature"],
        "top_k": 1,
        "temperature": sampling.temperature,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_last_n": sampling.repeat_last_n,
        # JSON has no infinity; `false` forbids a token.
        "logit_bias": [[t, False if b == -float("inf") else b] for t, b in sampling.logit_bias.items()],
    }
