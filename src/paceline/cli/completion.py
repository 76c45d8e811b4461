"""A streamed completion on a terminal, with its figures and a comparison with plain decoding."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from time import monotonic
from typing import IO, Any

from rich.console import Console

from paceline.api import LLM
from paceline.backends.interface import ReusesCache
from paceline.bench.provenance import provenance
from paceline.bench.replay.recording import Recorder
from paceline.bench.text_comparison import judge, warm_up
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.output import print_detail, print_json, print_note
from paceline.cli.references import base_model
from paceline.engine import Stream
from paceline.report.table import SourceMarks, comparison, details, efficiency, summary, write_phases
from paceline.request_handle import Generation, StepOutput
from paceline.settings import PLAIN
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import count
from paceline.speculative.sampling import Sampling
from paceline.system.terminal import wrapped

MIN_ANSWER_TOKENS = 32  # for a comparison of its speed with that of plain decoding, measured on few tokens
PLAIN_TOKENS, PLAIN_SECONDS = 16, 0.5  # whichever is over sooner
MIN_PROMPT_TOKENS = 256  # of a prompt whose progress is shown
# Of a generation, by the same names.
RECORDED = (
    *("text", "tokens", "stop_reason", "n_prompt", "n_cached", "n_skipped", "n_tokens"),
    *("prompt_seconds", "prompt_tokens_per_second", "seconds", "tokens_per_second"),
)


class PrefillProgress:
    """A progress line of the prefill, for `on_prefill` of `LLM.stream`. `close` removes it.
    Raises KeyboardInterrupt after Ctrl-C."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._began, self._width = monotonic(), 0

    def __call__(self, read: int, total: int) -> None:
        self._interrupts.check()
        if read == 0:
            self._began = monotonic()
        if read == total or total < MIN_PROMPT_TOKENS:
            self.close()
        elif sys.stderr.isatty():
            seconds = monotonic() - self._began
            speed = f", {read / seconds:.0f} tokens/s" if read and seconds > 0 else ""
            line = f"reading the prompt: {read:,} of {total:,} tokens{speed}"
            self._width = max(self._width, len(line))
            sys.stderr.write(f"\r{line:{self._width}}")
            sys.stderr.flush()

    def close(self) -> None:
        if self._width:
            sys.stderr.write(f"\r{'':{self._width}}\r")
            sys.stderr.flush()
            self._width = 0


def until_interrupted(stream: Stream, interrupts: Interrupts) -> Iterator[StepOutput]:
    """Yield an answer's pieces until Ctrl-C, which PrefillProgress may raise during the prefill."""
    try:
        for piece in stream:
            yield piece
            if interrupts.pressed:
                return
    except KeyboardInterrupt:
        pass


@dataclass
class Completion:
    """The completion of one prompt. Raises UsageError if the recorder's file is of another vocabulary.
    request: arguments of LLM.stream, without the prompt and the sampling.
    chat: use the model's chat template."""

    llm: LLM
    request: dict[str, Any]
    sampling: Sampling
    interrupts: Interrupts
    as_json: bool
    show_sources: bool
    show_stats: bool
    recorder: Recorder | None
    chat: bool

    def __post_init__(self) -> None:
        if self.recorder is not None:
            self.recorder.begin(self.llm.target.vocab, self.llm.target.name)
        self.request = self.request | asdict(self.sampling)
        self._marks = SourceMarks(Console(file=sys.stdout)) if self.show_sources else None

    def prompt(self, text: str, messages: Sequence[Mapping[str, str]], *, wants_chat: bool) -> list[int]:
        """Return the tokens of the conversation, or of the text without a chat template.
        Raises ModelError for an unusable template. wants_chat: the user requested a chat."""
        llm = self.llm
        if self.chat and not wants_chat:
            print_detail("an instruct model: the prompt goes through its chat template (--no-chat: without)")
        elif wants_chat and not llm.has_chat_template:
            raise base_model(llm.target.origin)
        try:
            return llm.chat_tokens(messages) if self.chat else llm.tokens(text)
        except ModelError as error:
            raise ModelError(f"{error} (--no-chat does without)") from error

    def single(self, prompt: Sequence[int]) -> int:
        """Complete the prompt and print its figures. Return the exit code."""
        self._legend()
        run = self._decode(prompt, plain=False)
        if self.as_json:
            self._print_json(run)
        else:
            self._measure_plain(prompt, run)
            is_cut = self.chat and run["stop_reason"] == "length"
            cut = f"; cut after {count(run['n_tokens'], 'token')} (-n N for more)" if is_cut else ""
            print_note(f"{summary(run)}{cut}")
        self._end(run, sys.stderr)
        return INTERRUPTED if self.interrupts.pressed else 0

    def _measure_plain(self, prompt: Sequence[int], run: dict[str, Any]) -> None:
        """Decode a few tokens plainly after a drafted answer, and add their speed to its record."""
        tokens, n_ctx = [*prompt, *run["tokens"]], self.llm.target.caps.n_ctx
        short = run["n_tokens"] < MIN_ANSWER_TOKENS or not run["stats"]["accepted"]
        if short or self.interrupts.pressed or len(tokens) + PLAIN_TOKENS > n_ctx:
            return
        with self.llm.stream(tokens, plain=True, ignore_eos=True, remember=False) as stream:
            times = [monotonic()]
            for _ in stream:
                times.append(monotonic())
                enough = len(times) > PLAIN_TOKENS or times[-1] - times[0] > PLAIN_SECONDS
                if enough or self.interrupts.pressed:
                    break
        first = len(times) // 2  # the first passes after those of several rows are slower
        if len(times) > 1 and times[-1] > times[first - 1]:
            run["plain_tokens_per_second"] = (len(times) - first) / (times[-1] - times[first - 1])

    def compare(self, prompt: Sequence[int]) -> int:
        """Complete the prompt plainly, then with drafts. Return the exit code. Raises NotLosslessError."""
        record: dict[str, Any] = {"plain": None, "drafted": None, "speedup": None, "identical": None}
        with closing(PrefillProgress(self.interrupts)) as prefill:
            warm = warm_up(self.llm, prompt, prefill)
        record |= {"n_read": warm.n_prefilled, "prompt_tokens_per_second": warm.prompt_tokens_per_second}
        self._legend()
        for name, heading in (("plain", "plain"), ("drafted", f"drafted ({self.llm.drafter.name})")):
            if not self.interrupts.pressed:
                if not self.as_json:
                    print_note(f"--- {heading} ---")
                record[name] = self._decode(prompt, plain=name == "plain")
        if self.interrupts.pressed:
            if self.as_json:
                self._print_json(record)
            return INTERRUPTED
        plain, drafted = record["plain"], record["drafted"]
        judgement = judge(self.llm, prompt, plain["tokens"], drafted["tokens"], self.sampling)
        record["speedup"] = drafted["tokens_per_second"] / plain["tokens_per_second"]
        record["efficiency"] = efficiency(drafted, plain["tokens_per_second"])
        record |= {"identical": judgement.identical, "verdict": judgement.verdict}
        if judgement.difference is not None:
            record["difference"] = vars(judgement.difference) | {"near_tie": judgement.difference.near_tie}
        if self.as_json:
            self._print_json(record)
        else:
            print_note("")
            comparison(record, judgement.verdict, sys.stdout)
        self._end(drafted | {"plain_tokens_per_second": plain["tokens_per_second"]}, sys.stdout)
        judgement.require_lossless()
        return 0

    def _decode(self, prompt: Sequence[int], *, plain: bool) -> dict[str, Any]:
        """Stream one generation until its end or Ctrl-C. Return its record."""
        sources, parts, length, request = list[str](), list[tuple[str, str]](), 0, self.request
        prefill, draft, reused = PrefillProgress(self.interrupts), self.llm.draft, 0
        if isinstance(draft, ReusesCache):
            reused = draft.n_reused
        with closing(prefill), self.llm.stream(prompt, plain=plain, on_prefill=prefill, **request) as stream:
            self.interrupts.defer_first()
            try:
                for piece in until_interrupted(stream, self.interrupts):
                    sources += piece.sources
                    parts += piece.parts
                    length += len(piece.text)
                    self._show(piece.text if self._marks is None else self._marks.marked(piece.parts))
            finally:  # also if stdout is closed
                self._record(prompt, stream.result(), plain=plain)
        generation = stream.result()
        self._show(generation.text[length:] + ("" if generation.text.endswith("\n") else "\n"))
        if not self.as_json:
            if generation.complete is False:
                print_note("the text is cut short of what the grammar asks for")
            if not generation.text.strip() and generation.stop_reason is not None:
                at_once = "the model ended it at once (--ignore-eos goes on), or --stop did"
                print_note(f"the text is empty: {at_once}")
        record = as_record(generation) | self._logprobs(generation)
        if isinstance(draft, ReusesCache) and not plain:
            record["draft_n_cached"] = draft.n_reused - reused
        return record if self._marks is None else record | {"sources": sources, "parts": parts}

    def _record(self, prompt: Sequence[int], generation: Generation, *, plain: bool) -> None:
        """Add the first answer to the recorder's file: in a comparison, the plain answer."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None and generation.tokens:
            recorder.add(
                prompt,
                generation,
                id_=f"run-{uuid.uuid4().hex[:12]}",
                sampling=self.sampling,
                seed=self.request["seed"],
                drafting=PLAIN if plain else self.llm.drafting,
            )

    def _show(self, text: str) -> None:
        if not self.as_json:
            print(text, end="", flush=True)

    def _legend(self) -> None:
        if self._marks is not None and not self.as_json:
            print(self._marks.legend(self.llm.drafter.name.split(",")), file=sys.stderr)

    def _end(self, run: dict[str, Any], file: IO[str]) -> None:
        """Print the time of each phase (--stats)."""
        if self.show_stats and not self.as_json:
            file.write(f"\n{wrapped(details(run), file)}\n\n")
            write_phases(run, file)

    def _logprobs(self, generation: Generation) -> dict[str, Any]:
        n = self.request["logprobs"]
        if n is None:
            return {}
        return {
            "logprobs": [
                self._token(token, it.logprob) | {"top": [self._token(*likely) for likely in it.top[:n]]}
                for token, it in zip(generation.tokens, generation.logprobs, strict=True)
            ]
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        vocab = self.llm.target.vocab
        text = vocab.piece(token) or vocab.text(token)  # a control token's name
        return {"id": token, "text": text.decode(errors="replace"), "logprob": logprob}

    def _print_json(self, record: dict[str, Any]) -> None:
        print_json(record | {"provenance": provenance(self.llm, self.request | {"chat": self.chat})})


def as_record(generation: Generation) -> dict[str, Any]:
    """Return a generation as `--json` prints it."""
    record = {name: getattr(generation, name) for name in RECORDED}
    record |= {"tokens": list(generation.tokens), "stop_reason": generation.stop_reason or "interrupted"}
    record |= {"n_read": generation.n_prefilled, "stats": generation.stats.as_dict()}
    if generation.drafting_summary is not None:
        record["policy"] = generation.drafting_summary.as_dict()
    if generation.complete is not None:
        record["complete"] = generation.complete
    return record
