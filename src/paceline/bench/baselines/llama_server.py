"""llama.cpp's server as a System."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pydantic import ValidationError

from paceline.bench.baselines.endpoint import Endpoint, Event
from paceline.bench.baselines.llama_programs import (
    cause_of_no_speculation,
    failure,
    model_arguments,
    needs_draft,
    output_of,
    require_files,
    require_types,
    spec_types,
    speculation_arguments,
)
from paceline.bench.baselines.process import LOCAL, BackgroundProgram, free_port
from paceline.bench.baselines.replies import CompletionEnd, CompletionReply, build_answer, with_drafts
from paceline.bench.jsonl import describe
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.speculative.errors import PeerError, UsageError
from paceline.speculative.printable import truncated
from paceline.speculative.sampling import Sampling

XLLAMACPP = "xllamacpp"
HEALTH = 5.0  # seconds for a health check
GRACE = 0.3  # seconds from the end of connections to that of the process
# Fields of the last message; by default it repeats the prompt and every setting.
LAST = ("stop", "timings", "tokens_predicted", "tokens_evaluated", "stop_type")


def find_server(where: str | None = None) -> tuple[str, ...]:
    """Return the command of a llama-server: at the path `where`, in the package xllamacpp, or on PATH. Raises
    PeerError if there is none."""
    if where == XLLAMACPP:
        if find_spec(XLLAMACPP) is None:
            raise PeerError("llama-server=xllamacpp needs the package: pip install xllamacpp")
        return (sys.executable, "-m", "paceline.bench.baselines.xllamacpp_server")
    program = shutil.which(where or "llama-server")
    if program is None and where is None:
        raise PeerError(
            "no llama-server on PATH: name one (llama-server=PATH), or pip install xllamacpp and use "
            "llama-server=xllamacpp, a portable build that is slower than one made for this machine"
        )
    if program is None:
        raise PeerError(f"{where} is no program: give the path of a llama-server")
    return (program,)


class LlamaServer:
    """A llama-server that is started here and stopped by `close`.

    method: plain, model, lookup, a --spec-type of the program, or a comma-separated list. n_ctx: of each of
    `parallel` slots. n_draft, p_min: None uses the program's default. settings: of `model_arguments`. extra:
    further arguments. start_timeout, timeout: seconds to load, and of silence. Raises PeerError if it does
    not start or lacks the method, UsageError for a missing draft model."""

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
        self._types = spec_types(method)
        if not needs_draft(self._types):
            draft = None
        elif draft is None:
            raise UsageError(f"{name}: the method {method} needs a draft model (-md)")
        require_files(name, target, draft)
        require_types(command, self._types)
        port = free_port()
        self.url = f"http://{LOCAL}:{port}"
        argv = [
            *command,
            *model_arguments(target, draft, n_ctx=n_ctx * parallel, **settings),
            *speculation_arguments(self._types, n_draft, p_min),
            *("-np", str(parallel), "--cache-ram", "0", "--host", LOCAL, "--port", str(port)),
            *extra,
        ]
        self._endpoint = Endpoint(name, self.url, timeout, {})
        self._program = BackgroundProgram(name, argv)
        try:
            self._wait_ready(start_timeout)
        except BaseException:
            self.close()
            raise

    def _wait_ready(self, timeout: float) -> None:
        try:
            self._program.wait_ready(self._healthy, timeout)
        except PeerError as error:
            raise failure(self.name, self._program, str(error)) from error
        # The server continues without speculation that it cannot set up. Only its log, written by another
        # thread, shows that: wait for the line after it.
        deadline = monotonic() + 1.0
        while "model loaded" not in self._program.output_tail() and monotonic() < deadline:
            sleep(0.01)
        if self._types and (why := cause_of_no_speculation(self._program.output_tail())):
            raise PeerError(f"{self.name}: {why}")

    def _healthy(self) -> bool:
        try:
            status, _ = replace(self._endpoint, timeout=HEALTH).fetch("/health")
        except PeerError:
            return False
        return status == 200

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        try:
            return self._answered(ask, self._endpoint.stream("/completion", self.body(ask)))
        except ValidationError as error:
            why = describe(error)
            raise PeerError(f"{self.name}: its answer is not what llama-server's is: {why}") from error
        except PeerError as error:
            if self._program.ended(GRACE):
                died = f"{self.name} {self._program.exit_description()}"
                raise failure(self.name, self._program, died) from error
            raise

    def body(self, ask: BenchRequest) -> dict[str, Any]:
        """Return the body for /completion; benchmarks override this."""
        return request(ask)

    def _answered(self, ask: BenchRequest, events: Sequence[Event]) -> BenchAnswer:
        if not events or not isinstance(events[-1].data.get("timings"), dict):
            raise PeerError(f"{self.name} ended its answer without saying how it went")
        end = CompletionEnd.model_validate(events[-1].data)
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
        return with_drafts(answer, end.timings.draft_n or 0, end.timings.draft_n_accepted)

    def memory(self) -> int | None:
        return self._program.memory()

    def version(self) -> str:
        output = output_of(self._command, "--version").strip().splitlines()
        line = next(
            (line for line in output if line.startswith("version:")), output[0] if output else "unknown"
        )
        return truncated(line.removeprefix("version:").strip())

    @property
    def pid(self) -> int:
        return self._program.pid

    def close(self) -> None:
        self._program.close()


def request(ask: BenchRequest) -> dict[str, Any]:
    """Return the body for /completion, which sets everything: the server's defaults filter and reuse
    prompts."""
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
        **sampler_settings(ask.sampling),
    }


def sampler_settings(sampling: Sampling) -> dict[str, Any]:
    """Return llama-server's sampler settings: our chain in our order, without inactive samplers. Greedy
    sampling is top-k 1, which avoids a softmax over the vocabulary."""
    chain = {
        "penalties": sampling.penalised,
        "top_k": sampling.top_k > 0 or sampling.greedy,
        "typ_p": sampling.typical_p < 1.0,
        "top_p": sampling.top_p < 1.0,
        "min_p": sampling.min_p > 0.0,
        "xtc": sampling.xtc_probability > 0.0,
        "temperature": not sampling.greedy,
    }
    if sampling.greedy:
        chain |= dict.fromkeys(("typ_p", "top_p", "min_p"), False)  # they never remove the likeliest token
    return {
        "samplers": [name for name, on in chain.items() if on],
        "temperature": sampling.temperature,
        "top_k": 1 if sampling.greedy else sampling.top_k,
        "typical_p": sampling.typical_p,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_last_n": sampling.repeat_last_n,
        # JSON has no infinity; `false` forbids a token.
        "logit_bias": [[t, False if b == -float("inf") else b] for t, b in sampling.logit_bias.items()],
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "dynatemp_range": 0.0,
    }
