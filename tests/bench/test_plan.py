"""A plan survives the history, so that a run can continue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.bench.bench import BenchPlan
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling


def test_a_stored_plan_is_the_plan() -> None:
    plan = BenchPlan(
        models={"target": "a.gguf", "threads": 2, "flash_attention": None},
        drafting={"n_draft": 4},
        sampling=Sampling(repeat_penalty=1.1, logit_bias={3: -1.5}),
        methods="plain,lookup",
        peers=("llama-server=/bin/x",),
        n=32,
    )
    assert BenchPlan.read(json.loads(json.dumps(plan.as_dict()))) == plan


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rounds": 0}, "rounds 0"),
        ({"items": -1}, "items -1"),
        ({"n": 1}, "from the second on"),
        ({"seed": -1}, "seed"),
        ({"peers": ("openai=x",), "keep_prompts": True}, "--keep-prompts"),
        ({"peers": ("openai=x",), "sampling": Sampling(temperature=0.7)}, "leave out --temp"),
    ],
)
def test_numbers_out_of_range_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        BenchPlan(**values)
