"""The answers of a training, split into those to learn from and those to evaluate on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from paceline.api import LLM
from paceline.prepare.training.answer_folder import Answer
from paceline.prepare.training.answers import generate_answers
from paceline.prepare.training.features import FeatureSource, TrainingSequence
from paceline.prepare.training.plan import TrainingPlan
from paceline.prepare.training.prompts import TrainingPrompts
from paceline.speculative.errors import UsageError

CHECKPOINT = "checkpoint.pt"  # of a run
ANSWERS, FEATURES, TRAINING = "answers", "features", "training"  # stages, and folders

Report = Callable[[str, Any], object]  # the stage, and its progress
Note = Callable[[str], object]


class Sequences:
    """Some of a source's training sequences. lengths: in tokens, known without reading them.
    layers: those whose hidden states a sequence has, of the source's; all by default."""

    def __init__(self, source: FeatureSource, held_out: bool, layers: Sequence[int] = ()) -> None:
        self._source = source
        columns = [source.layers.index(layer) for layer in layers]
        self._columns = None if columns in ([], [*range(len(source.layers))]) else columns
        self._numbers = [i for i, answer in enumerate(source.answers) if answer.held_out == held_out]
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
    llm: LLM, prompts: TrainingPrompts, plan: TrainingPlan, report: Report, note: Note
) -> list[Answer]:
    """Let the target answer the prompts; answers of one token are left out. Raises UsageError for too few."""
    found = generate_answers(
        llm,
        prompts,
        plan.cache_folder / ANSWERS,
        max_tokens=plan.max_tokens,
        temperature=plan.temperature,
        # A run that is trained already goes on with the answers that there are.
        minutes=0.0 if (plan.folder / CHECKPOINT).exists() else plan.answer_minutes or None,
        report=lambda progress: report(ANSWERS, progress),
    )
    for reason, n in found.skipped.counts.items():
        note(f"{n:,} prompts skipped: {reason}, first {found.skipped.examples[reason]}")
    if found.missing and plan.answer_minutes:
        note(f"{found.missing:,} prompts are not answered: the time is over (--answer-minutes)")
    answers = [answer for answer in found.answers if len(answer.tokens) > 1]
    if not any(answer.held_out for answer in answers) or all(answer.held_out for answer in answers):
        raise UsageError("too few answers: some are needed to train on, and some held out (more prompts)")
    return answers
