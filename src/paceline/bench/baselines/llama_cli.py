"""llama.cpp's programs for the command line as Systems: llama-speculative, its simple sister, llama-lookup.

Each takes one prompt and ends, so that one process answers one request. What it says of itself is all there
is: it prints no token ids, and the time of the prompt in milliseconds. Loading the model is not counted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paceline.bench.baselines.llama_flags import Flags, model_arguments
from paceline.bench.baselines.llama_text import failure, read, unreadable
from paceline.bench.baselines.run_once import run_once
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.speculative.errors import PeerError, UsageError
from paceline.speculative.sampling import Sampling
from paceline.system.scratch import scratch_folder

HELP_TIMEOUT = 30.0  # seconds
# What each thing has been called, the newest name first: old names may be listed as removed.
N_DRAFT = ("--spec-draft-n-max", "--draft-max", "--draft")
N_MIN = ("--spec-draft-n-min", "--draft-min")
P_MIN = ("--spec-draft-p-min", "--draft-p-min")
GPU_LAYERS = ("--spec-draft-ngl", "-ngld")
LONGEST_DRAFT = 16  # of any program's default
BATCH = 2048  # their default; they read the prompt in one batch


class LlamaProgram:
    """What the programs have in common. The sole owner of the process that it runs; no process outlives
    `answer`, however that ends.

    path: of the program; None looks for it on PATH. n_ctx: of target and draft alike. n_draft, p_min: None
    leaves them to the program. extra: more arguments, last. timeout: seconds for a request, loading included.
    Raises PeerError where there is no such program or model file, UsageError for what it cannot do.
    """

    program = ""
    n_first = 1  # the first token comes of the prompt's own pass, right when the decoding clock starts
    drafts_with_model = True
    knows_p_min = False
    draft_type: tuple[str, ...] = ()

    def __init__(
        self,
        path: str | None,
        target: Path,
        draft: Path | None = None,
        *,
        name: str | None = None,
        n_draft: int | None = None,
        p_min: float | None = None,
        n_ctx: int,
        threads: int,
        flash_attention: bool | None = None,
        cache_type: str = "f16",
        gpu_layers: int = 0,
        extra: Sequence[str] = (),
        timeout: float = 600.0,
    ) -> None:
        self.name = name or self.program
        if p_min and not self.knows_p_min:
            raise UsageError(f"{self.name} knows no p_min, it always drafts on: give it p_min 0")
        if self.drafts_with_model != (draft is not None):
            wants = "a" if self.drafts_with_model else "no"
            raise UsageError(f"{self.name} takes {wants} draft model (-md)")
        for model in (target, draft):
            if model is not None and not model.is_file():
                raise PeerError(f"{self.name}: there is no file {model}")
        self._n_ctx, self._n_draft, self._p_min, self._timeout = n_ctx, n_draft, p_min, timeout
        self._extra = tuple(extra)
        self._peak = 0
        self._path = find(path or self.program)
        self._flags = self._read_flags()
        self._models = model_arguments(
            self._flags,
            target.resolve(),
            n_ctx=n_ctx,
            threads=threads,
            parallel=1,
            flash_attention=flash_attention,
            cache_type=cache_type,
            gpu_layers=gpu_layers,
        )
        if draft is not None:
            self._models += ["-md", str(draft.resolve()), "-td", str(threads), "-tbd", str(threads)]
            for names, value in ((GPU_LAYERS, gpu_layers), (("-cd",), n_ctx)):
                self._models += self._given(names, str(value))
            for names in (("-ctkd",), ("-ctvd",)):
                self._models += self._given(names, cache_type)

    def _read_flags(self) -> Flags:
        with scratch_folder(Path(tempfile.gettempdir())) as folder:
            # Whatever its exit status: that of 2024 is 1.
            _, said, _ = self._run([self._path, "--help"], HELP_TIMEOUT, folder)
        self._peak = 0
        flags = Flags(self.program, said)
        if not flags.has("--ignore-eos"):
            raise PeerError(f"{self._path} is no {self.program}: its --help has no --ignore-eos")
        return flags

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        """Answers one ask, with up to n_draft tokens more than it required_outputs: these programs look at
        their limit between steps. Where the ask ignores the end of text, the end token is forbidden, which is
        not quite the same as going on after it.

        first: reading the prompt. rest: its decoding clock. steps: passes of the target that gave tokens.
        Raises PeerError where the program fails.
        """
        longest = LONGEST_DRAFT if self._n_draft is None else self._n_draft
        need = len(ask.tokens) + ask.max_tokens + longest + 4  # beyond it some versions crash
        if need > self._n_ctx:
            raise PeerError(
                f"{self.name} needs {need:,} cells of context for the prompt's {len(ask.tokens):,} tokens "
                f"and {ask.max_tokens:,} more, and was given {self._n_ctx:,}: use a longer context (-c)"
            )
        with scratch_folder(Path(tempfile.gettempdir())) as folder:
            prompt = folder / "prompt.txt"
            # One newline at the end is dropped in reading.
            prompt.write_text(ask.prompt + "\n", encoding="utf-8", newline="")
            code, out, err = self._run(self.arguments(ask, prompt), self._timeout, folder)
        if code != 0:
            raise PeerError(failure(self.name, code, err))
        report = read(out, err, ask.prompt)
        if isinstance(report, str):
            raise PeerError(unreadable(self.name, report, err or out))
        return BenchAnswer(
            text=report.text,
            tokens=None,
            n_tokens=report.n_tokens,
            n_prompt=report.n_prompt,
            first=report.prompt_seconds,
            seconds=report.prompt_seconds + report.seconds,
            decoded=report.n_tokens - self.n_first,
            decoding=report.seconds,
            steps=report.n_tokens - report.accepted - self.n_first,
            drafted=report.drafted,
            accepted=report.accepted,
            own_speed=report.speed,
        )

    def arguments(self, ask: BenchRequest, prompt: Path) -> list[str]:
        """The whole command line."""
        line = [self._path, *self._models]
        if self._n_draft is not None:
            name = self._flags.select(*N_DRAFT)
            line += [name, str(self._n_draft), *self._given(N_MIN, "0")]
        if self._p_min is not None and self.knows_p_min:
            line += [self._flags.select(*P_MIN), f"{self._p_min:g}"]
        if self.draft_type and self._flags.has(self.draft_type[0]):
            line += self.draft_type
        n_predict = max(1, ask.max_tokens - 1)  # it stops once it has more
        line += ["-f", str(prompt), "--no-escape", "-n", str(n_predict), "--seed", str(ask.seed)]
        if len(ask.tokens) > BATCH:
            line += ["-b", str(len(ask.tokens))]
        if ask.ignore_eos:
            line.append("--ignore-eos")
        return [*line, *sampling_arguments(ask.sampling), *self._extra]

    def _given(self, names: Sequence[str], value: str) -> list[str]:
        """The flag by the first name that the program knows; nothing where it knows none."""
        return next(([name, value] for name in names if self._flags.has(name)), [])

    def _run(self, line: Sequence[str], timeout: float, folder: Path) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of one process. folder: where it may leave its log files."""
        # Settings in the environment would apply to this program only.
        env = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")}
        return run_once(self.name, line, timeout, folder=Path(folder), env=env, look=self._look)

    def _look(self, pid: int) -> None:
        import psutil

        with contextlib.suppress(psutil.Error):
            self._peak = max(self._peak, int(psutil.Process(pid).memory_info().rss))

    def memory(self) -> int | None:
        """The most bytes of RAM that were seen at work, of its mapped model file what was in RAM; None before
        the first answer."""
        return self._peak or None

    def close(self) -> None:
        """No process outlives its answer."""


class LlamaSpeculative(LlamaProgram):
    """Drafts with a draft model, always n_draft tokens. Sampled, it verifies by a rule of its own."""

    program = "llama-speculative"


class LlamaSpeculativeSimple(LlamaProgram):
    """Drafts with a draft model greedily, until its confidence falls below p_min. Its first pass reads the
    prompt's last token, so that its decoding clock has every token."""

    program = "llama-speculative-simple"
    n_first = 0
    knows_p_min = True
    draft_type = ("--spec-type", "draft-simple")  # drafts of many kinds, and of none by default


class LlamaLookup(LlamaProgram):
    """Drafts by n-grams of its own text."""

    program = "llama-lookup"
    drafts_with_model = False


def sampling_arguments(sampling: Sampling) -> list[str]:
    line = ["--temp", f"{sampling.temperature:g}"]
    if not sampling.greedy:
        line += ["--top-k", str(sampling.top_k), "--top-p", f"{sampling.top_p:g}"]
        line += ["--min-p", f"{sampling.min_p:g}"]
    if sampling.typical_p < 1.0:
        line += ["--typical", f"{sampling.typical_p:g}"]
    if sampling.xtc_probability > 0.0:
        line += ["--xtc-probability", f"{sampling.xtc_probability:g}"]
        line += ["--xtc-threshold", f"{sampling.xtc_threshold:g}"]
    if sampling.penalised:
        line += ["--repeat-last-n", str(sampling.repeat_last_n)]
        line += ["--repeat-penalty", f"{sampling.repeat_penalty:g}"]
        line += ["--presence-penalty", f"{sampling.presence_penalty:g}"]
        line += ["--frequency-penalty", f"{sampling.frequency_penalty:g}"]
    for token, bias in sampling.logit_bias.items():
        line += ["-l", f"{token}{bias:+g}"]
    return line


def find(path: str) -> str:
    """The program's absolute path."""
    found = shutil.which(path)
    if found is None:
        raise PeerError(
            f"there is no program {path}: build llama.cpp's (python benchmarks/native_llama.py) and give the "
            f"path of this one, as in --peer {Path(path).name}=PATH, or put it on PATH"
        )
    return str(Path(found).resolve())
