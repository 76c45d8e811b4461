"""Generation of the target's answers to training prompts, several at a time, with its drafters."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic

import numpy as np

from paceline.api import LLM
from paceline.bench.prompts import encode_item, fill_messages
from paceline.bench.provenance import provenance
from paceline.bench.suites.workload import Item
from paceline.engine import BatchRun
from paceline.prepare.documents import Skipped
from paceline.prepare.training.answers import (
    ANSWERS,
    CHECKPOINT,
    MIN_TOKENS,
    SPLIT,
    Answer,
    AnswerFolder,
    Note,
    Report,
)
from paceline.prepare.training.options import TrainingOptions
from paceline.prepare.training.prompts import TrainingPrompts
from paceline.request_handle import RequestHandle
from paceline.speculative.errors import ContextError, ModelError, UsageError
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.system.atomic import write_json

MAX_TOKENS = 512  # of an answer


@dataclass(frozen=True)
class GenerationProgress:
    """done, total: prompts, with those answered before this run. before: those alone.
    tokens: of this run's answers, in so many seconds. limit: seconds after which no prompt is begun."""

    done: int
    total: int
    before: int
    tokens: int
    seconds: float
    limit: float | None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The expected time to the end; None before the first answer."""
        if self.done == self.before:
            return None
        left = self.seconds / (self.done - self.before) * (self.total - self.done)
        return left if self.limit is None else max(0.0, min(left, self.limit - self.seconds))


def generate_answers(
    llm: LLM,
    prompts: TrainingPrompts,
    folder: Path,
    *,
    max_tokens: int = MAX_TOKENS,
    temperature: float = 0.0,
    seed: int = 0,
    minutes: float | None = None,
    report: Callable[[GenerationProgress], object] = lambda _: None,
) -> AnswerRun:
    """Let the target answer the prompts, as many at a time as `llm` has sessions; answered ones are skipped.
    minutes: begin no prompt after this time. report: called after each pass; if it raises, all finished
    answers are in the folder. Raises UsageError for other answers, PacelineError if the disk fails."""
    settings = {
        "model": llm.target.identity()["model"],
        "tokenizer": llm.target.vocab.fingerprint,
        "chat_template": sha256(llm.target.text.template().encode()).hexdigest() if prompts.chat else "",
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    store = AnswerFolder(folder, settings, llm.target.vocab.size)
    store.write_header(
        {
            "sources": [asdict(source) for source in prompts.sources],
            "prompts": len(prompts.items),
            "skipped": dict(prompts.skipped.counts),
            "provenance": provenance(llm, {"max_tokens": max_tokens, "temperature": temperature}),
        }
    )
    sampling = Sampling(temperature=temperature)
    request = GenerationRequest(
        prompt=(0,), max_tokens=max_tokens, sampling=sampling, seed=seed, remember=False
    )
    run = AnswerRun(llm, prompts, store, request, None if minutes is None else 60.0 * minutes, report)
    run.run()
    return run


@dataclass(eq=False)
class AnswerRun:
    """A run over the prompts without an answer. limit: seconds, after which no prompt is begun.
    waiting: prompts by the hash of the prompt whose answer they go on from.
    skipped, refused: prompts that the target cannot take, with the reasons, and their hashes."""

    llm: LLM
    prompts: TrainingPrompts
    store: AnswerFolder
    request: GenerationRequest
    limit: float | None
    report: Callable[[GenerationProgress], object]
    skipped: Skipped = field(default_factory=Skipped)
    waiting: dict[str, list[Item]] = field(default_factory=dict)
    running: dict[RequestHandle, Item] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = deque(item for item in self.prompts.items if item.id not in self.store.answers)
        self.done = len(self.prompts.items) - len(self.left)
        self.start = monotonic()

    @property
    def answers(self) -> list[Answer]:
        """The answers to the prompts, in the order of the file."""
        ids = {item.id for item in self.prompts.items}
        return [answer for id_, answer in self.store.answers.items() if id_ in ids]

    @property
    def missing(self) -> int:
        """Prompts left out when the time was over."""
        return len(self.prompts.items) - len(self.answers) - len(self.refused)

    def run(self) -> None:
        total, before, tokens = len(self.prompts.items), self.done, 0
        with self.llm.engine.run_batch() as run:
            while True:
                self._begin(run)
                if run.is_over:
                    break
                tokens += sum(len(output.tokens) for _, output in run.step())
                for handle in [handle for handle in self.running if handle.is_over]:
                    self._finish(self.running.pop(handle), handle)
                counts = self.done, total - len(self.refused), before, tokens
                self.report(GenerationProgress(*counts, monotonic() - self.start, self.limit))

    def _begin(self, run: BatchRun) -> None:
        """Queue prompts, while there are sessions and time. Those that cannot be decoded are skipped."""
        limit = 2 * self.llm.target.caps.max_sessions  # no session waits for a prompt
        while self.left and len(self.running) < limit:
            if self.limit is not None and monotonic() - self.start >= self.limit:
                return
            item = self.left.popleft()
            unanswered = [id_ for id_ in item.referred if id_ not in self.store.answers]
            if not self.refused.isdisjoint(unanswered):
                self._skip(item, "goes on from a skipped prompt")
            elif unanswered:
                self.waiting.setdefault(unanswered[0], []).append(item)
            else:
                try:
                    self.running[run.add(self._make_request(item))] = item
                except ContextError as error:
                    reason = f"too long for the context with {self.request.max_tokens:,} tokens of answer"
                    self._skip(item, reason, error)
                except (UsageError, ModelError) as error:
                    self._skip(item, "not encodable", error)

    def _make_request(self, item: Item) -> GenerationRequest:
        llm, request = self.llm, self.request
        messages = fill_messages(item, {id_: self._text(id_) for id_ in item.referred})
        if messages and self.prompts.chat:
            tokens = llm.chat_tokens(messages)
        else:
            tokens = encode_item(llm, item, messages)
        if len(tokens) + request.max_tokens > llm.target.caps.n_ctx:
            raise ContextError(f"{len(tokens):,} tokens")
        # Each prompt has a seed of its own, whatever the order.
        return replace(request, prompt=tokens, seed=(request.seed + int(item.id[:8], 16)) % 2**32)

    def _skip(self, item: Item, reason: str, error: Exception | None = None) -> None:
        self.skipped.add(reason, item.category + (f" ({error})" if error else ""))
        self.refused.add(item.id)
        self.left.extendleft(self.waiting.pop(item.id, ()))

    def _text(self, id_: str) -> str:
        pieces = map(self.llm.target.text.piece, self.store.answers[id_].tokens.tolist())
        return b"".join(pieces).decode(errors="replace")

    def _finish(self, item: Item, handle: RequestHandle) -> None:
        finish = handle.finish
        assert finish is not None
        if finish.error is not None:
            raise finish.error
        prompt, tokens = (np.array(ids, np.int32) for ids in (handle.request.prompt, handle.tokens))
        self.store.add(Answer(item.id, prompt, tokens, finish.reason or ""))
        self.done += 1
        self.left.extendleft(self.waiting.pop(item.id, ()))  # while the prompt is in the cache


def gather_answers(
    llm: LLM,
    prompts: TrainingPrompts,
    options: TrainingOptions,
    report: Report,
    note: Note,
    min_tokens: int = MIN_TOKENS,
) -> list[Answer]:
    """Let the target answer the prompts, and split the answers; those of one token are left out.
    min_tokens: to train on, and held out. Raises UsageError for fewer, at once if there cannot be so many."""
    prompts.held_out_ids({item.id: options.max_tokens for item in prompts.items}, min_tokens)
    is_resumed = (options.folder / CHECKPOINT).exists()
    found = generate_answers(
        llm,
        prompts,
        options.cache_folder / ANSWERS,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        # A run that is trained already goes on with the answers that there are.
        minutes=0.0 if is_resumed else options.answer_minutes or None,
        report=partial(report, ANSWERS),
    )
    for reason, n in found.skipped.counts.items():
        note(f"{n:,} prompts skipped: {reason}, first {found.skipped.examples[reason]}")
    if found.missing and options.answer_minutes:
        note(f"{found.missing:,} prompts are not answered: the time is over (--answer-minutes)")
    lengths = {answer.id: len(answer.tokens) for answer in found.answers if len(answer.tokens) > 1}
    split = dict[str, bool]()
    if is_resumed:  # with its own answers: a shared folder may have got others meanwhile
        with suppress(OSError, ValueError):
            split = json.loads((options.folder / SPLIT).read_bytes())
    if not split:
        held_out = prompts.held_out_ids(lengths, min_tokens)
        split = {id_: id_ in held_out for id_ in lengths}
        options.folder.mkdir(parents=True, exist_ok=True)
        write_json(options.folder / SPLIT, split)
    answers = [replace(answer, held_out=split[answer.id]) for answer in found.answers if answer.id in split]
    n_held_out = sum(answer.held_out for answer in answers)
    if not 0 < n_held_out < len(answers):
        raise UsageError(f"{options.cache_folder}: has lost the answers of this run: remove {CHECKPOINT}")
    note(f"{len(answers) - n_held_out:,} answers to train on, {n_held_out:,} held out")
    return answers
