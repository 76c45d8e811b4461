"""llama.cpp's command-line programs as Systems: llama-speculative, llama-speculative-simple, llama-lookup.

Each process answers one prompt and exits. It prints no token ids, and the prompt's time in milliseconds.
Loading the model is not counted."""

from __future__ import annotations

import re
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from paceline.bench.baselines import llama_server
from paceline.bench.baselines.process import MAX_OUTPUT, TAIL, BackgroundProgram
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.speculative.errors import BaselineError, UsageError
from paceline.speculative.sampling import Sampling
from paceline.system.shutdown import scratch_folder

BATCH = 2048  # the programs' default; the prompt has to fit one batch
COUNT = r"(\d{1,9})(?!\d)"
NUMBER = r"(\d{1,12}(?:\.\d{0,12})?)(?![\d.])"
FIGURES = (
    rf"encoded\s+{COUNT} tokens in\s+{NUMBER} seconds",
    rf"decoded\s+{COUNT} tokens in .{{0,80}}?speed:\s+{NUMBER} t/s",
    rf"n_drafted\s+= {COUNT}",
    rf"n_accept\s+= {COUNT}",
)
VOCABULARY = "draft model vocab"  # of the line about a draft that does not fit the target
FRAME = "\n\n"
BOS_ROOM = 64  # characters of the BOS token that is printed first


class LlamaProgram(System):
    """A command-line program of llama.cpp; no process outlives `answer`.
    path: of the program; None searches PATH. n_ctx: of target and draft model each. timeout: seconds for a
    request, loading included. Raises BaselineError for a missing program, UsageError for other settings."""

    def __init__(
        self, program: str, path: str | None, target: Path, draft: Path | None = None, *, name: str,
        n_draft: int, p_min: float = 0.0, n_ctx: int, timeout: float = 600.0, **settings: Any,
    ) -> None:  # fmt: skip
        simple = program == "llama-speculative-simple"
        self.name = name
        if p_min and not simple:
            raise UsageError(f"{name} knows no p_min, it always drafts on: give it p_min 0")
        self._n_ctx, self._n_draft, self._timeout, self._peak = n_ctx, n_draft, timeout, 0
        self._argv = [*llama_server.find_program(path or program)]
        # Absolute paths, as it runs in a folder of its own.
        paths = target.resolve(), draft and draft.resolve()
        self._argv += llama_server.model_arguments(*paths, n_ctx=n_ctx, **settings)
        self._argv += ["--spec-draft-n-max", str(n_draft), "--spec-draft-n-min", "0"]
        if simple:  # its default is not to draft
            self._argv += ["--spec-draft-p-min", f"{p_min:g}", "--spec-type", "draft-simple"]
        # The first token comes from the prompt's pass, before the decoding clock starts; with the simple
        # program, whose first step reads the prompt's last token, the clock covers every token.
        self._n_first = 0 if simple else 1

    def answer(self, request: BenchRequest) -> BenchAnswer:
        """Answer with up to n_draft more tokens than requested, since the programs check their limit between
        steps. The end token is forbidden, which differs slightly from continuing after it."""
        need = len(request.tokens) + request.max_tokens + self._n_draft + 4
        if need > self._n_ctx:
            cells = f"{need:,} cells of context, and has {self._n_ctx:,}"
            raise BaselineError(f"{self.name} needs {cells}: use a longer one (-c)")
        with scratch_folder(Path(tempfile.gettempdir())) as folder:
            prompt = folder / "prompt.txt"
            # The programs drop a final newline.
            prompt.write_text(request.prompt + "\n", encoding="utf-8", newline="")
            argv = [*self._argv, *self._arguments(request, prompt)]
            with closing(BackgroundProgram(self.name, argv, folder)) as process:
                try:
                    self._peak = max(self._peak, process.run_to_end(self._timeout))
                except BaselineError as error:
                    advice = ". They do not fit: see `paceline check`" if VOCABULARY in str(error) else ""
                    raise BaselineError(f"{error}{advice}") from error
                out, err = process.output(MAX_OUTPUT)
                try:
                    return self._read(out, err, request.prompt)
                except ValueError as error:
                    why = process.with_log(f"its output cannot be read ({error})")
                    raise BaselineError(f"{self.name}: {why}") from error

    def _arguments(self, request: BenchRequest, prompt: Path) -> list[str]:
        n_predict = max(1, request.max_tokens - 1)  # it stops after exceeding it
        out = ["-f", str(prompt), "--no-escape", "-n", str(n_predict), "--seed", str(request.seed)]
        out += ["-b", str(len(request.tokens))] if len(request.tokens) > BATCH else []
        return [*out, "--ignore-eos", *greedy_arguments(request.sampling)]

    def _read(self, out: str, err: str, prompt: str) -> BenchAnswer:
        """Parse the text and the figures. Raises ValueError if they are missing or impossible."""
        (n_prompt, first), (n, speed), (drafted,), (accepted,) = (last(it, err[-TAIL:]) for it in FIGURES)
        start = out.find(prompt, 0, len(FRAME) + BOS_ROOM + len(prompt))
        if start < 0 or n < 1 or speed <= 0.0 or accepted > drafted:
            figures = f"{n:g} tokens at {speed:g} t/s, {accepted:g} accepted of {drafted:g}"
            raise ValueError("the prompt before the answer is missing" if start < 0 else figures)
        n_tokens, seconds = int(n), n / speed  # the printed seconds are rounded
        return BenchAnswer(
            text=out[start + len(prompt) :].removesuffix(2 * FRAME), tokens=None, n_tokens=n_tokens,
            n_prompt=int(n_prompt), first=first, seconds=first + seconds, decoded=n_tokens - self._n_first,
            decoding=seconds, steps=n_tokens - int(accepted) - self._n_first, drafted=int(drafted),
            accepted=int(accepted), own_speed=speed,
        )  # fmt: skip

    def memory(self) -> int | None:
        """Return the largest bytes of RAM seen; None before the first answer."""
        return self._peak or None


def greedy_arguments(sampling: Sampling) -> list[str]:
    """Return the flags of greedy decoding with the penalties and biases of `sampling`."""
    out = ["--temp", "0"]
    for name in llama_server.PENALTIES if sampling.penalised else ():
        out += [f"--{name.replace('_', '-')}", f"{getattr(sampling, name):g}"]
    for token, bias in sampling.logit_bias.items():
        out += ["-l", f"{token}{bias:+g}"]
    return out


def last(pattern: str, text: str) -> tuple[float, ...]:
    """Return the figures of the last match, since the prompt may contain an earlier one."""
    *_, match = None, *re.finditer(pattern, text, re.ASCII)
    if match is None:
        raise ValueError(f"no {pattern.partition(chr(92))[0]} in it")
    return tuple(map(float, match.groups()))
