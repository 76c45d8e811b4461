"""The command that starts SGLang: what is asked for is in it, and what would change the output is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from paceline.integrations.export import Asked, command
from paceline.integrations.export.sglang import METHODS
from paceline.speculative.errors import UsageError

MODEL, DRAFT, HEAD = "some/target-8B", "some/draft-1B", "some/head_eagle3"
STEPS, TOPK, TOKENS = "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"


def made(**asked: Any) -> str:
    """The words about drafting."""
    words = command("sglang", Asked(MODEL, **asked))
    assert words[:4] == ["sglang", "serve", "--model-path", MODEL]
    return " ".join(words[4:])


def refused(words: str, model: str = MODEL, **asked: Any) -> None:
    with pytest.raises(UsageError, match=words):
        command("sglang", Asked(model, **asked))


def chain(n: int) -> str:
    return f"--speculative-num-steps {n} --speculative-eagle-topk 1 --speculative-num-draft-tokens {n + 1}"


def test_without_a_draft_model_its_own_ngrams_draft() -> None:
    assert made() == made(drafters=("lookup",)) == "--speculative-algorithm NGRAM"
    assert made(n_draft=7) == "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8"
    refused("takes no drafters from outside, and suffix,datastore would be", drafters=("suffix", "datastore"))
    refused("reads no corpora of Paceline's", corpora=("mine",))


def test_steps_branches_and_tokens_are_set_together() -> None:
    draft = f"--speculative-draft-model-path {DRAFT}"
    assert made(draft=DRAFT) == f"--speculative-algorithm STANDALONE {draft}"
    assert made(draft=DRAFT, n_draft=4) == f"--speculative-algorithm STANDALONE {draft} {chain(4)}"
    tree = "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 7"
    head = f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {HEAD}"
    assert made(draft=HEAD, n_draft=3, settings={"width": 2}) == f"{head} {tree}"
    assert made(draft=HEAD, own={STEPS: 3, TOPK: 2, TOKENS: 7}) == f"{head} {tree}"
    refused("sets the width and the longest draft together", draft=HEAD, settings={"width": 2})
    refused("set twice", draft=HEAD, n_draft=3, own={STEPS: 3})


def test_every_method_can_be_named() -> None:
    for method, needs in METHODS.items():
        asked = {"draft": DRAFT} if needs == "must" else {}
        assert made(method=method, n_draft=3, **asked).startswith(f"--speculative-algorithm {method.upper()}")
    assert made(method="NEXTN", n_draft=2) == f"--speculative-algorithm NEXTN {chain(2)}"
    assert (
        made(method="dspark", n_draft=7) == "--speculative-algorithm DSPARK --speculative-dspark-block-size 7"
    )
    assert made(method="dflash", draft=DRAFT, n_draft=7).endswith("--speculative-num-draft-tokens 8")
    refused("SGLang has no method 'medusa'", method="medusa")


def test_plain_decoding_says_nothing_of_drafts() -> None:
    assert made(drafters=("none",)) == ""


@pytest.mark.parametrize("name", ["speculative_accept_threshold_single", "speculative-accept-threshold-acc"])
def test_a_threshold_below_1_changes_the_output_and_is_refused(name: str) -> None:
    refused("accepts more drafted tokens than the model says", draft=HEAD, own={name: 0.9})
    assert made(draft=HEAD, own={name: 1.0}) == made(draft=HEAD)


def test_blocks_are_verified_where_sglang_can() -> None:
    words = made(draft=HEAD, n_draft=3, settings={"verify": "block"})
    assert words.endswith(f"{chain(3)} --speculative-use-block-verification")
    refused("does not verify blocks with standalone", draft=DRAFT, settings={"verify": "block"})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"draft": DRAFT, "settings": {"cross_vocab": "tli"}}, "no counterpart of cross_vocab tli"),
        ({"draft": DRAFT, "drafters": ("lookup", "model")}, "by one method at a time"),
        ({"settings": {"ngram_min": 2}}, "SGLang's ngram has no counterpart of ngram_min 2"),
        ({"own": {"port": 9000}}, "no speculative setting 'port'"),
        ({"extra": ("--speculative-accept-threshold-acc", "0.5")}, "is made by Paceline"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(asked: dict[str, Any], words: str) -> None:
    refused(words, **asked)


def test_what_is_false_is_left_out_and_what_is_true_has_no_value() -> None:
    own = {"speculative_adaptive": True, "speculative_use_rejection_sampling": False}
    assert made(draft=HEAD, own=own).endswith("--speculative-adaptive")


def test_gguf_files_are_both_or_none(tmp_path: Path) -> None:
    target, draft = write_llama(tmp_path / "t.gguf"), write_llama(tmp_path / "d.gguf")
    words = command("sglang", Asked(str(target), draft=str(draft)))
    assert words[3] == str(target)
    assert words[-1] == str(draft)
    refused("both must be GGUF files, or none", str(target), draft=DRAFT)
    refused("both must be GGUF files, or none", draft=str(draft))


def test_what_sglang_is_told_beside_drafting_goes_in() -> None:
    asked = {"n_ctx": 4096, "port": 9000, "api_key": "k", "extra": ("--tp", "2")}
    assert made(drafters=("none",), **asked) == "--context-length 4096 --port 9000 --api-key k --tp 2"
