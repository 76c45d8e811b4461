"""EAGLE heads as SafeAILab's repository computes them, both the first kind and EAGLE-3."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from tools.heads import cases

LAYER = {
    "hidden_act": "silu",
    "hidden_size": cases.HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": cases.INTERMEDIATE,
    "max_position_embeddings": 128,
    "model_type": "llama",
    "num_attention_heads": cases.HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": cases.KV_HEADS,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.46.2",
    "use_cache": True,
    "vocab_size": cases.VOCABULARY,
}
Step = tuple[torch.Tensor, torch.Tensor]
"""A hidden state that is fed back, and logits."""


class Config:
    """A configuration's keys as attributes: what the authors' classes read of it."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.__dict__.update({"pretraining_tp": 1} | keys)


def eagle3(module: ModuleType, seed: int, **settings: Any) -> cases.Reference:
    """Compute the values of an EAGLE-3 head, with an embedding of its own for a target of another width."""
    config = {"architectures": ["LlamaForCausalLMEagle3"]} | LAYER
    config |= {"draft_vocab_size": cases.DRAFT_VOCABULARY, "rope_theta": 500000.0} | settings
    model = module.Model(Config(config), total_tokens=cases.DRAFT_STEPS + 2, depth=cases.DRAFT_STEPS, top_k=1)
    cases.fill(model, seed)
    model.d2t, model.t2d = cases.draft_vocabulary(seed)
    weights = cases.arrays(model.state_dict())
    target = {}
    if "target_hidden_size" not in settings:
        target["model.embed_tokens.weight"] = weights.pop("embed_tokens.weight")
    tokens = cases.random_tokens(seed, cases.POSITIONS + cases.DRAFT_STEPS + 1)
    features = cases.random_features(seed, 3 * settings.get("target_hidden_size", cases.HIDDEN))
    values = eagle_values(model, lambda hidden: model.lm_head(model.norm(hidden)), tokens, features)
    confirm_draft(model, values["draft_tokens"].tolist(), tokens, features)
    return cases.Reference(
        about={
            "kind": "eagle3",
            "layout": "safeailab",
            "reference": "SafeAILab/EAGLE eagle/model/cnets.py, Model",
        },
        config=config,
        weights=weights,
        target=target,
        values=values,
    )


def eagle(module: ModuleType, seed: int, bias: bool) -> cases.Reference:
    """Compute the values of a head of the first EAGLE, which uses the target's output layer."""
    config = {"architectures": ["LlamaForCausalLM"], "bias": bias} | LAYER
    model = module.Model(Config(config), bias=bias).eval()
    head = torch.nn.Linear(cases.HIDDEN, cases.VOCABULARY, bias=False)
    cases.fill(model, seed)
    cases.fill(head, seed + 1)
    tokens = cases.random_tokens(seed, cases.POSITIONS + cases.DRAFT_STEPS + 1)
    features = cases.random_features(seed, cases.HIDDEN)
    return cases.Reference(
        about={
            "kind": "eagle",
            "layout": "safeailab",
            "reference": "eagle-llm 1.2.1 eagle/model/cnets.py, Model",
        },
        config=config,
        weights=cases.arrays(model.state_dict()),
        target={"lm_head.weight": head.weight.detach().numpy()},
        values=eagle_values(model, head, tokens, features),
    )


def eagle_values(
    model: Any, head: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor, features: torch.Tensor
) -> dict[str, Any]:
    """Collect a step on the target's features and the draft steps after it, from every position."""
    with torch.no_grad():
        forced = [
            draft(model, head, tokens[: position + 2 + cases.DRAFT_STEPS], features[: position + 1])
            for position in range(cases.POSITIONS)
        ]
        text = tokens[: cases.POSITIONS + 1]
        for _ in range(cases.DRAFT_STEPS + 1):
            steps = draft(model, head, text, features)
            text = torch.cat([text, target_token(model, steps[-1][1].argmax())[None]])
    return {
        "tokens": tokens.numpy(),
        "features": features.numpy(),
        "hidden": by_step(forced, 0),
        "logits": by_step(forced, 1),
        "draft_tokens": text[cases.POSITIONS + 1 :].numpy(),
        "draft_hidden": cases.array([hidden for hidden, _ in steps]),
        "draft_logits": cases.array([logits for _, logits in steps]),
    }


def draft(
    model: Any, head: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor, features: torch.Tensor
) -> list[Step]:
    """Read the features, each with the token after it, then one step for each token that is left."""
    length = len(features)
    hidden, cache = model(features[None], input_ids=tokens[None, 1 : length + 1], use_cache=True)
    steps = [(hidden[0, -1], head(hidden[0, -1]))]
    for position in range(length, len(tokens) - 1):
        hidden, cache = model(
            hidden[:, -1:],
            input_ids=tokens[None, position + 1 : position + 2],
            past_key_values=cache,
            position_ids=torch.tensor([[position]]),
            use_cache=True,
        )
        steps.append((hidden[0, -1], head(hidden[0, -1])))
    return steps


def by_step(drafts: list[list[Step]], part: int) -> Any:
    """Stack one part of the steps of several drafts: [steps, drafts, ...]."""
    return cases.array([torch.stack([step[part] for step in steps]) for steps in zip(*drafts, strict=True)])


def target_token(model: Any, choice: torch.Tensor) -> torch.Tensor:
    """Return the target's token for a draft token."""
    return choice + model.d2t[choice] if hasattr(model, "d2t") else choice


def confirm_draft(model: Any, drafted: list[int], tokens: torch.Tensor, features: torch.Tensor) -> None:
    """Check the drafted tokens against the authors' own tree search, with one branch a step."""
    model.init_tree()
    model.reset_kv()
    text = tokens[None, : cases.POSITIONS + 1]
    found = model.topK_genrate(features[None], text, None, None)[0][0, 1:].tolist()
    if found != drafted:
        raise SystemExit(f"the tree search drafts {found}, the steps draft {drafted}")
