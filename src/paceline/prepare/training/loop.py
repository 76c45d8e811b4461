"""The training loop of draft heads: one for all kinds.

A run is a folder. `checkpoint.pt` is written every minute, so that a run that was killed goes on from there;
`model.safetensors` is always the best head so far, by the acceptance length on held-out prompts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.prepare.training.batches import Sequences, batches_of, make_batch
from paceline.prepare.training.evaluate import Acceptance
from paceline.prepare.training.features import TrainingSequence
from paceline.prepare.training.plan import TrainingSettings
from paceline.prepare.training.recipes import Recipe
from paceline.speculative.errors import UsageError
from paceline.system.whole import atomic_write

CHECKPOINT, CHECKPOINT_SECONDS = "checkpoint.pt", 60.0
WARMUP, FINAL_RATE = 0.04, 0.05  # shares of the run, and of the learning rate
BETAS, CLIP = (0.9, 0.95), 0.5


@dataclass(frozen=True)
class Progress:
    """share: of the run. loss: a moving average. best: the best acceptance length so far, 0 at first."""

    share: float
    step: int
    loss: float
    best: float
    seconds_left: float


class Trainer:
    """One run. weights: first weights. embed: the target's embedding matrix [n_vocab, hidden].
    save: writes the numpy weights of the best head."""

    def __init__(
        self,
        recipe: Recipe,
        weights: Mapping[str, Any],
        embedding: Any,
        folder: Path,
        settings: TrainingSettings,
        save: Callable[[Mapping[str, Any], Acceptance], None],
        device: str = "cpu",
    ) -> None:
        self._recipe, self._settings, self._folder, self._save = recipe, settings, folder, save
        self._device = torch.device(device)
        self._embedding = embedding.to(self._device)
        self.weights = {
            name: torch.nn.Parameter(value.to(self._device), requires_grad=name not in recipe.frozen)
            for name, value in weights.items()
        }
        self._network = recipe.network(self.weights)
        trained = [value for value in self.weights.values() if value.requires_grad]
        self._optimizer = torch.optim.AdamW(
            trained, settings.learning_rate, betas=BETAS, weight_decay=0.0, foreach=True
        )
        self._step, self._seconds, self._loss = 0, 0.0, 0.0
        self._best, self._worse = 0.0, 0
        self._evaluated = 0  # evaluations so far
        self._restore()

    @property
    def key(self) -> dict[str, Any]:
        """The settings that a run goes on with."""
        settings = asdict(self._settings)
        del settings["minutes"], settings["epochs"]  # a run may be made longer
        return {"kind": self._recipe.kind, "options": asdict(self._recipe.options), **settings}

    def run(
        self,
        training: Sequences,
        held_out: Sequences,
        progress: Callable[[Progress], object] = lambda _: None,
    ) -> Acceptance | None:
        """Train to the end, and return the best head's acceptance; None if nothing was evaluated.
        An interrupt leaves a checkpoint."""
        settings, began, spent = self._settings, time.monotonic(), self._seconds
        last_written, best = began, None
        order = self._order(training)
        total = settings.epochs * len(order)
        try:
            while self._step < total and not self._is_over():
                epoch, at = divmod(self._step, len(order))
                if at == 0 and epoch:
                    order = self._order(training)
                self._update([training[i] for i in order[at]], self._share(total))
                self._seconds = spent + time.monotonic() - began
                share = self._share(total)
                left = self._seconds * (1.0 - share) / max(share, 1e-6)
                progress(Progress(share, self._step, self._loss, self._best, left))
                if share * settings.evaluations >= self._evaluated + 1 or share >= 1.0:
                    best = self._evaluate(held_out) or best
                if time.monotonic() - last_written > CHECKPOINT_SECONDS:
                    self._write_checkpoint()
                    last_written = time.monotonic()
        finally:
            with suppress(OSError):  # the error that ended the run is the one to see
                self._write_checkpoint()
        return best

    def _is_over(self) -> bool:
        minutes = self._settings.minutes
        return self._worse >= self._settings.patience or bool(minutes and self._seconds >= 60 * minutes)

    def _share(self, total: int) -> float:
        minutes = self._settings.minutes
        return min(1.0, max(self._step / total, self._seconds / (60 * minutes) if minutes else 0.0))

    def _order(self, training: Sequences) -> list[list[int]]:
        """Return the batches of an epoch, as sequence numbers. The seed and the epoch decide."""
        rng = np.random.default_rng([self._settings.seed, self._step])
        order = rng.permutation(len(training)).tolist()
        lengths = [min(n, self._settings.longest) for n in training.lengths]
        return batches_of(lengths, order, self._settings.batch_tokens)

    def _update(self, sequences: Sequence[TrainingSequence], share: float) -> None:
        batch = make_batch(sequences, self._recipe.vocabulary, self._device, self._settings.longest)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * rate_at(share)
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
        found = self._recipe.acceptance(
            weights,
            embedding,
            (held_out[i] for i in range(min(len(held_out), self._settings.held_out))),
            self._settings.n_draft,
        )
        self._evaluated += 1
        if found.length <= self._best:
            self._worse += 1
            return None
        self._best, self._worse = found.length, 0
        self._save(weights, found)
        return found

    def _write_checkpoint(self) -> None:
        state = {
            "key": self.key,
            "weights": {name: value.detach().cpu() for name, value in self.weights.items()},
            "optimizer": self._optimizer.state_dict(),
            "numbers": [self._step, self._seconds, self._loss, self._best, self._worse, self._evaluated],
        }
        with atomic_write(self._folder / CHECKPOINT) as part:
            torch.save(state, part)

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
            for name, value in self.weights.items():
                value.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._step, self._seconds, self._loss, self._best, self._worse, self._evaluated = state["numbers"]


def rate_at(share: float) -> float:
    """Return the factor of the learning rate: a short rise, then a cosine."""
    if share < WARMUP:
        return max(share / WARMUP, 0.01)
    decayed = 0.5 * (1.0 + math.cos(math.pi * (share - WARMUP) / (1.0 - WARMUP)))
    return FINAL_RATE + (1.0 - FINAL_RATE) * decayed
