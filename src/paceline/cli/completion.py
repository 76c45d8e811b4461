"""One completion on a terminal: streamed, summed up, and compared with plain decoding where asked."""

from __future__ import annotations

import json
import math
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from rich.console import Console

from paceline.cli.exits import INTERRUPTED
from paceline.cli.interrupts import Interrupts
from paceline.core.sampling import Sampling
from paceline.lab.judge import judge, warm_up
from paceline.lab.provenance import provenance
from paceline.lab.replay.recording import PLAIN, Recorder
from paceline.llm import LLM
from paceline.report import where
from paceline.report.sources import Marks
from paceline.report.table import comparison, summary
from paceline.stream import Generation


class Completion:
    """request: what LLM.stream takes besides the prompt and the sampling. Raises UsageError where the
    recorder's file is of another vocabulary."""

    def __init__(
        self,
        llm: LLM,
        request: dict[str, Any],
        sampling: Sampling,
        interrupts: Interrupts,
        *,
        as_json: bool,
        show_sources: bool,
        show_stats: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        if recorder is not None:
            recorder.begin(llm.target.vocab, llm.target.name)
        self._llm, self._sampling, self._interrupts = llm, sampling, interrupts
        self._recorder, self._kept = recorder, False
        self._request = request | asdict(sampling)
        self._as_json, self._show_sources = as_json, show_sources
        self._show_stats = show_stats
        self._marks = Marks(Console(file=sys.stdout))
        self._err = Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)

    def single(self, prompt: Sequence[int]) -> int:
        self._legend()
        run = self._decode(prompt, plain=False)
        if self._as_json:
            self._print_json(run)
        else:
            self._note(summary(run), "dim")
            self._stats(run, sys.stderr)
        return INTERRUPTED if self._interrupts.pressed else 0

    def compare(self, prompt: Sequence[int]) -> int:
        warm_up(self._llm, prompt)
        self._legend()
        record: dict[str, Any] = {"plain": None, "drafted": None, "speedup": None, "identical": None}
        for name, heading in (("plain", "plain"), ("drafted", f"drafted ({self._llm.drafter.name})")):
            if not self._interrupts.pressed:
                self._heading(heading)
                record[name] = self._decode(prompt, plain=name == "plain")
        if self._interrupts.pressed:
            if self._as_json:
                self._print_json(record)
            return INTERRUPTED
        plain, drafted = record["plain"], record["drafted"]
        judgement = judge(self._llm, prompt, plain["tokens"], drafted["tokens"], self._sampling)
        record["speedup"] = drafted["tokens_per_second"] / plain["tokens_per_second"]
        record |= {"identical": judgement.identical, "verdict": judgement.said}
        if judgement.difference is not None:
            record["difference"] = vars(judgement.difference) | {"near_tie": judgement.difference.near_tie}
        if self._as_json:
            self._print_json(record)
        else:
            self._note("", "none")
            comparison(plain, drafted, judgement.said, sys.stdout)
            self._stats(drafted, sys.stdout)
        judgement.require_lossless()
        return 0

    def _decode(self, prompt: Sequence[int], *, plain: bool) -> dict[str, Any]:
        """Stream one generation to its end, or to Ctrl-C; its record."""
        sources: list[str] = []
        shown = 0
        with self._llm.stream(prompt, plain=plain, **self._request | self._asked()) as stream:
            # The prompt is computed: from here on there is something to keep when the user has seen enough.
            self._interrupts.hold()
            try:
                for piece in stream:
                    sources += piece.sources
                    shown += len(piece.text)
                    self._show(self._marks.marked(piece.parts) if self._show_sources else piece.text)
                    if self._interrupts.pressed:
                        break
            finally:  # whoever closed stdout has seen enough too
                self._keep(prompt, stream.result(), plain=plain)
        generation = stream.result()
        self._show(generation.text[shown:] + ("" if generation.text.endswith("\n") else "\n"))
        if generation.complete is False and not self._as_json:
            self._note("the text is cut short of what the grammar asks for", "none")
        record = self._record(generation)
        return record | {"sources": sources} if self._show_sources else record

    def _asked(self) -> dict[str, Any]:
        """Log-probabilities tell the likeliest tokens, which may be recorded and not shown."""
        top_k = 0 if self._recorder is None else self._recorder.top_k
        return {"logprobs": max(top_k, self._request["logprobs"] or 0)} if top_k else {}

    def _keep(self, prompt: Sequence[int], said: Generation, *, plain: bool) -> None:
        """Of a comparison the plain answer alone, which the drafted one repeats."""
        if self._recorder is None or self._kept:
            return
        self._kept = True
        self._recorder.add(
            prompt,
            said,
            id_=f"run-{uuid.uuid4().hex[:12]}",
            sampling=self._sampling,
            seed=self._request["seed"],
            drafting=PLAIN if plain else self._llm.drafting,
        )

    def _show(self, text: str) -> None:
        if not self._as_json:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _legend(self) -> None:
        if self._show_sources and not self._as_json:
            self._note(self._marks.legend(self._llm.drafter.name.split(",")), "none")

    def _heading(self, text: str) -> None:
        if not self._as_json:
            self._note(f"--- {text} ---", "bold")

    def _note(self, text: str, style: str) -> None:
        # Written by us: rich would answer a closed pipe with an exit code of its own.
        with self._err.capture() as captured:
            self._err.print(text, style=style)
        sys.stderr.write(captured.get())

    def _stats(self, run: dict[str, Any], file: IO[str]) -> None:
        if self._show_stats:
            file.write("\n")
            where.write(run, file)

    def _record(self, generation: Generation) -> dict[str, Any]:
        record = {
            "text": generation.text,
            "tokens": list(generation.tokens),
            "stop_reason": generation.stop_reason or "interrupted",
            "n_prompt": generation.n_prompt,
            "n_tokens": generation.n_tokens,
            "prompt_seconds": generation.prompt_seconds,
            "seconds": generation.seconds,
            "tokens_per_second": generation.tokens_per_second,
            "stats": generation.stats.as_dict(),
        }
        if generation.account is not None:
            record["policy"] = generation.account.as_dict()
        if generation.complete is not None:
            record["complete"] = generation.complete
        if self._request["logprobs"] is not None:
            told = zip(generation.tokens, generation.logprobs, strict=True)
            n = self._request["logprobs"]  # more may be recorded
            record["logprobs"] = [
                self._token(token, said.logprob) | {"top": [self._token(*likely) for likely in said.top[:n]]}
                for token, said in told
            ]
        return record

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        """A control token says no text: its name stands for it."""
        vocab = self._llm.target.vocab
        text = vocab.piece(token) or vocab.text(token)
        return {"id": token, "text": text.decode(errors="replace"), "logprob": logprob}

    def _print_json(self, record: dict[str, Any]) -> None:
        record["provenance"] = provenance(self._llm, self._request)
        sys.stdout.write(json.dumps(strict(record), allow_nan=False) + "\n")


def strict(value: Any) -> Any:
    """JSON has no infinity: a logit bias of -inf is spelled as a string, which float() reads back."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
