"""llama.cpp's server as a System, for builds since 2026."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.bench.baselines.openai import Endpoint
from paceline.bench.baselines.process import LOCAL, BackgroundProgram, free_port
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.speculative.errors import BaselineError
from paceline.speculative.printable import truncated

HEALTH = 5.0  # seconds for a health check
VERSION_SECONDS = 60.0
GRACE = 0.3  # seconds from the end of connections to that of the process
NO_SPECULATION = re.compile(r"[^\n]*(?:vocabs are not compatible|failed to initialize speculative)[^\n]*")
# Fields of the last message; by default it repeats the prompt and every setting.
LAST = ("timings", "tokens_predicted", "tokens_evaluated")
# Our drafters -> llama.cpp's speculation types.
SELF_DRAFTING = "draft-mtp"  # its draft model is inside the target's file
TYPES = {"model": "draft-simple", "lookup": "ngram-simple", "mtp": SELF_DRAFTING}
SAMPLES_DRAFTS = "--spec-draft-sampling"  # of builds that can, and that verify them by rejection sampling
# Fields of Sampling, of /completion and, with hyphens, flags.
PENALTIES = ("repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty")
SIZED = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")  # types with a copy length


def find_program(path: str | None = None) -> tuple[str, ...]:
    """Return the command of a program of llama.cpp, which may be a Python file, by default of llama-server on
    PATH. Raises BaselineError if there is none."""
    if (program := shutil.which(path := path or "llama-server")) is None:
        ways = "python benchmarks/native_llama.py builds llama.cpp's"
        raise BaselineError(f"there is no program {path}: name it as in --baseline NAME=PATH; {ways}")
    return (*[sys.executable] * path.endswith(".py"), str(Path(program).resolve()))


class LlamaServer(System):
    """A llama-server that is stopped by `close`. It samples greedily, or at a temperature without filters.
    method: plain, model, lookup, a --spec-type of the program, or a comma-separated list. n_ctx: of each of
    `parallel` slots. n_draft, p_min: None uses the program's default. samples: drafts are drawn at the
    request's temperature, if the program can. settings: of `model_arguments`. extra: further arguments.
    start_timeout, timeout: seconds to load, and of silence. Raises BaselineError, which quotes the log, if it
    does not start or cannot speculate."""

    def __init__(
        self, command: Sequence[str], target: Path, draft: Path | None = None, *, name: str,
        method: str = "plain", n_draft: int | None = None, p_min: float | None = None, n_ctx: int,
        parallel: int = 1, samples: bool = False, extra: Sequence[str] = (),
        start_timeout: float = 300.0, timeout: float = 120.0, **settings: Any,
    ) -> None:  # fmt: skip
        self.name = name
        self._command = tuple(command)
        types, port = spec_types(method), free_port()
        # Layers for multi-token prediction (draft-mtp) may have a file of their own (Gemma 4).
        is_file = draft is not None and draft.is_file()
        used = draft if needs_draft(types) or (SELF_DRAFTING in types and is_file) else None
        self.url = f"http://{LOCAL}:{port}"
        argv = [
            *command,
            *model_arguments(target, used, n_ctx=n_ctx * parallel, **settings),
            *speculation_arguments(types, n_draft, p_min),
            *("-np", str(parallel), "--cache-ram", "0", "--host", LOCAL, "--port", str(port)),
            *extra,
        ]
        if samples and any(one.startswith("draft-") for one in types) and self.samples_drafts():
            argv += [SAMPLES_DRAFTS, "probabilistic"]
        self._endpoint = Endpoint(name, self.url, timeout, {})
        self._program = BackgroundProgram(name, argv)
        with ExitStack() as stack:
            stack.callback(self.close)
            self._program.wait_ready(self._healthy, start_timeout)
            # It continues without speculation that it cannot set up. Only its log, written by another thread,
            # shows that: wait for the line after it.
            with suppress(BaselineError):
                self._program.wait_ready(lambda: "model loaded" in self._program.output_tail(), 1.0)
            if types and (failed := NO_SPECULATION.search(self._program.output_tail())):
                raise BaselineError(f"{name} does not speculate; its log: {truncated(failed[0])}")
            stack.pop_all()

    def _healthy(self) -> bool:
        with suppress(BaselineError):
            return replace(self._endpoint, timeout=HEALTH).fetch("/health")[0] == 200
        return False

    def answer(self, request: BenchRequest) -> BenchAnswer:
        try:
            answer = self._endpoint.answer("/completion", self.body(request))
        except BaselineError as error:
            ended = self._program.ended(GRACE)
            why = f"{self.name} {self._program.exit_description()}" if ended else str(error)
            raise BaselineError(why) from error
        if answer.n_tokens < request.max_tokens:
            tokens = f"{answer.n_tokens} of {request.max_tokens} tokens"
            raise BaselineError(f"{self.name} stopped after {tokens}: does it need a larger context?")
        return answer

    def body(self, request: BenchRequest) -> dict[str, Any]:
        """Return the body for /completion; benchmarks override this."""
        return completion_body(request)

    def memory(self) -> int | None:
        return self._program.memory()

    def version(self) -> str:
        lines = self._printed("--version").splitlines()
        return next((truncated(line[8:].strip()) for line in lines if line.startswith("version:")), "unknown")

    def samples_drafts(self) -> bool:
        return SAMPLES_DRAFTS in self._printed("--help")

    def _printed(self, flag: str) -> str:
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([*self._command, flag], capture_output=True, timeout=VERSION_SECONDS)
            return (done.stdout + done.stderr).decode(errors="replace")
        return ""

    @property
    def pid(self) -> int:
        return self._program.pid

    def close(self) -> None:
        self._program.close()


def completion_body(request: BenchRequest) -> dict[str, Any]:
    """Return the body for /completion, without the prompt cache and the server's default filters. Greedy
    sampling is top-k 1, which avoids a softmax over the vocabulary."""
    sampling = request.sampling
    return {
        "prompt": list(request.tokens),
        "n_predict": request.max_tokens,
        "seed": request.seed,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": False,
        "return_tokens": True,
        "response_fields": list(LAST),
        "sse_ping_interval": -1,
        "stop": [],
        "samplers": ["penalties"] * sampling.penalised + ["top_k" if sampling.greedy else "temperature"],
        "top_k": 1,
        **{name: getattr(sampling, name) for name in ("temperature", *PENALTIES)},
        # JSON has no infinity; `false` forbids a token.
        "logit_bias": [[t, False if b == -float("inf") else b] for t, b in sampling.logit_bias.items()],
    }


def spec_types(method: str) -> tuple[str, ...]:
    """Return llama.cpp's names of a method: ours, its own, or a comma-separated list; none for plain."""
    names = [name.strip() for name in method.split(",")]
    return tuple(TYPES.get(name, name) for name in names if name not in ("plain", "none"))


def needs_draft(types: Sequence[str]) -> bool:
    return any(one.startswith("draft-") and one != SELF_DRAFTING for one in types)


def model_arguments(
    target: Path, draft: Path | None, *, n_ctx: int, threads: int, flash_attention: bool | None = None,
    cache_type: str = "f16", gpu_layers: int = 0,
) -> list[str]:  # fmt: skip
    out = ["-m", str(target), "-c", str(n_ctx), "-t", str(threads), "-tb", str(threads)]
    out += ["-ngl", str(gpu_layers), "-ctk", cache_type, "-ctv", cache_type]
    if flash_attention is not None:
        out += ["-fa", "on" if flash_attention else "off"]
    if draft is not None:
        out += ["-md", str(draft), "--spec-draft-ngl", str(gpu_layers)]
        out += ["-ctkd", cache_type, "-ctvd", cache_type]
    return [*out, "--fit", "off"]  # automatic settings would make runs incomparable


def speculation_arguments(types: Sequence[str], n_draft: int | None, p_min: float | None) -> list[str]:
    """Return llama-server's speculation flags. n_draft also sets the length that SIZED types copy. None uses
    the program's default."""
    out = ["--spec-type", ",".join(types)] if types else []
    drafted = any(one.startswith("draft-") for one in types)
    if drafted and p_min is not None:
        out += ["--spec-draft-p-min", f"{p_min:g}"]
    if n_draft is not None:
        out += ["--spec-draft-n-max", str(n_draft), "--spec-draft-n-min", "0"] if drafted else []
        out += [word for one in types if one in SIZED for word in (f"--spec-{one}-size-m", str(n_draft))]
    return out
