"""What a model is called in records."""

from __future__ import annotations

import paceline
from paceline import zoo
from real_model import smollm2


def test_a_small_models_parameters_are_told_instead_of_an_unknown_class() -> None:
    with paceline.load(zoo.target_path(), drafters="none", threads=1, n_ctx=64) as llm:
        assert llm.target.description == "llama 12.6M Q8_0"


def test_the_real_model_is_no_256m() -> None:
    with paceline.load(smollm2(), drafters="none", threads=1, n_ctx=64) as llm:
        assert llm.target.description == "llama 135M Q4_1"
