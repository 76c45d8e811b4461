"""The training loop of all heads. `checkpoint.pt` is written every minute, and a run that was killed goes on
from there; `model.safetensors` is the best head so far, by the acceptance length on held-out prompts."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.prepare.training.answers import CHECKPOINT
from paceline.prepare.training.dataset import batches_of, make_batch
from paceline.prepare.training.evaluate import Acceptance
from paceline.prepare.training.features import Sequences, TrainingSequence
from paceline.prepare.training.recipe import Recipe
from paceline.speculative.errors import UsageError
from paceline.system.atomic import atomic_write, writing

CHECKPOINT_SECONDS = 60.0
WARMUP, FINAL_RATE = 0.04, 0.05  # shares of the run, and of the learning rate
BETAS, CLIP = (0.9, 0.95), 0.5
NUMBERS = ("_step", "_epoch", "_at", "_seconds", "_loss", "_best", "_worse", "_evaluated", "history")
CHANGEABLE = ("epochs", "minutes", "answer_minutes", "use_cache")  # a run may be made longer
HISTORY_POINTS = 100  # losses that are noted


@dataclass(frozen=True)
class Progress:
    """share: of the run. loss: a moving average. best: the best acceptance length so far, 0 at first."""

    share: float
    step: int
    loss: float
    best: float
    seconds_left: float


Watch = Callable[[Progress], object]


class Trainer:
    """One run. weights: first weights. embed: the target's embedding matrix [n_vocab, hidden].
    save: writes the numpy weights of the best head."""

    def __init__(
        self,
        recipe: Recipe,
        weights: Mapping[str, Any],
        embedding: Any,
        folder: Path,
        save: Callable[[Mapping[str, Any], Acceptance], None],
        device: str = "cpu",
    ) -> None:
        self._recipe, self._folder, self._save = recipe, folder, save
        self._settings = settings = recipe.options
        self._device = torch.device(device)
        self._embedding = embedding.to(self._device)
        self.weights = {
            name: torch.nn.Parameter(value.to(self._device), requires_grad=name not in recipe.frozen)
            for name, value in weights.items()
        }
        self._network = recipe.network(self.weights)
        self._trained = {name: value for name, value in self.weights.items() if value.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._trained.values(), settings.learning_rate, betas=BETAS, weight_decay=0.0, foreach=True
        )
        self._step, self._seconds, self._loss = 0, 0.0, 0.0
        self._epoch = self._at = 0  # the next batch is number `_at` of the epoch
        self._best, self._worse = 0.0, 0
        self._evaluated = 0  # evaluations that were due so far
        self.history: list[dict[str, float]] = []  # the loss by step, and acceptance lengths
        self._restore()

    @property
    def key(self) -> dict[str, Any]:
        """The settings that a run goes on with."""
        vocabulary = zlib.crc32(self._recipe.vocabulary.ids.tobytes())
        settings = self._settings.record | {"draft_vocab": vocabulary}
        return {name: value for name, value in settings.items() if name not in CHANGEABLE}

    def run(
        self, training: Sequences, held_out: Sequences, progress: Watch = lambda _: None
    ) -> Acceptance | None:
        """Train to the end, and return the best head's acceptance; None if none was better than before.
        An interrupt leaves a checkpoint. Raises PacelineError if the disk fails."""
        with writing(self._folder, "the last checkpoint is kept"):
            self._folder.mkdir(parents=True, exist_ok=True)
            best = self._run(training, held_out, progress)
            self._write_checkpoint()
        return best

    def _run(self, training: Sequences, held_out: Sequences, progress: Watch) -> Acceptance | None:
        settings, began, spent = self._settings, time.monotonic(), self._seconds
        last_written, best = began, None
        if self._recipe.evaluates_first and not self._best:
            best = self._evaluate(held_out)
        order = self._order(training)
        self._at = min(self._at, len(order) - 1)  # a shared folder may have lost answers
        due = int(self._share(len(order)) * settings.evaluations)
        self._evaluated = min(self._evaluated, due)  # a run that was made longer evaluates again
        while self._share(len(order)) < 1.0 and self._worse < settings.patience:
            self._update([training[i] for i in order[self._at]], self._share(len(order)))
            self._at += 1
            if self._at == len(order):
                self._epoch, self._at = self._epoch + 1, 0
                order = self._order(training)
            self._seconds = spent + time.monotonic() - began
            share = self._share(len(order))
            if int(share * HISTORY_POINTS) > len(self.history):
                self.history.append({"step": self._step, "loss": self._loss})
            if int(share * settings.evaluations) > self._evaluated:
                self._evaluated = int(share * settings.evaluations)
                best = self._evaluate(held_out) or best
            left = self._seconds * (1.0 - share) / max(share, 1e-6)
            try:
                progress(Progress(share, self._step, self._loss, self._best, left))
            except BaseException:  # nowhere else: within a step or an evaluation, half is done
                with suppress(OSError):  # the error that ended the run is the one to see
                    self._write_checkpoint()
                raise
            if time.monotonic() - last_written > CHECKPOINT_SECONDS:
                self._write_checkpoint()
                last_written = time.monotonic()
        return best

    def _share(self, batches: int) -> float:
        """Return the share of the run that is done. batches: of the epoch."""
        by_time = self._seconds / (60 * (self._settings.minutes or math.inf))
        return min(1.0, max((self._epoch + self._at / batches) / self._settings.epochs, by_time))

    def _order(self, training: Sequences) -> list[list[int]]:
        """Return the batches of the epoch, as sequence numbers. The seed and the epoch decide."""
        rng = np.random.default_rng([self._settings.seed, self._epoch])
        order = rng.permutation(len(training)).tolist()
        lengths = [min(n, self._settings.longest) for n in training.lengths]
        return batches_of(lengths, order, self._settings.batch_tokens)

    def _update(self, sequences: Sequence[TrainingSequence], share: float) -> None:
        batch = make_batch(sequences, self._recipe.vocabulary, self._device, self._settings.longest)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * rate_at(share)
        # A step draws the same numbers (noise, anchors) in a run that was interrupted before.
        torch.manual_seed(self._settings.seed + (self._step << 32))
        loss = self._recipe.loss(self._network, batch, lambda tokens: self._embedding[tokens])
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._optimizer.param_groups[0]["params"], CLIP)
        self._optimizer.step()
        self._step += 1
        value = float(loss.detach())
        self._loss = value if self._step == 1 else 0.95 * self._loss + 0.05 * value

    def _evaluate(self, held_out: Sequences) -> Acceptance | None:
        """Evaluate, and save the head if it is the best; return its acceptance then."""
        weights = {name: value.detach().float().cpu().numpy() for name, value in self.weights.items()}
        embedding = self._embedding.float().cpu().numpy()
        some = (held_out[i] for i in range(min(len(held_out), self._settings.held_out)))
        found = self._recipe.acceptance(weights, embedding, some, self._settings.n_draft)
        self.history.append({"step": self._step, "length": found.length})
        if found.length <= self._best:
            self._worse += 1
            return None
        self._best, self._worse = found.length, 0
        self._save(weights, found)
        return found

    def _write_checkpoint(self) -> None:
        state = {
            "key": self.key,
            "weights": {name: value.detach().cpu() for name, value in self._trained.items()},
            "optimizer": self._optimizer.state_dict(),
            "numbers": {name: getattr(self, name) for name in NUMBERS},
        }
        with atomic_write(self._folder / CHECKPOINT) as part:
            try:
                torch.save(state, part)
            except RuntimeError as error:  # torch's word for a disk that is full
                raise OSError(str(error).splitlines()[0]) from error

    def _restore(self) -> None:
        file = self._folder / CHECKPOINT
        if not file.is_file():
            return
        try:
            state = torch.load(file, map_location=self._device, weights_only=True)
            key = state["key"]
        except Exception as error:  # torch raises whatever its parts raise
            raise UsageError(f"{file}: cannot be read ({error}); remove it to begin anew") from error
        if key != self.key:
            names = [name for name in self.key if key.get(name) != self.key[name]]
            raise UsageError(
                f"{self._folder}: has a run with another {', '.join(names)}: give another folder (-o), the "
                f"same settings, or remove {CHECKPOINT}"
            )
        with torch.no_grad():
            for name, value in self._trained.items():
                value.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        for name in NUMBERS:
            setattr(self, name, state["numbers"].get(name, getattr(self, name)))


def rate_at(share: float) -> float:
    """Return the factor of the learning rate: a short rise, then a cosine."""
    if share < WARMUP:
        return max(share / WARMUP, 0.01)
    decayed = 0.5 * (1.0 + math.cos(math.pi * (share - WARMUP) / (1.0 - WARMUP)))
    return FINAL_RATE + (1.0 - FINAL_RATE) * decayed
