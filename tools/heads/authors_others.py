"""Medusa heads and Kangaroo's adapter, as their authors' repositories compute them."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tools.heads import cases
from tools.heads.authors_eagle import LAYER, Config

EARLY_EXIT = 2
"""The target's layers that Kangaroo's draft runs before its adapter."""


def medusa(module: ModuleType, seed: int, heads: int, blocks: int = 1) -> cases.Reference:
    """Compute the logits of Medusa heads, for a base model that returns given hidden states.

    The residual blocks of a head are one module, listed several times.
    """
    features = cases.random_features(seed, cases.HIDDEN)
    target_head = torch.nn.Linear(cases.HIDDEN, cases.VOCABULARY, bias=False)
    base = torch.nn.Module()
    base.config, base.dtype, base.device = SimpleNamespace(), torch.float32, torch.device("cpu")
    base.lm_head = target_head
    base.model = lambda **_: (features[None],)
    vars(module)["AutoTokenizer"] = SimpleNamespace(from_pretrained=lambda _: None)
    model = module.MedusaModel(base, medusa_num_heads=heads, medusa_num_layers=blocks)
    cases.fill(model.medusa_head, seed)
    with torch.no_grad():
        logits = model(input_ids=None)
    return cases.Reference(
        about={
            "kind": "medusa",
            "layout": "medusa",
            "reference": "medusa-llm 0.1 medusa/model/medusa_model.py, MedusaModel",
        },
        config={
            "base_model_name_or_path": "example/target",
            "medusa_num_heads": heads,
            "medusa_num_layers": blocks,
            "transformers_version": "4.34.1",
        },
        weights=cases.arrays(model.medusa_head.state_dict()),
        values={"features": features.numpy(), "logits": logits[:, 0].numpy()},
    )


def kangaroo(module: ModuleType, seed: int) -> cases.Reference:
    """Compute what the adapter makes of the target's early hidden states, at once and step by step."""
    config = {"architectures": ["LlamaForCausalLM"]} | LAYER
    model = module.AdapterModel(Config(config)).eval()
    head = torch.nn.Linear(cases.HIDDEN, cases.VOCABULARY, bias=False)
    cases.fill(model, seed)
    cases.fill(head, seed + 1)
    features = cases.random_features(seed, cases.HIDDEN)
    with torch.no_grad():
        hidden = model.forward_early_stop(inputs_embeds=features[None])[0]
        drafted = kangaroo_steps(model, features)
        logits, draft_logits = head(hidden), head(drafted)
    return cases.Reference(
        about={
            "kind": "kangaroo",
            "layout": "kangaroo",
            "reference": "Equationliu/Kangaroo kangaroo/adapter.py, AdapterModel",
            "early_exit_layer": EARLY_EXIT,
        },
        config=config,
        weights=cases.arrays(model.state_dict()),
        target={"lm_head.weight": head.weight.detach().numpy()},
        values={
            "features": features.numpy(),
            "hidden": hidden.numpy(),
            "logits": logits.numpy(),
            "draft_hidden": drafted.numpy(),
            "draft_logits": draft_logits.numpy(),
        },
    )


def kangaroo_steps(model: Any, features: torch.Tensor) -> torch.Tensor:
    """Read all but the last positions at once, then those one by one on the cache."""
    context = len(features) - cases.DRAFT_STEPS
    _, cache = model.forward_early_stop(inputs_embeds=features[None, :context], use_cache=True)
    rows = []
    for position in range(context, len(features)):
        hidden, cache = model.forward_early_stop(
            inputs_embeds=features[None, position : position + 1],
            position_ids=torch.tensor([[position]]),
            past_key_values=cache,
            use_cache=True,
        )
        rows.append(hidden[0, 0])
    return torch.stack(rows)


def without_base_models(names: list[str]) -> None:
    """Put empty modules in the place of the authors' base models, which need an older transformers."""
    for name in names:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name])["LlamaForCausalLM"] = None
