"""Answers of the target to training prompts, which it decodes with its drafters, several at a time.

They are in a folder, which an interrupted run goes on with: `answers.jsonl` has a line for each finished
answer, `data.json` what they were made with."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from paceline.api import LLM
from paceline.bench.jsonl import raw_lines
from paceline.bench.prompts import encode_item, fill_messages
from paceline.bench.provenance import provenance
from paceline.bench.replay.recording import append_line
from paceline.bench.suites.workload import Item
from paceline.engine import BatchRun
from paceline.prepare.corpus import Skipped
from paceline.prepare.training.plan import TrainingPlan
from paceline.prepare.training.prompts import TrainingPrompts
from paceline.request_handle import RequestHandle
from paceline.speculative.errors import ContextError, ModelError, UsageError
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.system.strict_json import parse_json
from paceline.system.whole import write_json, writing

FORMAT = 2  # raised when a field changes its meaning or is removed
HEADER, LINES = "data.json", "answers.jsonl"
# Settings that all answers of a folder share, with their names in messages.
SHARED_SETTINGS = {
    "model": "the target",
    "tokenizer": "its tokenizer",
    "chat_template": "its chat template",
    "max_tokens": "max_tokens (-n)",
    "temperature": "the temperature",
    "seed": "the seed",
}
MAX_TOKENS = 512  # of an answer
CHECKPOINT, SPLIT = "checkpoint.pt", "split.json"  # of a run
MIN_TOKENS = 32  # of the answers to train on, and of the held-out ones
ANSWERS, FEATURES, TRAINING = "answers", "features", "training"  # stages, and folders

Report = Callable[[str, Any], object]  # the stage, and its progress
Note = Callable[[str], object]
Ids = NDArray[np.int32]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]


class AnswerLine(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str
    prompt: TokenIds
    tokens: TokenIds
    finish: str


@dataclass(frozen=True, eq=False)
class Answer:
    """The target's answer to a prompt. id: the prompt's hash. finish: the reason of its end.
    held_out: True if a training only evaluates on it; the folder does not know."""

    id: str
    prompt: Ids
    tokens: Ids
    finish: str
    held_out: bool = False

    @property
    def all_tokens(self) -> Ids:
        """The prompt's tokens, and the answer's."""
        return np.concatenate([self.prompt, self.tokens])


class AnswerFolder:
    """The folder of answers with these settings. Raises UsageError if it has others.
    A line that is cut short or damaged is no answer: its prompt is answered again."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], n_vocab: int) -> None:
        self.folder, self.path = folder, folder / LINES
        self._settings = settings
        self.answers: dict[str, Answer] = {}  # by their prompt's hash
        self._created = datetime.now(UTC).isoformat(timespec="seconds")
        if (folder / HEADER).exists() or self.path.exists():
            self._require_same(read_header(folder))
        for line in raw_lines(self.path) if self.path.exists() else ():
            with suppress(ValueError):
                it = AnswerLine.model_validate_json(line.data)
                if max(*it.prompt, *it.tokens) < n_vocab:
                    ids = np.array(it.prompt, np.int32), np.array(it.tokens, np.int32)
                    self.answers.setdefault(it.id, Answer(it.id, *ids, it.finish))

    def _require_same(self, header: Mapping[str, Any]) -> None:
        def short(value: Any) -> str:
            return value[:8] or "none" if isinstance(value, str) else str(value)

        before = header["settings"]
        different = [
            f"{name} ({short(before.get(key))}, now {short(self._settings[key])})"
            for key, name in SHARED_SETTINGS.items()
            if before.get(key) != self._settings[key]
        ]
        if different:
            raise UsageError(
                f"{self.folder}: its answers were made with other settings: {'; '.join(different)}; choose "
                "another folder, or the same settings"
            )
        self._created = header.get("created") or self._created

    def write_header(self, about: Mapping[str, Any]) -> None:
        """Write data.json with what else is known. Raises PacelineError."""
        header = {"format": FORMAT, "created": self._created, "settings": self._settings, **about}
        with writing(self.folder, self._left):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / HEADER, header)

    def add(self, answer: Answer) -> None:
        """Append an answer; the system has it when this returns. Raises PacelineError."""
        ids = {"prompt": answer.prompt.tolist(), "tokens": answer.tokens.tolist()}
        line = json.dumps({"id": answer.id, **ids, "finish": answer.finish}, separators=(",", ":"))
        with writing(self.folder, self._left):
            append_line(self.path, line.encode() + b"\n")
        self.answers[answer.id] = answer

    @property
    def _left(self) -> str:
        return f"all {len(self.answers):,} answers so far are kept"


def read_header(folder: Path) -> dict[str, Any]:
    """Return data.json of a folder. Raises UsageError."""
    path = folder / HEADER
    with suppress(OSError, ValueError, TypeError, KeyError):
        header: dict[str, Any] = parse_json(path.read_bytes())
        if header["format"] <= FORMAT and isinstance(header["settings"], dict):
            return header
    raise UsageError(
        f"{path}: is missing or damaged, or of something else or a newer Paceline; choose another folder"
    )


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


@dataclass(frozen=True)
class GeneratedAnswers:
    """The answers to the prompts, in the order of the file. missing: prompts left out when the time was over.
    skipped: prompts that the target cannot take."""

    answers: list[Answer]
    missing: int = 0
    skipped: Skipped = field(default_factory=Skipped)


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
) -> GeneratedAnswers:
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
    limit = None if minutes is None else 60.0 * minutes
    return _Generation(llm, prompts, store, request, limit, report).run()


class _Generation:
    """A run over the prompts without an answer. limit: seconds, after which no prompt is begun."""

    def __init__(
        self,
        llm: LLM,
        prompts: TrainingPrompts,
        store: AnswerFolder,
        request: GenerationRequest,
        limit: float | None,
        report: Callable[[GenerationProgress], object],
    ) -> None:
        self._llm, self._prompts, self._store = llm, prompts, store
        self._request, self._limit, self._report = request, limit, report
        self._skipped = Skipped()
        self._left = deque(item for item in prompts.items if item.id not in store.answers)
        self._waiting: dict[str, list[Item]] = {}  # by the hash of the prompt whose answer they go on from
        self._running, self._refused = dict[RequestHandle, Item](), set[str]()
        self._before = self._done = len(prompts.items) - len(self._left)
        self._tokens, self._start = 0, monotonic()

    def run(self) -> GeneratedAnswers:
        items, answers = self._prompts.items, self._store.answers
        with self._llm.engine.run_batch() as run:
            while True:
                self._begin(run)
                if run.is_over:
                    break
                self._tokens += sum(len(output.tokens) for _, output in run.step())
                for handle in [handle for handle in self._running if handle.is_over]:
                    self._finish(self._running.pop(handle), handle)
                counts = self._done, len(items) - len(self._refused), self._before, self._tokens
                self._report(GenerationProgress(*counts, monotonic() - self._start, self._limit))
        ids = {item.id for item in items}
        found = [answer for id_, answer in answers.items() if id_ in ids]
        return GeneratedAnswers(found, len(ids) - len(found) - len(self._refused), self._skipped)

    def _begin(self, run: BatchRun) -> None:
        """Queue prompts, while there are sessions and time. Those that cannot be decoded are skipped."""
        most = 2 * self._llm.target.caps.max_sessions  # no session waits for a prompt
        while self._left and len(self._running) < most:
            if self._limit is not None and monotonic() - self._start >= self._limit:
                return
            item = self._left.popleft()
            unanswered = [one for one in item.referred if one not in self._store.answers]
            if not self._refused.isdisjoint(unanswered):
                self._skip(item, "goes on from a skipped prompt")
            elif unanswered:
                self._waiting.setdefault(unanswered[0], []).append(item)
            else:
                try:
                    self._running[run.add(self._make_request(item))] = item
                except ContextError as error:
                    reason = f"too long for the context with {self._request.max_tokens:,} tokens of answer"
                    self._skip(item, reason, error)
                except (UsageError, ModelError) as error:
                    self._skip(item, "not encodable", error)

    def _make_request(self, item: Item) -> GenerationRequest:
        llm, request = self._llm, self._request
        messages = fill_messages(item, {one: self._text(one) for one in item.referred})
        if messages and self._prompts.chat:
            tokens = llm.chat_tokens(messages)
        else:
            tokens = encode_item(llm, item, messages)
        if len(tokens) + request.max_tokens > llm.target.caps.n_ctx:
            raise ContextError(f"{len(tokens):,} tokens")
        # Each prompt has a seed of its own, whatever the order.
        return replace(request, prompt=tokens, seed=(request.seed + int(item.id[:8], 16)) % 2**32)

    def _skip(self, item: Item, reason: str, error: Exception | None = None) -> None:
        self._skipped.add(reason, item.category + (f" ({error})" if error else ""))
        self._refused.add(item.id)
        self._left.extendleft(self._waiting.pop(item.id, ()))

    def _text(self, id_: str) -> str:
        pieces = map(self._llm.target.text.piece, self._store.answers[id_].tokens.tolist())
        return b"".join(pieces).decode(errors="replace")

    def _finish(self, item: Item, handle: RequestHandle) -> None:
        finish = handle.finish
        assert finish is not None
        if finish.error is not None:
            raise finish.error
        prompt, tokens = (np.array(ids, np.int32) for ids in (handle.request.prompt, handle.tokens))
        self._store.add(Answer(item.id, prompt, tokens, finish.reason or ""))
        self._done += 1
        self._left.extendleft(self._waiting.pop(item.id, ()))  # while the prompt is in the cache


def gather_answers(
    llm: LLM,
    prompts: TrainingPrompts,
    plan: TrainingPlan,
    report: Report,
    note: Note,
    min_tokens: int = MIN_TOKENS,
) -> list[Answer]:
    """Let the target answer the prompts, and split the answers; those of one token are left out.
    min_tokens: to train on, and held out. Raises UsageError for fewer, at once if there cannot be so many."""
    prompts.held_out_ids({item.id: plan.max_tokens for item in prompts.items}, min_tokens)
    is_resumed = (plan.folder / CHECKPOINT).exists()
    found = generate_answers(
        llm,
        prompts,
        plan.cache_folder / ANSWERS,
        max_tokens=plan.max_tokens,
        temperature=plan.temperature,
        # A run that is trained already goes on with the answers that there are.
        minutes=0.0 if is_resumed else plan.answer_minutes or None,
        report=partial(report, ANSWERS),
    )
    for reason, n in found.skipped.counts.items():
        note(f"{n:,} prompts skipped: {reason}, first {found.skipped.examples[reason]}")
    if found.missing and plan.answer_minutes:
        note(f"{found.missing:,} prompts are not answered: the time is over (--answer-minutes)")
    lengths = {answer.id: len(answer.tokens) for answer in found.answers if len(answer.tokens) > 1}
    split = dict[str, bool]()
    if is_resumed:  # with its own answers: a shared folder may have got others meanwhile
        with suppress(OSError, ValueError):
            split = json.loads((plan.folder / SPLIT).read_bytes())
    if not split:
        held_out = prompts.held_out_ids(lengths, min_tokens)
        split = {id_: id_ in held_out for id_ in lengths}
        plan.folder.mkdir(parents=True, exist_ok=True)
        write_json(plan.folder / SPLIT, split)
    answers = [replace(answer, held_out=split[answer.id]) for answer in found.answers if answer.id in split]
    n_held_out = sum(answer.held_out for answer in answers)
    if not 0 < n_held_out < len(answers):
        raise UsageError(f"{plan.cache_folder}: has lost the answers of this run: remove {CHECKPOINT}")
    note(f"{len(answers) - n_held_out:,} answers to train on, {n_held_out:,} held out")
    return answers
