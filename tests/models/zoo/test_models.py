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
    code = "import sys, paceline.models.zoo; print(*{'torch', 'llama_cpp', 'gguf', 'numpy'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"\n"


def test_both_have_one_vocabulary_and_one_tokenizer() -> None:
    target, draft = read(zoo.target_path()), read(zoo.draft_path())
    names = [key for key in target if key.startswith("tokenizer.")]
    assert {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id"} <= set(names)
    assert {key: target[key] for key in names} == {key: draft[key] for key in names}
    assert len(target["tokenizer.ggml.tokens"]) == 8192


def test_tokens_of_a_held_out_module_give_its_text_back() -> None:
    model, text = load(zoo.target_path()), Path(textwrap.__file__).read_bytes()
    assert model.detokenize(model.tokenize(text, add_bos=False)) == text


def test_prompt_gets_no_bos_token() -> None:
    target, draft = load(zoo.target_path()), load(zoo.draft_path())
    assert target.tokenize(b"import os") == draft.tokenize(b"import os", add_bos=False)
