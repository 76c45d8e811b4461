"""The command that starts vLLM: what is asked for is in it, and what would change the output is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from paceline.integrations.export import Asked, command
from paceline.integrations.export.vllm import METHODS, SECTION, N
from paceline.integrations.vllm.options import Options
from paceline.speculative.errors import UsageError
from vllm_runner import vllm_config

MODEL, DRAFT = "some/target-8B", "some/draft-1B"
Json = dict[str, Any]


def made(model: str = MODEL, **asked: Any) -> tuple[Json, Json]:
    """The speculative configuration and the portfolio's section; the rest of the command is as short as can
    be."""
    words = command("vllm", Asked(model, **asked))
    assert words[:3] == ["vllm", "serve", model]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    speculative = json.loads(flags.pop("--speculative-config", "{}"))
    section = json.loads(flags.pop("--additional-config", '{"paceline": {}}'))
    assert flags == {}
    assert list(section) == ["paceline"]
    return speculative, section["paceline"]


def refused(words: str, model: str = MODEL, **asked: Any) -> None:
    with pytest.raises(UsageError, match=words):
        command("vllm", Asked(model, **asked))


def test_without_a_draft_model_the_portfolio_drafts() -> None:
    portfolio = {"method": "custom_class", "model": "paceline.integrations.vllm.Portfolio", N: 8}
    assert made() == (portfolio, {})
    assert made(n_draft=12) == ({**portfolio, N: 12}, {})
    drafters = ("suffix", "datastore")
    section = {"drafters": ["suffix", "datastore"], "corpora": ["mine"]}
    assert made(drafters=drafters, corpora=("mine",)) == (portfolio, section)


def test_the_portfolio_understands_the_section_that_is_made_for_it() -> None:
    settings = {"p_min": 0.2, "ngram_max": 4}
    _, section = made(
        drafters=("lookup",), corpora=("mine",), settings=settings, own={"rows": 64, "learn": False}
    )
    assert set(section) >= set(SECTION)
    options = Options.of(vllm_config(paceline=section))
    assert options == Options(
        ("lookup",), ("mine",), p_min=0.2, rows=64, learn=False, ngram_min=3, ngram_max=4
    )


def test_a_draft_model_is_of_its_own_kind(tmp_path: Path) -> None:
    assert made(draft=DRAFT)[0] == {"method": "draft_model", "model": DRAFT, N: 4}
    assert made(draft=f"hf:{DRAFT}", drafters=("model",))[0]["model"] == DRAFT
    assert made(draft="some/Qwen3-8B_eagle3", n_draft=5)[0] == {
        "method": "eagle3",
        "model": "some/Qwen3-8B_eagle3",
        N: 5,
    }
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    assert made(draft=str(tmp_path))[0]["method"] == "eagle3"
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": "dflash"}))
    assert made(draft=str(tmp_path), n_draft=7)[0] == {"method": "dflash", "model": str(tmp_path), N: 7}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert made(draft=str(tmp_path))[0]["method"] == "draft_model"
    (tmp_path / "config.json").write_text("[]")
    refused("config.json: is damaged", draft=str(tmp_path))


def test_every_method_can_be_named() -> None:
    for method, needs in METHODS.items():
        asked = {"draft": DRAFT} if needs == "must" else {}
        found = made(method=method, n_draft=3, **asked)[0]
        assert (found["method"], found[N]) == (method, 3)
    assert made(method="mtp") == ({"method": "mtp", N: 1}, {})
    assert made(method="suffix") == ({"method": "suffix"}, {})  # it knows a length of its own


def test_plain_decoding_has_no_speculative_configuration() -> None:
    assert made(drafters=("none",)) == ({}, {})
    refused("nothing is drafted", drafters=("none",), draft=DRAFT)
    refused("nothing is drafted", drafters=("none",), settings={"p_min": 0.3})


def test_tuned_settings_have_the_names_of_the_method() -> None:
    assert made(method="ngram", settings={"ngram_min": 2})[0] == {
        "method": "ngram",
        N: 8,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,  # vLLM would take the one for the other
    }
    assert made(method="suffix", settings={"p_min": 0.3})[0]["suffix_decoding_min_token_prob"] == 0.3
    assert made(draft=DRAFT, settings={"cross_vocab": "tli"})[0]["use_heterogeneous_vocab"] is True
    assert made(draft=DRAFT, settings={"verify": "block"})[0]["rejection_sample_method"] == "block"
    usual = {"width": 1, "temperature": 0, "verify": "token", "policy": "p_min"}
    assert made(draft=DRAFT, settings=usual) == made(draft=DRAFT)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 4}, "no counterpart of width 4 here, where drafts are chains"),
        ({"p_min": 0.4}, "vLLM's draft_model has no counterpart of p_min 0.4"),
        ({"temperature": 0.7}, "no counterpart of temperature 0.7, the draft model's own"),
        ({"policy": "rate"}, "no counterpart of policy rate, where drafts have a fixed length"),
        ({"cross_vocab": "slem"}, "no counterpart of cross_vocab slem"),
        ({"n_draft": 3}, "n_draft stands among the settings"),
        ({"p_mni": 0.4}, "unknown setting p_mni"),
    ],
)
def test_settings_without_a_counterpart_are_refused(settings: Json, words: str) -> None:
    refused(words, draft=DRAFT, drafters=("model",), settings=settings)


@pytest.mark.parametrize(
    "own",
    [
        {"rejection_sample_method": "synthetic"},
        {"rejection_sample_method": "fly"},
        {"synthetic_acceptance_length": 3.0},
        {"fly_window_size": 2},
    ],
)
def test_what_accepts_tokens_that_the_model_would_not_say_is_refused(own: Json) -> None:
    refused("accepts drafted tokens that the model itself would not have said", draft=DRAFT, own=own)


def test_its_own_settings_go_in_as_they_are() -> None:
    own = {"draft_tensor_parallel_size": 1, "draft_sample_method": "probabilistic"}
    assert made(draft=DRAFT, own=own)[0] == {"method": "draft_model", "model": DRAFT, N: 4, **own}
    steps = [[1, 8, 5], [9, 64, 2]]
    by_size = {"num_speculative_tokens_per_batch_size": steps}
    assert made(method="ngram", own=by_size)[0]["num_speculative_tokens_per_batch_size"] == steps


def test_one_setting_under_two_names_is_refused() -> None:
    tli = {"use_heterogeneous_vocab": True}
    refused("set twice", draft=DRAFT, settings={"cross_vocab": "tli"}, own=tli)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"drafters": ("model",)}, "--draft model needs a draft model"),
        ({"drafters": ("suffix", "model"), "draft": DRAFT}, "by one method at a time"),
        ({"drafters": ("lookahead",)}, "shows a drafter no rows of the target"),
        ({"method": "medusa"}, "vLLM has no method 'medusa': choose from custom_class, ngram"),
        ({"method": "eagle3"}, "vLLM's eagle3 needs a draft model"),
        ({"method": "ngram", "draft": DRAFT}, "uses no draft model"),
        ({"method": "dflash", "draft": DRAFT}, "needs the length of its blocks"),
        ({"method": "dspark"}, "needs the length of its blocks"),
        ({"method": "ngram", "drafters": ("suffix",)}, "name one of the two"),
        ({"method": "ngram", "corpora": ("mine",)}, "does not draft from corpora"),
        ({"n_draft": -1}, "n_draft -1: must be from 0"),
        ({"port": 70000}, "port 70000: must be from 0 to 65,535"),
        ({"n_ctx": -1}, "a context of -1 tokens"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(asked: Json, words: str) -> None:
    refused(words, **asked)


def test_models_are_named_as_vllm_knows_them(tmp_path: Path) -> None:
    assert command("vllm", Asked(f"hf:{MODEL}"))[2] == command("vllm", Asked(f"hf.co/{MODEL}"))[2] == MODEL
    assert command("vllm", Asked(str(tmp_path)))[2] == str(tmp_path)
    gguf = write_llama(tmp_path / "blob")  # as Ollama keeps them, without the name's ending
    for name in (str(gguf), f"{MODEL}:Q4_K_M", f"{MODEL}.gguf"):
        refused("reads no GGUF files", name)
    refused("reads no GGUF files", draft=str(gguf))
    refused("other engines do not know this name", "ollama:llama3.2")
    refused("no such file or folder", "./nothing-here")
    refused("no model is named", "")


def test_what_vllm_is_told_beside_drafting_goes_in() -> None:
    asked = Asked(
        MODEL,
        drafters=("none",),
        n_ctx=4096,
        host="0.0.0.0",
        port=9000,
        name="m",
        api_key="k",
        extra=("-tp", "2"),
    )
    served = ["--max-model-len", "4096", "--host", "0.0.0.0", "--port", "9000"]
    named = ["--served-model-name", "m", "--api-key", "k"]
    assert command("vllm", asked) == ["vllm", "serve", MODEL, *served, *named, "-tp", "2"]


@pytest.mark.parametrize(
    "flag",
    [
        "--speculative-config={}",
        "--speculative_config",
        "--speculative-config.method",
        "-sc.method",
        "--spec-method",
        "--additional-config",
        "--port",
    ],
)
def test_arguments_that_are_made_here_are_not_passed_on(flag: str) -> None:
    refused("is made by Paceline", extra=(flag, "x"))


def test_another_engine_is_unknown() -> None:
    with pytest.raises(UsageError, match="unknown engine 'tgi': choose from vllm, sglang"):
        command("tgi", Asked(MODEL))
