"""Paceline inside of transformers' own generate()."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from hf_models import DEVICE, model_of, tokenizer_of
from paceline import hf_generate
from paceline.integrations.transformers_generate import MODEL_ATTRIBUTE
from paceline.speculative.errors import UsageError

PROMPT = [5, 9, 14, 5, 9, 14, 20, 33, 5, 9, 14, 20]
USUAL: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 1}


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of("llama").to(DEVICE)


def ids(*prompts: list[int]) -> Any:
    return torch.tensor(prompts, device=DEVICE)


@pytest.mark.parametrize("drafters", [("auto",), ("lookup",), ("none",)])
@pytest.mark.parametrize(
    "settings",
    [
        {"eos_token_id": None}, {}, {"repetition_penalty": 1.3, "eos_token_id": None},
        {"no_repeat_ngram_size": 2, "eos_token_id": None}, {"min_new_tokens": 30, "suppress_tokens": [7, 8]},
        {"eos_token_id": [1, 20]},
    ],
)  # fmt: skip
def test_greedy_text_is_that_of_generate(model: Any, drafters: Any, settings: dict[str, Any]) -> None:
    given = USUAL | settings
    expected = model.generate(ids(PROMPT), **given)
    drafted = model.generate(ids(PROMPT), custom_generate=hf_generate, drafters=drafters, **given)
    assert drafted.tolist() == expected.tolist()
    assert drafted.dtype == expected.dtype


def test_a_draft_model_drafts(model: Any) -> None:
    given = USUAL | {"eos_token_id": None}
    expected = model.generate(ids(PROMPT), **given)
    passes = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    given |= {"drafters": ("model",), "draft_model": model_of("llama").to(DEVICE), "drafting": {"p_min": 0.0}}
    drafted = model.generate(ids(PROMPT), custom_generate=hf_generate, **given)
    handle.remove()
    assert drafted.tolist() == expected.tolist()
    assert len(passes) < 10  # it is the model itself, and always right


def test_several_prompts_of_different_lengths(model: Any) -> None:
    short, long = [5, 9, 14], PROMPT
    mask = ids([0] * 9 + [1] * 3, [1] * 12)
    given = USUAL | {"eos_token_id": None}
    both = model.generate(
        ids([1] * 9 + short, long), attention_mask=mask, custom_generate=hf_generate, **given
    )
    for row, prompt in zip(both, (short, long), strict=True):
        alone = model.generate(ids(prompt), **given)
        assert row[12:].tolist() == alone[0, len(prompt) :].tolist()


def test_what_ends_sooner_is_filled_up(model: Any) -> None:
    plain = [model.generate(ids(prompt), **USUAL)[0, 3:].tolist() for prompt in ([5, 9, 14], [20, 33, 5])]
    both = model.generate(ids([5, 9, 14], [20, 33, 5]), custom_generate=hf_generate, **USUAL)
    longest = max(map(len, plain))
    assert both[:, 3:].tolist() == [text + [1] * (longest - len(text)) for text in plain]


def test_sampling_follows_torchs_seed_and_the_filters(model: Any) -> None:
    given = USUAL | {"do_sample": True, "temperature": 0.7, "top_k": 3, "eos_token_id": None}

    def drawn(seed: int, **more: Any) -> list[int]:
        torch.manual_seed(seed)
        out: list[int] = model.generate(ids(PROMPT), custom_generate=hf_generate, **given, **more)[0].tolist()
        return out

    assert drawn(1) == drawn(1) == drawn(1, drafters=("none",))
    assert drawn(1) != drawn(2)
    text = drawn(3)
    with torch.inference_mode():
        logits = model(ids(text)).logits[0]
    for at in range(len(PROMPT), len(text)):
        assert text[at] in logits[at - 1].topk(3).indices.tolist()


def test_stop_strings_end_a_text_where_they_end_generates(model: Any) -> None:
    tokenizer, given = tokenizer_of(), USUAL | {"eos_token_id": None}
    text = model.generate(ids(PROMPT), **given)[0, len(PROMPT) :].tolist()
    stops = [tokenizer.decode(text[6:8]), "never said"]
    expected = model.generate(ids(PROMPT), stop_strings=stops, tokenizer=tokenizer, **given)
    drafted = model.generate(
        ids(PROMPT), custom_generate=hf_generate, stop_strings=stops, stop_tokenizer=tokenizer, **given
    )
    assert drafted.tolist() == expected.tolist()
    assert len(PROMPT) < drafted.shape[1] <= len(PROMPT) + 8
    with pytest.raises(UsageError, match="give it as stop_tokenizer"):
        model.generate(
            ids(PROMPT), custom_generate=hf_generate, stop_strings="a", tokenizer=tokenizer, **given
        )


def test_a_streamer_is_told_everything_once(model: Any) -> None:
    tokens = list[Any]()
    streamer = SimpleNamespace(
        put=lambda more: tokens.extend(more.flatten().tolist()), end=lambda: tokens.append("end")
    )
    out = model.generate(ids(PROMPT), custom_generate=hf_generate, stream_to=streamer, **USUAL)
    assert tokens == [*out[0].tolist(), "end"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences=2"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"attention_mask": torch.tensor([[1] * 11 + [0]])}, "padding_side='left'"),
    ],
)
def test_what_only_transformers_does_is_refused(model: Any, settings: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        model.generate(ids(PROMPT), custom_generate=hf_generate, **(USUAL | settings))


def test_what_is_kept_with_a_model_goes_with_it() -> None:
    model, first = model_of("qwen3").to(DEVICE), None
    for _ in range(2):
        model.generate(ids(PROMPT), custom_generate=hf_generate, drafters=("lookup",), **USUAL)
        first = first or model.__dict__[MODEL_ATTRIBUTE]
    assert model.__dict__[MODEL_ATTRIBUTE] is first
    gone = weakref.ref(model)
    del model, first
    gc.collect()
    assert gone() is None
