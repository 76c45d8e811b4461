"""Faults that were planted in real models and records are found, and a good pair has none of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gguf_files import copied
from paceline.doctor.causes import diagnose
from paceline.doctor.diagnosis import evidence_of_models, evidence_of_requests, evidence_of_run
from paceline.hardware.probe import probe
from paceline.loading import load
from paceline.models import zoo
from paceline.models.headers.header import read_model_facts
from paceline.speculative.errors import UsageError


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded draft with the rows of each layer's matrices in another order."""
    rng = np.random.default_rng(7)
    out = tmp_path_factory.mktemp("shuffled") / "draft.gguf"
    return copied(zoo.draft_path(), out, {}, lambda it: (rng.permutation(it.data), it.tensor_type))


def causes(target: Path, draft: Path) -> set[str]:
    """Return the names of the causes that need no clock."""
    known, small = read_model_facts(target), read_model_facts(draft)
    with load(target, draft, "model", threads=1, n_ctx=512, cross_vocab="auto") as llm:
        evidence = evidence_of_models(probe(), known, small, None, llm.target.settings)
        evidence, _ = evidence_of_run(evidence, llm, lambda _: None)
    machine = {"cores taken by others", "too many threads", "swapping", "GPU not used"}
    return {cause.name for cause in diagnose(evidence)} - machine


def test_a_good_pair_has_no_causes() -> None:
    assert causes(zoo.target_path(), zoo.draft_path()) == set()


def test_a_draft_with_shuffled_weights_is_named_damaged(shuffled: Path) -> None:
    assert causes(zoo.target_path(), shuffled) == {"draft damaged"}


def test_a_draft_of_another_vocabulary_is_named_if_it_is_wrong(foreign_draft: Path, models: Path) -> None:
    assert causes(zoo.target_path(), foreign_draft) == set()
    assert causes(zoo.target_path(), models / "draft.gguf") == {"another vocabulary"}


def test_a_draft_as_large_as_the_target_is_named() -> None:
    assert causes(zoo.target_path(), zoo.target_path()) == {"draft too large"}


def test_recorded_requests_show_short_hot_answers_and_early_changes(tmp_path: Path) -> None:
    file, body = tmp_path / "requests.jsonl", list(range(1000, 3000))
    lines = [
        {"prompt_tokens": [1, 2, n, *body], "tokens": [5] * 10, "sampling": {"temperature": 1.0}}
        for n in range(6)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = evidence_of_requests(file)
    assert found == {"requests": 6, "answer_tokens": 10, "temperature": 1.0, "early_changes": 1.0}
    file.write_text('{"prompt": "x"}\n')
    with pytest.raises(UsageError, match="--record"):
        evidence_of_requests(file)
