"""What `paceline train` does, checked before anything is loaded: neither torch nor numpy is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.speculative.validation import setting, validate_fields
from paceline.system.locks import run_lock

PLACES = ("folder", "base", "cache", "device")  # where a run is, not what it learns


@dataclass(frozen=True)
class TrainingOptions:
    """What `paceline train` does.
    folder: of the head. base: a GGUF file of a draft model to begin with (draft, pard).
    cache: a folder of answers and hidden states that several heads share, else they are in the head's own.
    evaluations: of a run, on `held_out` sequences. n_draft: tokens drafted in them.
    patience: evaluations without a better head after which the run ends.
    layers, width: 0 for the kind's own. decay: weight of each further token.
    mask_token: a block's placeholder. markov_rank: of a block's correction by the token before.
    exit_layers: numbers of the target's first layers that draft (exits, kangaroo), () for the usual ones."""

    kind: str
    folder: Path
    base: Path | None = None
    cache: Path | None = None
    device: str = "auto"
    max_tokens: int = setting(256, "Tokens of an answer.", 2)
    temperature: float = setting(0.0, "Temperature of the answers; 0: greedy.", 0)
    answer_minutes: float = setting(0.0, "Time for answers; 0: as long as it takes.", 0)
    draft_vocab: int = setting(8192, "Tokens that can be drafted: the most frequent.", 2)
    use_cache: bool = setting(True, "Keep hidden states on disk instead of computing them again.")
    epochs: int = setting(10, "Times to read the answers.", 1)
    minutes: float = setting(0.0, "Longest time of training; 0: no limit.", 0)
    learning_rate: float = setting(1e-3, "Learning rate.", 1e-15)
    batch_tokens: int = setting(512, "Tokens of a batch.", 16)
    longest: int = 1024
    evaluations: int = 10
    held_out: int = 24
    patience: int = 4
    n_draft: int = 7
    seed: int = setting(0, "Seed.", 0)
    depth: int = setting(
        5, "Tokens drafted in parallel (medusa, block), or steps on the head's own states (eagle3).", 1
    )
    layers: int = setting(0, "Layers of a block head (2) or a draft model (4).", 0)
    width: int = setting(0, "Width of a draft model (256).", 0)
    decay: float = 0.8
    variation: float = setting(0.0, "Share of total variation in the loss.", 0, 1)
    mask_token: int = 0
    markov_rank: int = 64
    exit_layers: tuple[int, ...] = ()
    rank: int = setting(256, "Rank of an exit's adapter.", 1)

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def record(self) -> dict[str, Any]:
        """The settings that decide what a run learns, for its card."""
        return {name: value for name, value in vars(self).items() if name not in PLACES}

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


def mtp_file(folder: Path) -> Path:
    """Return the GGUF file of a trained MTP layer, next to the folder of its run."""
    return folder.with_name(f"{folder.name}.gguf")


def make_options(kind: str, folder: Path, **given: Any) -> TrainingOptions:
    """Return the options of a run. Raises UsageError.
    folder: of the head; for mtp its GGUF file, next to which the run has a folder."""
    from paceline.heads.confidence import KIND as CONFIDENCE
    from paceline.heads.confidence import read_confidence
    from paceline.heads.files import CARD, CONFIG

    if kind == "mtp":
        if folder.suffix != ".gguf":
            raise UsageError(f"{folder}: an MTP layer is part of a GGUF file: give one (-o OUT.gguf)")
        folder = folder.with_suffix("")
    is_own = read_confidence(folder) is not None if kind == CONFIDENCE else (folder / CARD).exists()
    foreign = mtp_file(folder) if kind == "mtp" else folder / CONFIG
    if folder.is_file() or (foreign.exists() and not is_own):
        raise UsageError(
            f"{folder}: is a file, or has a model or a head of another kind; give another folder (-o)"
        )
    return TrainingOptions(kind, folder, **given)


def require_torch() -> None:
    """Raise MissingExtraError without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"training needs PyTorch ({error}): pip install 'paceline[hf]'") from error
