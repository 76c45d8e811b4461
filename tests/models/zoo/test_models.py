"""The shipped files: small, loadable, one vocabulary, and worth drafting for."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paceline.models import zoo


@cache
def read(path: Path) -> dict[str, Any]:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}


def load(path: Any) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp")
    return llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)


def test_importing_the_zoo_imports_no_model_library() -> None:
    code = (
        "import sys, paceline.models.zoo; print({'torch', 'llama_cpp', 'gguf', 'numpy'} & set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    )


def test_shipped_files_are_at_most_24_megabytes_together() -> None:
    assert sum(path.stat().st_size for path in (zoo.target_path(), zoo.draft_path())) <= 24_000_000


def test_models_lists_both_with_their_parameter_counts() -> None:
    target, draft = zoo.models()[:2]
    assert (target.name, draft.name) == ("target", "draft")
    assert 12_000_000 < target.parameters < 13_000_000
    assert 1_000_000 < draft.parameters < 2_000_000
    assert target.size == zoo.target_path().stat().st_size
    assert target.description
    assert draft.description


def test_both_are_llama_with_grouped_query_attention_and_tied_embeddings() -> None:
    gguf = pytest.importorskip("gguf")
    for path in (zoo.target_path(), zoo.draft_path()):
        keys = read(path)
        assert keys["general.architecture"] == "llama"
        assert keys["llama.attention.head_count"] > keys["llama.attention.head_count_kv"]
        assert "output.weight" not in {tensor.name for tensor in gguf.GGUFReader(path).tensors}


def test_both_have_one_vocabulary_and_one_tokenizer() -> None:
    target, draft = read(zoo.target_path()), read(zoo.draft_path())
    names = [key for key in target if key.startswith("tokenizer.")]
    assert {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id"} <= set(names)
    assert {key: target[key] for key in names} == {key: draft[key] for key in names}
    assert len(target["tokenizer.ggml.tokens"]) == 8192


def test_no_token_is_longer_than_llama_cpp_python_can_write() -> None:
    assert max(map(len, read(zoo.target_path())["tokenizer.ggml.tokens"])) <= 32


def test_tokens_of_a_held_out_module_give_its_text_back() -> None:
    model, text = load(zoo.target_path()), Path(textwrap.__file__).read_bytes()
    assert model.detokenize(model.tokenize(text, add_bos=False)) == text


def test_a_prompt_gets_no_start_token_of_its_own() -> None:
    assert load(zoo.target_path()).tokenize(b"import os") == load(zoo.draft_path()).tokenize(
        b"import os", add_bos=False
    )


def test_target_continues_a_held_out_module_with_text_of_its_kind() -> None:
    model, source = load(zoo.target_path()), Path(textwrap.__file__).read_text("utf-8")
    prompt = source[: source.index("    def _split(self, text):")]
    out = model(prompt[-1000:], max_tokens=48, temperature=0.0)["choices"][0]["text"]
    assert len(out.split()) >= 5
    assert out.isprintable() or "\n" in out
