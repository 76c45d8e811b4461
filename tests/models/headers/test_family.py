from __future__ import annotations

import pytest

from paceline.models.headers.facts import family_of


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-coder"),
        ("qwen2.5-coder-7b-instruct-q4_k_m-00001-of-00002.gguf", "qwen2.5-coder"),
        ("Qwen3-30B-A3B-Instruct-2507", "qwen3"),
        ("Qwen3-Coder-480B-A35B-Instruct-UD-Q4_K_XL", "qwen3-coder"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1"), ("Llama-2-7b-chat-hf", "llama-2"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3"),
        ("DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1-qwen3"),
        ("DeepSeek-Coder-V2-Lite-Instruct", "deepseek-coder-v2"), ("Mistral-7B-Instruct-v0.3", "mistral"),
        ("Mixtral-8x7B-Instruct-v0.1", "mixtral"), ("gemma-3n-E2B-it", "gemma-3n"),
        ("Phi-3.5-mini-instruct", "phi-3.5"), ("OLMo-2-1124-7B", "olmo-2"),
        ("stablelm-2-1_6b", "stablelm-2"), ("LFM2-1.2B.i1-IQ3_XXS.gguf", "lfm2"),
    ],
)  # fmt: skip
def test_families_of_real_names(name: str, family: str) -> None:
    assert family_of([name]) == family
    assert family_of([family]) == family


COMMIT = "47b6801b24d15ff9bcd8c96dfaea0be9ed3a0301"


@pytest.mark.parametrize("nothing", ["", "models", "D:\\models\\", "/mnt/models", COMMIT, ".", "7B", "2024"])
def test_name_without_a_family_is_passed_over(nothing: str) -> None:
    assert family_of([nothing]) == ""
    assert family_of([nothing, "Qwen3-4B"]) == "qwen3"
