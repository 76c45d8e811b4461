"""Ways of transformers to decode, and ours, on one model in one process, all through `model.generate`.

    python benchmarks/transformers_modes.py [-m hf:zoo:smollm2] [-md hf:zoo:smollm2-draft] [--items 14]

Each item is answered in every way, one after the other, in an order that turns; what counts is the time of
decoding behind the prompt's pass, over transformers' own plain decoding (greedy, its default cache). All
texts should be the same; how many are is told (near-ties part them). Ways:
  generate         transformers, plain                     plain      ours, plain
  assisted         its assisted generation, as it comes    auto       ours, as it comes, with the draft model
  assisted n=K     drafts of K, never ended early          model n=K  the same of ours
  prompt lookup    its own, 10 tokens                      auto, none without a draft model
  early exit E     its own, after E layers                 view E     ours on the same layers, K tokens
Targets: plain 0.98 of generate; auto 1.3 of assisted; model n=K 1.0 of assisted n=K; auto 0.98 of plain.
A machine with nothing else to do, please.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from math import exp, log
from time import perf_counter
from typing import Any

import numpy as np

import paceline
from paceline.backends.transformers.loading import load_model, load_tokenizer
from paceline.integrations.transformers_generate import MODEL_ATTRIBUTE
from paceline.models.resolve import file_of
from paceline.prepare.suite_prompts import short_items

Way = Callable[[Any], Any]  # of token ids [1, tokens] to what generate returns


class Watch:
    """When the target ended its first pass, which reads the prompt."""

    def __init__(self, model: Any) -> None:
        self.first = 0.0
        self._config = model.get_decoder().config
        self._layers = self._config.num_hidden_layers
        model.register_forward_hook(self._see)

    def _see(self, *_: Any) -> None:
        if self._config.num_hidden_layers == self._layers:  # no early exit, which is the same module
            self.first = self.first or perf_counter()


def ours(model: Any, kept: dict[str, Any], name: str, n: int, **how: Any) -> Way:
    """With experience of its own, whoever else decodes in between."""

    def decode(ids: Any) -> Any:
        model.__dict__.pop(MODEL_ATTRIBUTE, None)
        if name in kept:
            model.__dict__[MODEL_ATTRIBUTE] = kept[name]
        out = model.generate(
            ids,
            attention_mask=ids.new_ones(ids.shape),
            custom_generate=paceline.hf_generate,
            max_new_tokens=n,
            min_new_tokens=n,
            do_sample=False,
            **how,
        )
        kept[name] = model.__dict__[MODEL_ATTRIBUTE]
        return out

    return decode


def theirs(model: Any, n: int, **how: Any) -> Way:
    def decode(ids: Any) -> Any:
        return model.generate(
            ids,
            attention_mask=ids.new_ones(ids.shape),
            max_new_tokens=n,
            min_new_tokens=n,
            do_sample=False,
            pad_token_id=0,
            **how,
        )

    return decode


def fixed(draft: Any, n_draft: int, way: Way) -> Way:
    """Of assisted generation: drafts of one length."""

    def decode(ids: Any) -> Any:
        config = draft.generation_config
        names = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
        before = {name: getattr(config, name) for name in names}
        for name, value in zip(names, (n_draft, "constant", 0.0), strict=True):
            setattr(config, name, value)
        try:
            return way(ids)
        finally:
            for name, value in before.items():
                setattr(config, name, value)

    return decode


def ways(model: Any, draft: Any, arguments: argparse.Namespace) -> dict[str, Way]:
    kept: dict[str, Any] = {}
    n, k, e = arguments.n_predict, arguments.n_draft, arguments.exit
    length = {"policy": "fixed", "n_draft": k, "p_min": 0.0}
    out = {
        "generate": theirs(model, n),
        "plain": ours(model, kept, "plain", n, drafters=("none",)),
        "auto, none": ours(model, kept, "auto, none", n),
        "prompt lookup": theirs(model, n, prompt_lookup_num_tokens=10),
    }
    if draft is not None:
        out["auto"] = ours(model, kept, "auto", n, draft_model=draft)
        out["assisted"] = theirs(model, n, assistant_model=draft)
        out[f"model n={k}"] = ours(
            model, kept, "model", n, draft_model=draft, drafters=("model",), drafting=length
        )
        out[f"assisted n={k}"] = fixed(draft, k, theirs(model, n, assistant_model=draft))
    if e:
        out[f"early exit {e}"] = fixed(model, k, theirs(model, n, assistant_early_exit=e))
        out[f"view {e}"] = ours(
            model,
            kept,
            "view",
            n,
            draft_model=f"view:exit={e}",
            drafters=("model",),
            drafting=length,
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="hf:zoo:smollm2")
    parser.add_argument("-md", "--model-draft", default="hf:zoo:smollm2-draft", help="'': none")
    parser.add_argument("--items", type=int, default=14)
    parser.add_argument("-n", "--n-predict", type=int, default=64)
    parser.add_argument("--n-draft", type=int, default=4)
    parser.add_argument("--exit", type=int, default=0, help="layers of an early exit")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-t", "--threads", type=int)
    arguments = parser.parse_args()
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    how: Mapping[str, str] = {"device": arguments.device, "dtype": arguments.dtype, "attention": "auto"}
    place = file_of(arguments.model)
    model, tokenizer = load_model(place, **how), load_tokenizer(place)
    draft = load_model(file_of(arguments.model_draft), **how) if arguments.model_draft else None
    watch = Watch(model)
    decoders = ways(model, draft, arguments)
    first, *items = short_items("real", arguments.items + 1)
    speeds: dict[str, list[float]] = {name: [] for name in decoders}
    same = dict.fromkeys(decoders, 0)
    for number, item in enumerate([first, *items]):  # the first one warms up, costs are measured there
        messages = [{"role": role, "content": content} for role, content in item.messages]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
        ).to(arguments.device)
        names = list(decoders)
        texts: dict[str, list[int]] = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            watch.first = 0.0
            texts[name] = decoders[name](ids)[0, ids.shape[1] :].tolist()
            took = perf_counter() - watch.first
            if number:
                speeds[name].append((len(texts[name]) - 1) / took)
        if number:
            for name in names:
                same[name] += texts[name] == texts["generate"]
            print(f"{number} of {len(items)}", flush=True)
    rng = np.random.default_rng(0)
    plain = np.log(speeds["generate"])
    print(f"{place.name}: {len(items)} items of {arguments.n_predict} tokens")
    print(f"{'way':14}  over generate          same text")
    for name, some in speeds.items():
        ratios = np.log(some) - plain
        means = rng.choice(ratios, (2000, len(ratios))).mean(1)
        low, high = np.quantile(means, [0.025, 0.975])
        print(
            f"{name:14}  {exp(ratios.mean()):.2f} [{exp(low):.2f}, {exp(high):.2f}]      "
            f"{same[name]}/{len(items)}"
        )
    pairs = [("plain", "generate"), ("auto", "assisted"), ("auto", "plain"), ("auto, none", "plain")]
    pairs += [(f"model n={arguments.n_draft}", f"assisted n={arguments.n_draft}")]
    pairs += [(f"view {arguments.exit}", f"early exit {arguments.exit}")]
    for one, other in pairs:
        if one in speeds and other in speeds:
            ratio = np.mean([log(a / b) for a, b in zip(speeds[one], speeds[other], strict=True)])
            print(f"{one} over {other}: {exp(ratio):.2f}")


if __name__ == "__main__":
    main()
