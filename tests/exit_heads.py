"""Heads on the first layers of the toy, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.backends.toy import ToyTarget
from paceline.drafters.exits import ExitsDrafter
from paceline.drafters.head import HeadDrafter
from paceline.drafters.model import ModelDrafter
from paceline.heads.config import ExitFacts, HeadConfig, TargetFacts
from paceline.heads.decoder import LayerShape
from paceline.heads.exit_target import ExitTarget
from paceline.heads.files import HeadFiles

WIDTH, RANK = 8, 4


def exit_config(kind: str, target: ToyTarget, layers: tuple[int, ...], **more: Any) -> HeadConfig:
    facts = TargetFacts(layers=target.layers, hidden=WIDTH, vocab=target.vocab.size)
    shape = LayerShape(WIDTH, 2, 1, 4, 16)
    return HeadConfig(kind, facts, shape, target.vocab.size, layer_ids=layers, **more)


def exit_weights(config: HeadConfig, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32) / np.float32(shape[-1] ** 0.5)

    out = {"lm_head.weight": 3 * normal(config.draft_vocab, WIDTH)}
    if config.kind == "kangaroo":
        return out | {
            "layers.0.input_layernorm.weight": np.ones(WIDTH, np.float32),
            "layers.0.self_attn.q_proj.weight": 3 * normal(8, WIDTH),
            "layers.0.self_attn.k_proj.weight": normal(4, WIDTH),
            "layers.0.self_attn.v_proj.weight": normal(4, WIDTH),
            "layers.0.self_attn.o_proj.weight": normal(WIDTH, 8),
            "norm.weight": np.ones(WIDTH, np.float32),
        }
    for place in range(len(config.layer_ids)):
        out |= {
            f"exits.{place}.input_norm.weight": np.ones(WIDTH, np.float32),
            f"exits.{place}.down.weight": normal(RANK, WIDTH),
            f"exits.{place}.up.weight": normal(WIDTH, RANK),
            f"exits.{place}.norm.weight": np.ones(WIDTH, np.float32),
        }
    return out


def exit_target(kind: str, target: ToyTarget, layers: tuple[int, ...] = (1,), **more: Any) -> ExitTarget:
    config = exit_config(kind, target, layers, **more)
    return ExitTarget(HeadFiles(Path(kind), config, exit_weights(config), None, {}), target)


def exit_drafter(kind: str, target: ToyTarget, temperature: float = 0.0) -> ModelDrafter:
    if kind == "kangaroo":
        return HeadDrafter(exit_target(kind, target), temperature=temperature)
    two = (ExitFacts(1.5), ExitFacts(0.7))
    head = exit_target(kind, target, (1, 2), exits=two, default_exit=1)
    return ExitsDrafter(head, target.vocab.size, temperature=temperature)
