"""The command that starts vLLM: what is asked for is in it, and what would change the output is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from paceline.integrations.export import EngineRequest, command
from paceline.integrations.vllm.options import Options
from paceline.speculative.errors import UsageError
from vllm_runner import vllm_config

MODEL, DRAFT, N = "some/target-8B", "some/draft-1B", "num_speculative_tokens"
Json = dict[str, Any]


def made(model: str = MODEL, **asked: Any) -> tuple[Json, Json]:
    """The speculative configuration and the portfolio's section; there is nothing else in the command."""
    words = command("vllm", EngineRequest(model, **asked))
    assert words[:3] == ["vllm", "serve", model]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    speculative = json.loads(flags.pop("--speculative-config", "{}"))
    section = json.loads(flags.pop("--additional-config", '{"paceline": {}}'))
    assert flags == {}
    return speculative, section["paceline"]


def refused(words: str, model: str = MODEL, **asked: Any) -> None:
    with pytest.raises(UsageError, match=words):
        command("vllm", EngineRequest(model, **asked))


def test_without_a_draft_model_the_portfolio_drafts() -> None:
    portfolio = {"method": "custom_class", "model": "paceline.integrations.vllm.Portfolio", N: 8}
    assert made() == (portfolio, {})
    assert made(n_draft=12) == ({**portfolio, N: 12}, {})
    block = {**portfolio, "rejection_sample_method": "block"}
    assert made(drafting_settings={"verify": "block", "p_min": 0.2}) == (block, {"p_min": 0.2})
    assert made(drafters=("none",)) == ({}, {})


def test_the_portfolio_understands_the_section_that_is_made_for_it() -> None:
    settings = {"p_min": 0.2, "ngram_max": 4}
    _, section = made(drafters=("lookup", "suffix"), corpora=("mine",), drafting_settings=settings)
    options = Options.of(vllm_config(paceline=section))
    assert options == Options(("lookup", "suffix"), ("mine",), p_min=0.2, ngram_min=3, ngram_max=4)


def test_a_draft_model_is_of_its_own_kind(tmp_path: Path) -> None:
    assert made(draft=DRAFT)[0] == {"method": "draft_model", "model": DRAFT, N: 4}
    assert made(drafters=("mtp",))[0] == {"method": "mtp", N: 2}
    assert made(draft=f"hf:{DRAFT}", drafters=("model",))[0]["model"] == DRAFT
    assert made(draft="some/Qwen3-8B_eagle3", n_draft=5)[0]["method"] == "eagle3"
    for config, kind in (
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"architectures": ["LlamaForCausalLM"]}, "draft_model"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert made(draft=str(tmp_path), n_draft=7)[0]["method"] == kind
    for damage in ("[]", "[" * 100_000):
        (tmp_path / "config.json").write_text(damage)
        refused("config.json: is damaged", draft=str(tmp_path))


def test_settings_are_translated_or_usual() -> None:
    assert made(draft=DRAFT, drafting_settings={"cross_vocab": "tli"})[0]["use_heterogeneous_vocab"] is True
    usual = {"width": 1, "draft_temp": 0, "verify": "token", "policy": "p_min"}
    assert made(draft=DRAFT, drafting_settings=usual) == made(draft=DRAFT)


P_MIN = {"p_min": 0.4}
OURS = ("--speculative-config={}", "--speculative_config {}", "-sc.method fly", "--port 1")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"draft": DRAFT, "drafting_settings": {"width": 4}}, "no counterpart of width 4"),
        ({"draft": DRAFT, "drafting_settings": P_MIN}, "vLLM's draft_model has no counterpart of p_min 0.4"),
        ({"draft": DRAFT, "drafting_settings": {"n_draft": 3}}, "no counterpart of n_draft 3"),
        ({"draft": DRAFT, "drafters": ("none",)}, "nothing is drafted"),
        ({"drafters": ("model",)}, "--draft model needs a draft model"),
        ({"drafters": ("suffix", "model"), "draft": DRAFT}, "by one method at a time"),
        ({"drafters": ("lookahead",)}, "shows a drafter no rows of the target"),
        ({"draft": "some/dflash"}, "needs the length of its blocks"),
        ({"draft": DRAFT, "corpora": ("mine",)}, "draft_model has no counterpart of corpora"),
        *(({"extra_args": tuple(args.split())}, "is made by Paceline") for args in OURS),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(asked: Json, words: str) -> None:
    refused(words, **asked)


def test_models_are_named_as_vllm_knows_them(tmp_path: Path) -> None:
    for name, known in ((f"hf:{MODEL}", MODEL), (f"hf.co/{MODEL}", MODEL), (str(tmp_path), str(tmp_path))):
        assert command("vllm", EngineRequest(name))[2] == known
    gguf = write_llama(tmp_path / "blob")  # as Ollama keeps them, without the name's ending
    for name in (str(gguf), f"{MODEL}:Q4_K_M", f"{MODEL}.gguf"):
        refused("reads no GGUF files", name)
    refused("other engines do not know this model", "ollama:llama3.2")
    refused("other engines do not know this model", "./nothing-here")


def test_what_vllm_is_told_beside_drafting_goes_in() -> None:
    served: Json = {"n_ctx": 4096, "host": "0.0.0.0", "port": 9000, "name": "m", "api_key": "k"}
    request = EngineRequest(MODEL, drafters=("none",), extra_args=("--model-impl", "auto"), **served)
    words = command("vllm", request)
    address = "--max-model-len 4096 --host 0.0.0.0 --port 9000 --served-model-name m --api-key k"
    assert words == ["vllm", "serve", MODEL, *address.split(), "--model-impl", "auto"]
