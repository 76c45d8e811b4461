"""What a file of reference values holds, and the sizes and random weights that all of them share."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 32, 4, 2, 8, 64
VOCABULARY, DRAFT_VOCABULARY = 96, 48
TARGET_LAYERS = 6
POSITIONS = 24
DRAFT_STEPS = 3
"""Draft steps on the head's own hidden states, after the step on the target's."""


@dataclass
class Reference:
    """The weights of a head, its inputs, and what its authors' class computes from them."""

    about: dict[str, Any]
    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    target: dict[str, np.ndarray] = field(default_factory=dict)
    """Weights that the head takes from its target, under the target's names."""

    def save(self, path: Path) -> None:
        """Write an `.npz` file: `w:` before the head's weights, `t:` before the target's."""
        arrays: dict[str, Any] = {
            "about": np.array(json.dumps(self.about)),
            "config": np.array(json.dumps(self.config, indent=2)),
        }
        arrays |= {f"w:{name}": weight for name, weight in self.weights.items()}
        arrays |= {f"t:{name}": weight for name, weight in self.target.items()}
        arrays |= self.values
        np.savez_compressed(path, **arrays)


def random_weight(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a weight that bfloat16 and float16 hold exactly."""
    if name.endswith("bias"):
        return grid(random.normal(0, 0.2, shape))
    if len(shape) == 1:
        return grid(random.normal(1, 0.2, shape), 1 / 64)
    return grid(random.normal(0, 1 / np.sqrt(shape[-1]), shape))


def grid(values: np.ndarray, step: float = 1 / 256) -> np.ndarray:
    """Round to multiples of a step, within the 8 bits that bfloat16 has."""
    return (np.clip(np.round(values / step), -127, 127) * step).astype(np.float32)


def fill(module: torch.nn.Module, seed: int) -> None:
    """Give every parameter a random value, in the order of their names."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            parameter.copy_(torch.from_numpy(random_weight(random, name, tuple(parameter.shape))))


def draft_vocabulary(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `d2t` (the offset from a draft token to its target token) and `t2d` (a mask)."""
    random = np.random.default_rng(seed)
    chosen = np.sort(random.choice(VOCABULARY, DRAFT_VOCABULARY, replace=False))
    t2d = np.zeros(VOCABULARY, dtype=bool)
    t2d[chosen] = True
    return torch.from_numpy(chosen - np.arange(DRAFT_VOCABULARY)), torch.from_numpy(t2d)


def random_tokens(seed: int, count: int) -> torch.Tensor:
    """Draw a text of the target's tokens."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, count))


def random_features(seed: int, width: int, count: int = POSITIONS) -> torch.Tensor:
    """Draw what stands for the target's hidden states, one row a position."""
    return torch.from_numpy(grid(np.random.default_rng(seed).normal(0, 0.2, (count, width))) * 4)


def arrays(state: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Convert a state dictionary to arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in sorted(state.items())}


def array(rows: list[torch.Tensor]) -> np.ndarray:
    """Stack tensors, a row each."""
    stacked: np.ndarray = torch.stack(rows).detach().cpu().numpy()
    return stacked
