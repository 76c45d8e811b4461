"""SmolLM2 and its draft, where they are installed: inflated, run, and of one vocabulary."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from command_line import command
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.header import read_model_facts
from real_model import smollm2
from tools.inflate import inflate, write_widened
from tools.layout import read_layout

Capture = pytest.CaptureFixture[str]
WEEK = "Name the seven days of the week."
QUESTION = f"<|im_start|>user\n{WEEK}<|im_end|>\n<|im_start|>assistant\n".encode()


def greedy(path: Path, count: int) -> list[int]:
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, n_threads_batch=1, verbose=False)
    prompt = model.tokenize(QUESTION, add_bos=False, special=True)
    stream: Any = model.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0)
    return list(islice(stream, count))


def test_its_weights_compute_the_same_in_a_wider_model(tmp_path: Path) -> None:
    """Compare with an F32 copy of the same weights, because the file's own type also rounds activations. Only
    the first blocks are compared, to save time."""
    pytest.importorskip("llama_cpp")
    file = GGUFFile(smollm2())
    source = read_layout(file)
    assert (source.width, source.blocks, source.heads, source.kv_heads) == (576, 30, 9, 3)
    assert source.parameters == 134_515_008
    same = replace(source, blocks=4)
    wider = replace(same, width=768, heads=12, kv_heads=4, feed_forward=2048)
    write_widened(file, source, same, tmp_path / "same.gguf", "F32")
    write_widened(file, source, wider, tmp_path / "wider.gguf", "F32")
    assert greedy(tmp_path / "same.gguf", 12) == greedy(tmp_path / "wider.gguf", 12)


def test_inflated_it_gives_its_answer(capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    out = tmp_path / "larger.gguf"
    inflate(smollm2(), out, 192_000_000, "BF16")
    made, old = read_model_facts(out), read_model_facts(smollm2())
    assert (made.chat_template, made.n_ctx, made.tokenizer) == (old.chat_template, old.n_ctx, old.tokenizer)
    done = command(capsys, "run", "-m", out, "-t", "1", "-n", "16", "--chat", WEEK)
    assert "1. Monday\n2. Tuesday" in done.out


def test_its_draft_has_its_vocabulary_and_is_small() -> None:
    path = zoo.path("smollm2-draft")
    draft, target = read_model_facts(path), read_model_facts(smollm2())
    assert path.stat().st_size <= 12_000_000
    assert draft.arch == "llama"
    assert draft.tokenizer == target.tokenizer
