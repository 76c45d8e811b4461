"""Helpers of the tests of remembered outputs."""

from __future__ import annotations

from pathlib import Path

from paceline.speculative.vocabulary import Vocab
from paceline.storage.remembered import AnswerHistory


def vocab(size: int = 300) -> Vocab:
    return Vocab(size, "BPE", None, frozenset(), False, False, text=b"%d".__mod__, piece=b"%d".__mod__)


def kept(project: Path) -> list[list[int]]:
    return list(AnswerHistory.open(vocab(), project).outputs())
