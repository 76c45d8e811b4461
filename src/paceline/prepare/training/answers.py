"""Answers of the target to training prompts, in a folder with which an interrupted run goes on:
`answers.jsonl` has a line for each finished answer, `data.json` what they were made with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from paceline.bench.jsonl import raw_lines
from paceline.bench.replay.recording import append_line
from paceline.speculative.errors import UsageError
from paceline.system.atomic import write_json, writing
from paceline.system.strict_json import parse_json

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
