"""What `paceline train` does, checked before anything is loaded. This module needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from paceline.heads.confidence import KIND as CONFIDENCE
from paceline.heads.confidence import read_confidence
from paceline.heads.files import CARD, CONFIG
from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.speculative.validation import invalid, read_number
from paceline.system.locks import run_lock


@dataclass(frozen=True)
class TrainingOptions:
    """The settings of a run, and the choices of its kind of head.
    minutes: stop after so long, 0 for no limit. evaluations: of a run, on `held_out` sequences.
    patience: evaluations without a better head after which the run ends. n_draft: tokens drafted in them.
    depth: tokens drafted in parallel (medusa, block), or steps on its own states in training (eagle3).
    layers, width: of a block head or a draft model, 0 for the kind's own.
    decay: weight of each further token. variation: share of total variation in the loss.
    mask_token: a block's placeholder. markov_rank: of a block's correction by the token before.
    exit_layers: numbers of the target's first layers that draft (exits, kangaroo), () for the usual ones.
    rank: of an exit's block."""

    epochs: int = 10
    minutes: float = 0.0
    learning_rate: float = 1e-3
    batch_tokens: int = 512
    longest: int = 1024
    evaluations: int = 10
    held_out: int = 24
    patience: int = 4
    n_draft: int = 7
    seed: int = 0
    depth: int = 5
    layers: int = 0
    width: int = 0
    decay: float = 0.8
    variation: float = 0.0
    mask_token: int = 0
    markov_rank: int = 64
    exit_layers: tuple[int, ...] = ()
    rank: int = 256


@dataclass(frozen=True)
class TrainingPlan:
    """What `paceline train` does. draft_vocab: tokens that a head can draft.
    max_tokens: of an answer. answer_minutes: time for answers, 0 for all of them.
    base: a GGUF file of a draft model to begin with (draft, pard).
    cache: a folder of answers and hidden states that several heads share, else they are in the head's own.
    use_cache: keep the hidden states on disk; otherwise the target computes them in every epoch."""

    kind: str
    folder: Path
    options: TrainingOptions
    draft_vocab: int = 8192
    max_tokens: int = 256
    temperature: float = 0.0
    answer_minutes: float = 0.0
    use_cache: bool = True
    base: Path | None = None
    cache: Path | None = None
    device: str = "auto"

    @property
    def cache_folder(self) -> Path:
        """The folder of the answers and their hidden states."""
        return self.cache or self.folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of the run's folders. See run_lock."""
        with ExitStack() as stack:
            for folder in {path.resolve(): path for path in (self.folder, self.cache_folder)}.values():
                stack.enter_context(run_lock(folder))
            yield


def make_plan(kind: str, folder: Path, **given: Any) -> TrainingPlan:
    """Return the plan of these settings, each a field of the plan or of its options. Raises UsageError."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; give the head's folder (-o)")
    is_own = read_confidence(folder) is not None if kind == CONFIDENCE else (folder / CARD).exists()
    if (folder / CONFIG).exists() and not is_own:
        raise UsageError(f"{folder}: has a model or a head of another kind; give another folder (-o)")
    if not 0.0 <= given.get("variation", 0.0) <= 1.0:
        raise invalid("variation (--tv)", given["variation"], "between 0 and 1")
    if given.get("learning_rate", 1.0) <= 0.0:
        raise invalid("learning_rate (--lr)", given["learning_rate"], "above 0")

    if isinstance(layers := given.get("exit_layers"), str):
        given["exit_layers"] = parse_layers(layers)

    names = [field.name for field in fields(TrainingOptions) if field.name in given]
    options = TrainingOptions(**{name: given.pop(name) for name in names})
    return TrainingPlan(kind, folder, options, **given)


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list like "2,4". Raises UsageError."""
    try:
        return tuple(read_number(int, part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise invalid("exit_layers (--exit-layers)", text, "numbers of layers, such as 2,4") from error


def require_torch() -> None:
    """Raise MissingExtraError without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"training needs PyTorch ({error}): pip install 'paceline[hf]'") from error
