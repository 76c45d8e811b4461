"""From a model's answers to a draft of its own, in small: the embedded target takes the real one's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

import torch

from paceline import zoo
from paceline.assemble import load
from tools.smollm2 import answers, draft
from tools.smollm2.prompts import Conversation

ASKED = [
    Conversation(None, ("def add(a, b):",), 0.0),
    Conversation("Answer.", (None, "Continue."), 1.0),
    Conversation(None, ("x" * 3000, "never asked"), 0.0),  # longer than what is read
    Conversation(None, ("import os",), 0.7),
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        small = {"SLOTS": 2, "ROOM": 512, "LONGEST": 12, "LONGEST_QUESTION": 8, "LONGEST_PROMPT": 200}
        for name, value in small.items():
            patch.setattr(answers, name, value)
        patch.setattr(answers, "conversations", lambda seed: iter(ASKED * 20))
        teacher = answers.Teacher(answers.unpacked(zoo.target_path(), out))
        for number in range(2):
            talks = answers.talks(teacher, number)
            answers.write(out / f"shard-0-{number:04d}.npz", [next(talks) for _ in range(9)])
    return out


def test_what_is_kept_is_what_the_model_says(shards: Path) -> None:
    """At each row the likeliest token is the one that plain decoding would have chosen there."""
    shard = np.load(shards / "shard-0-0000.npz")
    tokens, ends, rows = shard["tokens"], shard["ends"], shard["rows"]
    assert ends[-1] == len(tokens)
    assert (np.diff(rows) > 0).all()
    assert shard["ids"].shape == shard["logprobs"].shape == (len(rows), answers.TOP)
    assert (shard["logprobs"][:, 0] >= shard["logprobs"][:, 1]).all()
    with load(zoo.target_path(), drafters="none") as llm:
        begin = 0
        for end in ends[:3]:
            here = rows[(rows >= begin) & (rows < end)]
            for row in here[[0, -1]]:
                said = llm.generate([int(t) for t in tokens[begin : row + 1]], max_tokens=1, ignore_eos=True)
                likely = shard["ids"][np.searchsorted(rows, row)]
                assert said.tokens[0] in likely[:2]  # the file is Q8_0, what answered F32
            begin = int(end)


def test_a_draft_learns_from_them_goes_on_and_is_a_model_that_loads(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        draft, "SHAPE", replace(draft.SHAPE, width=64, blocks=2, heads=2, feed_forward=64, vocab=8192)
    )
    monkeypatch.setattr(draft, "TOKENS", 256)
    monkeypatch.setattr(draft, "WINDOW", 64)
    monkeypatch.setattr(draft, "LONG_WINDOW", 128)
    monkeypatch.setattr(draft, "HELD_OUT", 6)
    torch.set_num_threads(1)
    told, target, run = draft.Answers(shards), shards / "target-F32.gguf", tmp_path
    assert len(told.held) == 3
    before = draft.evaluate(draft.train(told, target, run / "none", 0.0, 0), told)
    model = draft.train(told, target, run, 0.05, 0)
    assert draft.evaluate(model, told) > before  # "held out: 0.123 of first guesses right"
    again = draft.train(told, target, run, 0.0, 0)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    out = tmp_path / "draft.gguf"
    draft.export(model, target, out, "Q8_0")
    with load(zoo.target_path(), draft=out, drafters="model") as llm:
        answer = llm.generate("import os\n", max_tokens=24, ignore_eos=True)
        assert answer.stats.by_source["model"].tried > 0
