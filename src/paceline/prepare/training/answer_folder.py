"""The folder of a target's answers, which an interrupted run goes on with.

`answers.jsonl` has a line for each finished answer; `data.json` what they were made with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from paceline.bench.jsonl import raw_lines
from paceline.bench.replay.recording import append_line
from paceline.speculative.errors import PacelineError, UsageError
from paceline.system.whole import write_json

FORMAT = 2  # raised when a field changes its meaning or is removed
HEADER, ANSWERS = "data.json", "answers.jsonl"
# Settings that all answers of a folder share, with their names in messages.
SHARED_SETTINGS = {
    "model": "the target",
    "tokenizer": "its tokenizer",
    "chat_template": "its chat template",
    "max_tokens": "max_tokens (-n)",
    "temperature": "the temperature",
    "seed": "the seed",
}

Ids = NDArray[np.int32]


TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]


class AnswerLine(BaseModel):
    """A line of answers.jsonl."""

    model_config = ConfigDict(strict=True)

    id: str
    prompt: TokenIds
    tokens: TokenIds
    finish: str


class Header(BaseModel):
    """The part of data.json that is read."""

    format: Annotated[int, Field(le=FORMAT)]
    settings: dict[str, Any]
    created: str | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """The target's answer to a prompt. id: the prompt's hash. finish: the reason of its end.
    held_out: True if a training only evaluates on it; the folder does not know."""

    id: str
    prompt: Ids
    tokens: Ids
    finish: str
    held_out: bool = False

    @classmethod
    def read(cls, data: bytes) -> Answer:
        """Return the answer of a line. Raises ValueError for anything else."""
        line = AnswerLine.model_validate_json(data)
        return cls(line.id, np.array(line.prompt, np.int32), np.array(line.tokens, np.int32), line.finish)

    def line(self) -> bytes:
        ids = {"prompt": self.prompt.tolist(), "tokens": self.tokens.tolist()}
        data = {"id": self.id, **ids, "finish": self.finish}
        return json.dumps(data, separators=(",", ":")).encode() + b"\n"


class AnswerFolder:
    """The folder of answers with these settings. Raises UsageError if it has others."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], n_vocab: int) -> None:
        self.folder, self.path = folder, folder / ANSWERS
        self._settings, self._n_vocab = settings, n_vocab
        self.answers: dict[str, Answer] = {}  # by their prompt's hash
        self._created = datetime.now(UTC).isoformat(timespec="seconds")
        if (folder / HEADER).exists() or self.path.exists():
            self._require_same(read_header(folder))
        if self.path.exists():
            self._read()

    def _require_same(self, header: Header) -> None:
        before = header.settings
        different = [
            f"{name} ({_short(before.get(key))}, now {_short(self._settings[key])})"
            for key, name in SHARED_SETTINGS.items()
            if before.get(key) != self._settings[key]
        ]
        if different:
            raise UsageError(
                f"{self.folder}: its answers were made with other settings: {'; '.join(different)}; choose "
                "another folder, or the same settings"
            )
        self._created = header.created or self._created

    def _read(self) -> None:
        """Read all answers, and cut off a line that a killed process left incomplete."""
        data = self.path.read_bytes()
        if (end := data.rfind(b"\n") + 1) < len(data):
            os.truncate(self.path, end)
        for line in raw_lines(self.path):
            try:
                answer = Answer.read(line.data)
                sound = max(answer.prompt.max(), answer.tokens.max()) < self._n_vocab
            except ValueError:
                sound = False
            if not sound:
                raise UsageError(
                    f"{self.path}, line {line.number}: is damaged; remove it, to answer its prompt again"
                )
            self.answers.setdefault(answer.id, answer)

    def write_header(self, about: Mapping[str, Any]) -> None:
        """Write data.json with what else is known. Raises PacelineError."""
        header = {"format": FORMAT, "created": self._created, "settings": self._settings, **about}
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / HEADER, header)

    def add(self, answer: Answer) -> None:
        """Append an answer; the system has it when this returns. Raises PacelineError."""
        with self._writing():
            append_line(self.path, answer.line())
        self.answers[answer.id] = answer

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.folder, f"all {len(self.answers):,} answers so far are kept")


@contextmanager
def writing(place: object, left: str) -> Iterator[None]:
    """Raise PacelineError in place of OSError, as of a full disk. left: what an interrupted run keeps."""
    try:
        yield
    except OSError as error:
        raise PacelineError(
            f"{place}: cannot be written ({error.strerror or error}); make room there, and give the same "
            f"command again: {left}"
        ) from error


def read_header(folder: Path) -> Header:
    """Return data.json of a folder. Raises UsageError."""
    path = folder / HEADER
    try:
        return Header.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: is missing or damaged, or of something else or a newer Paceline; choose another folder"
        ) from error


def _short(value: Any) -> str:
    return value[:8] or "none" if isinstance(value, str) else str(value)
