"""The command that starts SGLang: what is asked for is in it, and what would change the output is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from paceline.integrations.export import EngineRequest, command
from paceline.speculative.errors import UsageError

BLOCK = {"verify": "block"}
MODEL, DRAFT, HEAD = "some/target-8B", "some/draft-1B", "some/head_eagle3"


def made(**asked: Any) -> str:
    """The words about drafting."""
    words = command("sglang", EngineRequest(MODEL, **asked))
    assert words[:4] == ["sglang", "serve", "--model-path", MODEL]
    return " ".join(words[4:])


def refused(words: str, model: str = MODEL, **asked: Any) -> None:
    with pytest.raises(UsageError, match=words):
        command("sglang", EngineRequest(model, **asked))


def chain(n: int) -> str:
    return f"--speculative-num-steps {n} --speculative-eagle-topk 1 --speculative-num-draft-tokens {n + 1}"


def test_without_a_draft_model_its_own_ngrams_draft() -> None:
    assert made() == made(drafters=("lookup",)) == "--speculative-algorithm NGRAM"
    assert made(n_draft=7) == "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8"
    assert made(drafters=("none",)) == ""


def test_layers_of_the_model_itself_draft() -> None:
    assert made(drafters=("mtp",), n_draft=2) == f"--speculative-algorithm NEXTN {chain(2)}"


def test_steps_branches_and_tokens_are_set_together() -> None:
    draft = f"--speculative-draft-model-path {DRAFT}"
    assert made(draft=DRAFT) == f"--speculative-algorithm STANDALONE {draft}"
    assert made(draft=DRAFT, n_draft=4) == f"--speculative-algorithm STANDALONE {draft} {chain(4)}"
    tree = "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 7"
    dspark = made(draft="some/dspark-head", n_draft=7)
    assert dspark.endswith("--speculative-dspark-block-size 7")
    head = f"--speculative-algorithm EAGLE3 {draft.replace(DRAFT, HEAD)}"
    assert made(draft=HEAD, n_draft=3, drafting_settings={"width": 2}) == f"{head} {tree}"
    words = made(draft=HEAD, n_draft=3, drafting_settings=BLOCK)
    assert words == f"{head} {chain(3)} --speculative-use-block-verification"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"drafters": ("suffix", "datastore")}, "takes no drafters from outside, and suffix,datastore would"),
        ({"corpora": ("mine",)}, "ngram has no counterpart of corpora"),
        ({"draft": HEAD, "drafting_settings": {"width": 2}}, "sets the width and the longest draft together"),
        ({"draft": DRAFT, "drafting_settings": BLOCK}, "standalone has no counterpart of verify block"),
        ({"draft": DRAFT, "drafting_settings": {"cross_vocab": "tli"}}, "no counterpart of cross_vocab tli"),
        ({"extra_args": ("--speculative-accept-threshold-acc", "0.5")}, "is made by Paceline"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(asked: dict[str, Any], words: str) -> None:
    refused(words, **asked)


def test_gguf_files_are_both_or_none(tmp_path: Path) -> None:
    target, draft = write_llama(tmp_path / "t.gguf"), write_llama(tmp_path / "d.gguf")
    words = command("sglang", EngineRequest(str(target), draft=str(draft)))
    assert (words[3], words[-1]) == (str(target), str(draft))
    refused("both must be GGUF files, or none", str(target), draft=DRAFT)
