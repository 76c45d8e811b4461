"""EAGLE-3 heads as `speculators` computes them.

Its class has only the forward of training. Row `p` of draft step `s` there reads its own hidden state of step
`s - 1` and token `p + 1 + s`, and sees what a server's cache holds: rows up to `p`, and its own draft steps.
"""

from typing import Any

import torch
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

from tools.heads import cases
from tools.heads.speculators_config import layer_config, saved, speculators_config

ROWS = cases.POSITIONS + cases.DRAFT_STEPS + 1
"""Rows of a forward: the context, and as many after it as shifting the tokens consumes."""


def eagle3(seed: int, layer: dict[str, Any], options: dict[str, Any]) -> cases.Reference:
    """Compute an EAGLE-3 head's values."""
    settings = {"draft_vocab_size": cases.DRAFT_VOCABULARY, "norm_before_residual": False} | options
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer_config(**layer),
            eagle_aux_hidden_state_layer_ids=[2, 3, 4],
            speculators_config=speculators_config("eagle3", cases.DRAFT_STEPS + 1),
            **settings,
        )
    )
    cases.fill(model, seed)
    if model.use_draft_vocab:
        d2t, t2d = cases.draft_vocabulary(seed)
        model.load_vocab_mappings(t2d, d2t)
    tokens = cases.random_tokens(seed, cases.POSITIONS + cases.DRAFT_STEPS + 1)
    features = cases.random_features(seed, 3 * cases.HIDDEN)
    hidden, logits = forward(model, tokens, features)
    config, weights = saved(model)
    return cases.Reference(
        about={
            "kind": "eagle3",
            "layout": "speculators",
            "reference": "speculators 0.9.0, Eagle3DraftModel",
            "window_of_draft_steps": "that of the row they start from",
        },
        config=config,
        weights=weights,
        values={
            "tokens": tokens.numpy(),
            "features": features.numpy(),
            "fused": hidden[0].numpy(),
            "hidden": hidden[1:].numpy(),
            "logits": logits.numpy(),
        }
        | chain(model, tokens, features),
    )


def forward(
    model: Eagle3DraftModel, tokens: torch.Tensor, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the hidden states that each step reads, and the logits, both [steps, positions, ...].

    There is one more row of hidden states: those that a step after the last one would read.
    """
    read: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []
    hooks = [
        model.layers[0].register_forward_pre_hook(
            lambda _, args: read.append(args[0][0, : cases.POSITIONS, cases.HIDDEN :])
        ),
        model.lm_head.register_forward_hook(lambda *call: logits.append(call[2][0, : cases.POSITIONS])),
    ]
    padded = torch.zeros(1, ROWS, features.shape[1])
    padded[0, : len(features)] = features
    following = torch.zeros(1, ROWS, dtype=torch.long)
    following[0, : len(tokens) - 1] = tokens[1:]
    with torch.no_grad():
        model(
            hidden_states=padded,
            input_ids=following,
            document_ids=torch.zeros(1, ROWS, dtype=torch.long),
            ttt_steps=cases.DRAFT_STEPS + 2,
        )
    for hook in hooks:
        hook.remove()
    return torch.stack(read), torch.stack(logits[:-1])


def chain(model: Eagle3DraftModel, tokens: torch.Tensor, features: torch.Tensor) -> dict[str, Any]:
    """Draft greedily after the last position: each step reads what the steps before it chose."""
    text = tokens[: cases.POSITIONS + 1]
    hidden, logits = [], []
    for step in range(cases.DRAFT_STEPS + 1):
        all_hidden, all_logits = forward(model, text, features)
        hidden.append(all_hidden[step + 1, -1])
        logits.append(all_logits[step, -1])
        choice = logits[-1].argmax()
        if model.use_draft_vocab:
            choice = choice + model.d2t[choice]
        text = torch.cat([text, choice[None]])
    return {
        "draft_tokens": text[cases.POSITIONS + 1 :].numpy(),
        "draft_hidden": cases.array(hidden),
        "draft_logits": cases.array(logits),
    }
