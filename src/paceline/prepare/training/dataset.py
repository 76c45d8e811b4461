"""The answers of a training, split into those to learn from and those to evaluate on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paceline.api import LLM
from paceline.prepare.training.answer_folder import Answer
from paceline.prepare.training.answers import generate_answers
from paceline.prepare.training.features import FeatureSource, TrainingSequence
from paceline.prepare.training.plan import TrainingPlan
from paceline.prepare.training.prompts import TrainingPrompts
from paceline.speculative.errors import UsageError
from paceline.system.whole import write_json

CHECKPOINT, SPLIT = "checkpoint.pt", "split.json"  # of a run
MIN_TOKENS = 32  # of the answers to train on, and of the held-out ones
ANSWERS, FEATURES, TRAINING = "answers", "features", "training"  # stages, and folders

Report = Callable[[str, Any], object]  # the stage, and its progress
Note = Callable[[str], object]


class Sequences:
    """Some of a source's training sequences, in the order of their ids: answers end in any order.
    lengths: in tokens, known without reading them.
    layers: those whose hidden states a sequence has, of the source's; all by default."""

    def __init__(self, source: FeatureSource, held_out: bool, layers: Sequence[int] = ()) -> None:
        self._source = source
        columns = [source.layers.index(layer) for layer in layers]
        self._columns = None if columns in ([], [*range(len(source.layers))]) else columns
        sides = [i for i, answer in enumerate(source.answers) if answer.held_out == held_out]
        self._numbers = sorted(sides, key=lambda i: source.answers[i].id)
        self.answers = [source.answers[i] for i in self._numbers]
        self.lengths = [len(answer.prompt) + len(answer.tokens) for answer in self.answers]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> TrainingSequence:
        sequence = self._source[self._numbers[index]]
        if self._columns is None:
            return sequence
        return replace(sequence, hidden=sequence.hidden[:, self._columns])

    def __iter__(self) -> Iterator[TrainingSequence]:
        return (self[index] for index in range(len(self)))


def gather_answers(
    llm: LLM,
    prompts: TrainingPrompts,
    plan: TrainingPlan,
    report: Report,
    note: Note,
    min_tokens: int = MIN_TOKENS,
) -> list[Answer]:
    """Let the target answer the prompts, and split the answers; those of one token are left out.

    min_tokens: to train on, and held out. Raises UsageError for fewer, and before anything is answered if
    there cannot be so many."""
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
        report=lambda progress: report(ANSWERS, progress),
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
