"""`paceline run --logprobs`: each token with its text, its log-probability and the likeliest others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from command_line import run

Capture = pytest.CaptureFixture[str]
PROMPT = ("ab ab ab ab", "-n", "12")


def test_json_tells_of_each_token_and_the_likeliest(capsys: Capture, models: Path) -> None:
    record = run(
        capsys, models / "target.gguf", "-md", models / "draft.gguf", *PROMPT, "--json", "--logprobs", "3"
    ).json
    assert [logprob["id"] for logprob in record["logprobs"]] == record["tokens"]
    for one in record["logprobs"]:
        assert list(one) == ["id", "text", "logprob", "top"]
        assert len(one["top"]) == 3
        assert one["top"][0] == {key: one[key] for key in ("id", "text", "logprob")}  # greedy
        likely = [other["logprob"] for other in one["top"]]
        assert likely == sorted(likely, reverse=True)
        assert sum(math.exp(x) for x in likely) < 1.0
    assert record["provenance"]["request"]["logprobs"] == 3


def test_a_control_token_is_told_by_its_name(capsys: Capture, models: Path) -> None:
    record = run(capsys, models / "target.gguf", "ab", "--regex", "A", "--json", "--logprobs", "258").json
    assert [logprob["text"] for logprob in record["logprobs"]] == ["A", "<|end|>"]
    assert len(record["logprobs"][0]["top"]) == 258
