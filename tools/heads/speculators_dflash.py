"""DFlash and DSpark heads as `speculators` computes them.

Its classes have only the forward of training, which drafts a block after each of several anchors in one text.
A block sees what a server's does: the features of the positions before its anchor, and itself.
"""

from typing import Any

import torch
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.dspark import core as dspark_core

from tools.heads import cases
from tools.heads.speculators_config import layer_config, saved, speculators_config

AUX_LAYERS = [2, 3, 6]
"""Inputs of the target's layers; the last is the final hidden state of six layers."""
MASK_TOKEN = 95


def dflash(seed: int, layer: dict[str, Any], options: dict[str, Any]) -> cases.Reference:
    """Compute a DFlash head's values."""
    settings = {"block_size": 8} | options
    settings["speculators_config"] = speculators_config("dflash", settings["block_size"] - 1)
    model = DFlashDraftModel(DFlashSpeculatorConfig(**(base_settings(layer) | settings)))
    return block_reference("dflash", model, seed)


def dspark(seed: int, layer: dict[str, Any], options: dict[str, Any]) -> cases.Reference:
    """Compute a DSpark head's values."""
    settings = {"block_size": 8, "markov_rank": 8} | options
    settings["speculators_config"] = speculators_config("dspark", settings["block_size"])
    model = DSparkDraftModel(DSparkSpeculatorConfig(**(base_settings(layer) | settings)))
    return block_reference("dspark", model, seed)


def base_settings(layer: dict[str, Any]) -> dict[str, Any]:
    """Return what the configurations of both kinds have in common."""
    layers: dict[str, Any] = {"architecture": "qwen3", "num_hidden_layers": 2} | layer
    return {
        "transformer_layer_config": layer_config(**layers),
        "draft_vocab_size": cases.DRAFT_VOCABULARY,
        "aux_hidden_state_layer_ids": AUX_LAYERS,
        "mask_token_id": MASK_TOKEN,
    }


def block_reference(kind: str, model: Any, seed: int) -> cases.Reference:
    """Fill a head, and compute its blocks with the text's own tokens and with the head's choices."""
    model.eval()
    cases.fill(model, seed)
    if model.use_draft_vocab:
        d2t, t2d = cases.draft_vocabulary(seed)
        model.load_vocab_mappings(t2d, d2t)
    tokens = cases.random_tokens(seed, cases.POSITIONS)
    features = cases.random_features(seed, len(AUX_LAYERS) * cases.HIDDEN)
    anchors = list(range(7, cases.POSITIONS - model.block_size, model.block_size))
    config, weights = saved(model)
    return cases.Reference(
        about={
            "kind": kind,
            "layout": "speculators",
            "reference": f"speculators 0.9.0, {type(model).__name__}",
            "first_slot": 0 if model.config.sample_from_anchor else 1,
        },
        config=config,
        weights=weights,
        target=borrowed(model, weights),
        values={
            "tokens": tokens.numpy(),
            "features": features.numpy(),
            "anchors": torch.tensor(anchors).numpy(),
        }
        | {name: value.numpy() for name, value in blocks(model, tokens, features, anchors).items()}
        | drafts(model, tokens, features, anchors),
    )


def borrowed(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Return the target's weights that the head's own file lacks."""
    of_target = {"embed_tokens.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
    state = cases.arrays(model.state_dict())
    return {target: state[name] for name, target in of_target.items() if name not in weights}


def blocks(
    model: Any, tokens: torch.Tensor, features: torch.Tensor, anchors: list[int]
) -> dict[str, torch.Tensor]:
    """Return each block's final hidden states and logits, and a DSpark head's confidences."""
    anchored = torch.zeros(1, len(tokens), dtype=torch.bool)
    anchored[0, anchors] = True
    inputs = {
        "hidden_states": features[None],
        "input_ids": tokens[None],
        "loss_mask": anchored,
        "verifier_last_hidden_states": torch.zeros(1, len(tokens), cases.HIDDEN),
        "document_ids": torch.zeros(1, len(tokens), dtype=torch.long),
        "max_anchors": len(anchors),
    }
    with torch.no_grad():
        if isinstance(model, DSparkDraftModel):
            computed = dspark_outputs(model, inputs)
        else:
            hidden, logits, *_ = model._backbone_forward(**inputs)
            computed = {"hidden": hidden, "logits": logits}
    shape = (len(anchors), model.block_size)
    return {name: value.reshape(*shape, *value.shape[2:]) for name, value in computed.items()}


def dspark_outputs(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Run the forward of training, and keep what it gives to its loss."""
    computed: dict[str, torch.Tensor] = {}

    def keep(*values: Any, **_: Any) -> Any:
        logits, _targets, confidence, *_rest = values
        computed["logits"] = logits
        if confidence is not None:
            computed["confidence"] = confidence
        return None, None

    hook = model.norm.register_forward_hook(lambda *call: computed.update(hidden=call[2]))
    loss, dspark_core.compute_metrics = dspark_core.compute_metrics, keep
    try:
        model(**inputs)
    finally:
        dspark_core.compute_metrics = loss
        hook.remove()
    return computed


def drafts(model: Any, tokens: torch.Tensor, features: torch.Tensor, anchors: list[int]) -> dict[str, Any]:
    """Draft greedily after every anchor: a slot's bias comes from the token chosen before it."""
    first = 0 if model.config.sample_from_anchor else 1
    drafted: dict[str, list[torch.Tensor]] = {}
    for anchor in anchors:
        text = tokens.clone()
        for slot in range(first, model.block_size):
            computed = blocks(model, text, features, [anchor])
            choice = computed["logits"][0, slot].argmax()
            if model.use_draft_vocab:
                choice = choice + model.d2t[choice]
            text[anchor + slot + 1 - first] = choice
        end = anchor + 1 + model.block_size - first
        rows = {"tokens": text[anchor + 1 : end], "logits": computed["logits"][0, first:]}
        if "confidence" in computed:
            rows["confidence"] = computed["confidence"][0, first:]
        for name, row in rows.items():
            drafted.setdefault(f"draft_{name}", []).append(row)
    return {name: cases.array(rows) for name, rows in drafted.items()}
