from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.models.headers.family import cleaned, family_of


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-coder"),
        ("Qwen2.5 Coder 32B Instruct", "qwen2.5-coder"),
        ("qwen2.5-coder-7b-instruct-q4_k_m-00001-of-00002.gguf", "qwen2.5-coder"),
        ("Qwen2.5-7B-Instruct-1M", "qwen2.5"),
        ("Qwen3-0.6B-Q8_0.gguf", "qwen3"),
        ("Qwen3-30B-A3B-Instruct-2507", "qwen3"),
        ("Qwen3-Coder-480B-A35B-Instruct-UD-Q4_K_XL", "qwen3-coder"),
        ("Llama-3.2-3B", "llama-3.2"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1"),
        ("Llama-2-7b-chat-hf", "llama-2"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3"),
        ("DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen"),
        ("DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1-qwen3"),
        ("deepseek-coder-6.7b-instruct.Q2_K.gguf", "deepseek-coder"),
        ("DeepSeek-Coder-V2-Lite-Instruct", "deepseek-coder-v2"),
        ("Mistral-7B-Instruct-v0.3", "mistral"),
        ("Mistral-Nemo-Instruct-2407", "mistral-nemo"),
        ("Mixtral-8x7B-Instruct-v0.1", "mixtral"),
        ("Mistral-Small-3.1-DRAFT-0.5B", "mistral-small-3.1"),
        ("gemma-2-2b-it", "gemma-2"),
        ("gemma-3-270m-it-qat", "gemma-3"),
        ("gemma-3n-E2B-it", "gemma-3n"),
        ("Phi-3.5-mini-instruct", "phi-3.5"),
        ("Phi-3-mini-4k-instruct", "phi-3"),
        ("SmolLM2-135M-Instruct-bf16", "smollm2"),
        ("TinyLlama-1.1B-Chat-v1.0", "tinyllama"),
        ("gpt-oss-20b-MXFP4", "gpt-oss"),
        ("GLM-4.5-Air", "glm-4.5"),
        ("OLMo-2-1124-7B", "olmo-2"),
        ("stablelm-2-1_6b", "stablelm-2"),
        ("granite-4.0-h-micro", "granite-4.0-h"),
        ("EXAONE-3.5-2.4B-Instruct", "exaone-3.5"),
        ("vicuna-7b-v1.5-imatrix", "vicuna"),
        ("Falcon-H1-0.5B-Instruct", "falcon-h1"),
        ("LFM2-1.2B.i1-IQ3_XXS.gguf", "lfm2"),
    ],
)
def test_families_of_real_names(name: str, family: str) -> None:
    assert family_of([name]) == family
    assert family_of([family]) == family


@pytest.mark.parametrize(
    "nothing",
    [
        "",
        "models",
        "D:\\models\\",
        "/mnt/models",
        "47b6801b24d15ff9bcd8c96dfaea0be9ed3a0301",
        ".",
        "7B",
        "2024",
    ],
)
def test_a_name_that_tells_nothing_is_passed_over(nothing: str) -> None:
    assert family_of([nothing]) == ""
    assert family_of([nothing, "Qwen3-4B"]) == "qwen3"


@given(st.text(max_size=400))
def test_any_name_gives_a_family_that_can_be_shown(name: str) -> None:
    family = family_of([name])
    assert family == cleaned(family)
