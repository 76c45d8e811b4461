"""Training of a draft on a model's answers, in small: the embedded target replaces the real one."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")

import torch

from paceline.loading import load
from paceline.models import zoo
from tools.embedded.restore import tokenizer_of
from tools.smollm2 import answers, draft
from tools.smollm2.prompts import Conversation, Written, conversations

ASKED = [
    Conversation(None, ("def add(a, b):",), 0.0),
    Conversation("Answer.", (None, "Continue."), 1.0),
    Conversation(None, ("x = 1\n" * 500, "never asked"), 0.0),  # longer than what is read
    Conversation(None, ("import os",), 0.7),
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)  # two that wait for each other lose
    out = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        small = {"ROOM": 256, "LONGEST": 12, "LONGEST_QUESTION": 8, "LONGEST_PROMPT": 200, "LOOK": 4}
        for name, value in small.items():
            patch.setattr(answers, name, value)
        patch.setattr(answers, "conversations", lambda seed, written: iter(ASKED * 20))
        for number in range(2):
            made = answers.gather(zoo.target_path(), number, 4, torch.device("cpu"))
            parts: list[dict[str, answers.Array]] = []
            while sum(len(part["lengths"]) for part in parts) < 9:
                parts.append(next(made))
            answers.write(out / f"shard-0-{number:04d}.npz", parts)
    return out


def test_a_draft_learns_from_them_goes_on_and_is_a_model_that_loads(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        draft, "SHAPE", replace(draft.SHAPE, width=64, blocks=2, heads=2, feed_forward=64, vocab=8192)
    )
    monkeypatch.setattr(draft, "TOKENS", {"cpu": 256})
    monkeypatch.setattr(draft, "HELD_OUT", 6)
    told, target, run = draft.Answers(shards, torch.device("cpu")), zoo.target_path(), tmp_path
    assert len(told.held) >= 3
    before = draft.evaluate(draft.train(told, target, run / "none", 0.0, 0), told)
    model = draft.train(told, target, run, 0.05, 0)
    assert draft.evaluate(model, told) > before  # "held out: 0.123 of first guesses right"
    again = draft.train(told, target, run, 0.0, 0)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    out = tmp_path / "draft.gguf"
    draft.export(model, target, out, "Q4_0")
    with load(zoo.target_path(), draft=out, drafters="model") as llm:
        answer = llm.generate("import os\n", max_tokens=24, ignore_eos=True)
        assert answer.stats.by_source["model"].tried > 0


def test_prompts_are_read_as_llama_cpp_reads_them() -> None:
    import llama_cpp

    path = zoo.path("smollm2-draft")
    tokenizer = tokenizer_of(path)
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for turn in (
        "a  b\t12345 \u00fcn\u00efc\u00f6d\u00e9 \u6f22\u5b57 \U0001f642 'll don't\n\n\n  x 1.5e10",
        *islice((t for c in conversations(0, Written()) for t in c.turns if t is not None), 100),
    ):
        text = f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
