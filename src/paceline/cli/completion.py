"""One completion on a terminal: streamed, summed up, and compared with plain decoding where asked."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import IO, Any

from rich.console import Console

from paceline.api import LLM
from paceline.bench.provenance import provenance
from paceline.bench.replay.recording import PLAIN, Recorder
from paceline.bench.text_comparison import judge, warm_up
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.output import print_json
from paceline.cli.reading import PrefillProgress, until_stopped
from paceline.cli.slowness import SlowPassMonitor
from paceline.report import where
from paceline.report.sources import SourceMarks
from paceline.report.table import comparison, summary
from paceline.request_handle import Generation
from paceline.speculative.errors import ModelError
from paceline.speculative.sampling import Sampling

# Of a text without anything to see, by why it ended.
EMPTY = {
    "eos": "the text is empty: the model ended it at once (--ignore-eos goes on)",
    "stop": "the text is empty: it began with what --stop names",
}


class Completion:
    """request: what LLM.stream takes besides the prompt and the sampling. chat: the prompt goes through the
    model's chat template. Raises UsageError where the recorder's file is of another vocabulary."""

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
        chat: bool = False,
    ) -> None:
        if recorder is not None:
            recorder.begin(llm.target.vocab, llm.target.name)
        self._llm, self._sampling, self._interrupts = llm, sampling, interrupts
        self._recorder, self._kept = recorder, False
        self._request = request | asdict(sampling)
        self._as_json, self._show_sources = as_json, show_sources
        self._show_stats, self._chat = show_stats, chat
        self._slowness = SlowPassMonitor(llm)
        self._marks = SourceMarks(Console(file=sys.stdout))
        self._err = Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)

    def prompt(self, text: str, messages: Sequence[Mapping[str, str]], *, wants_chat: bool) -> list[int]:
        """Return the tokens of the conversation, or of the text alone; warn of what could surprise.
        wants_chat: the user asked for a chat. Raises ModelError for a template that cannot be used."""
        llm = self._llm
        if self._chat and not wants_chat:
            self._note("an instruct model: the prompt goes through its chat template (--no-chat: without)")
        elif wants_chat and not llm.chats:
            raise no_template(llm.target.origin)
        try:
            tokens = llm.chat_tokens(messages) if self._chat else llm.tokens(text)
        except ModelError as error:
            raise ModelError(f"{error} (--no-chat does without)") from error
        for content in [message["content"] for message in messages] if self._chat else [text]:
            if control := llm.control_text(content):
                self._note(f"the prompt spells {control}, a control token of this model: it is read as text")
                break
        return tokens

    def single(self, prompt: Sequence[int]) -> int:
        self._legend()
        run = self._decode(prompt, plain=False)
        if self._as_json:
            self._print_json(run)
        else:
            if self._chat and run["stop_reason"] == "length":
                self._note(f"cut after {run['n_tokens']:,} tokens (-n N for more)")
            self._note(summary(run), "dim")
            self._stats(run, sys.stderr)
        self._busy()
        return INTERRUPTED if self._interrupts.pressed else 0

    def compare(self, prompt: Sequence[int]) -> int:
        record: dict[str, Any] = {"plain": None, "drafted": None, "speedup": None, "identical": None}
        with closing(PrefillProgress(self._interrupts)) as reading:
            read = warm_up(self._llm, prompt, reading)
        record |= {"n_read": read.n_read, "prompt_tokens_per_second": read.prompt_tokens_per_second}
        self._legend()
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
            self._note("")
            comparison(record, judgement.said, sys.stdout)
            self._stats(drafted, sys.stdout)
        self._busy()
        judgement.require_lossless()
        return 0

    def _decode(self, prompt: Sequence[int], *, plain: bool) -> dict[str, Any]:
        """Stream one generation to its end, or to Ctrl-C; its record."""
        sources: list[str] = []
        shown = 0
        reading = PrefillProgress(self._interrupts)
        asked = self._request | self._asked()
        with closing(reading), self._llm.stream(prompt, plain=plain, on_prefill=reading, **asked) as stream:
            self._interrupts.hold()
            try:
                for piece in until_stopped(stream, self._interrupts):
                    sources += piece.sources
                    shown += len(piece.text)
                    self._show(self._marks.marked(piece.parts) if self._show_sources else piece.text)
            finally:  # whoever closed stdout has seen enough too
                self._keep(prompt, stream.result(), plain=plain)
        generation = stream.result()
        self._show(generation.text[shown:] + ("" if generation.text.endswith("\n") else "\n"))
        if generation.complete is False and not self._as_json:
            self._note("the text is cut short of what the grammar asks for")
        if not self._as_json and not generation.text.strip() and generation.stop_reason is not None:
            self._note(EMPTY.get(generation.stop_reason, "the text is empty"))
        record = as_record(generation) | self._logprobs(generation)
        return record | {"sources": sources} if self._show_sources else record

    def _asked(self) -> dict[str, Any]:
        """Log-probabilities tell the likeliest tokens, which may be recorded and not shown."""
        top_k = 0 if self._recorder is None else self._recorder.top_k
        return {"logprobs": max(top_k, self._request["logprobs"] or 0)} if top_k else {}

    def _keep(self, prompt: Sequence[int], said: Generation, *, plain: bool) -> None:
        """Of a comparison the plain answer alone, which the drafted one repeats."""
        if self._recorder is None or self._kept or not said.tokens:
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
            self._note(self._marks.legend(self._llm.drafter.name.split(",")))

    def _heading(self, text: str) -> None:
        if not self._as_json:
            self._note(f"--- {text} ---", "bold")

    def _note(self, text: str, style: str = "none") -> None:
        # Written by us: rich would answer a closed pipe with an exit code of its own.
        with self._err.capture() as captured:
            self._err.print(text, style=style)
        sys.stderr.write(captured.get())

    def _busy(self) -> None:
        if warning := self._slowness.warning():
            self._note(f"paceline: {warning}")

    def _stats(self, run: dict[str, Any], file: IO[str]) -> None:
        if self._show_stats:
            file.write("\n")
            where.write(run, file)

    def _logprobs(self, generation: Generation) -> dict[str, Any]:
        n = self._request["logprobs"]  # more may be recorded
        if n is None:
            return {}
        told = zip(generation.tokens, generation.logprobs, strict=True)
        return {
            "logprobs": [
                self._token(token, said.logprob) | {"top": [self._token(*likely) for likely in said.top[:n]]}
                for token, said in told
            ]
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        """A control token says no text: its name stands for it."""
        vocab = self._llm.target.vocab
        text = vocab.piece(token) or vocab.text(token)
        return {"id": token, "text": text.decode(errors="replace"), "logprob": logprob}

    def _print_json(self, record: dict[str, Any]) -> None:
        print_json(record | {"provenance": provenance(self._llm, self._request | {"chat": self._chat})})


def no_template(name: str) -> ModelError:
    """For a base model that a chat was asked of."""
    return ModelError(
        f"{name}: this model has no chat template: it is a base model; give a plain prompt, without --chat, "
        "--system and --messages"
    )


def as_record(generation: Generation) -> dict[str, Any]:
    """With the names that `--json` prints."""
    record = {
        "text": generation.text,
        "tokens": list(generation.tokens),
        "stop_reason": generation.stop_reason or "interrupted",
        "n_prompt": generation.n_prompt,
        "n_read": generation.n_read,
        "n_tokens": generation.n_tokens,
        "prompt_seconds": generation.prompt_seconds,
        "prompt_tokens_per_second": generation.prompt_tokens_per_second,
        "seconds": generation.seconds,
        "tokens_per_second": generation.tokens_per_second,
        "stats": generation.stats.as_dict(),
    }
    if generation.account is not None:
        record["policy"] = generation.account.as_dict()
    if generation.complete is not None:
        record["complete"] = generation.complete
    return record
