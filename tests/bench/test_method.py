"""Methods and plans of a bench, parsed and stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.bench.method import parse, parse_all
from paceline.bench.plan import BenchPlan
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling

BASE = {"n_draft": 5, "p_min": 0.25}


def test_a_name_is_its_drafters_and_its_settings_come_on_top_of_the_benchs() -> None:
    method = parse("lookup+model:n_draft=12:verify=token", BASE)
    assert method.name == "lookup+model:n_draft=12:verify=token"
    drafting = method.drafting
    assert drafting.drafters == ("lookup", "model")
    assert (drafting.n_draft, drafting.p_min, drafting.verify) == (12, 0.25, "token")
    assert (method.needs_draft, method.plain) == (True, False)


def test_plain_decoding_comes_first_whether_it_is_named_or_not() -> None:
    assert [m.name for m in parse_all("lookup, plain", {})] == ["plain", "lookup"]
    assert [m.name for m in parse_all("lookup,none", {})] == ["plain", "lookup"]
    assert [m.plain for m in parse_all("lookup", {})] == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("magic", "unknown drafter 'magic'"),
        ("lookup:drafters=model", "'drafters=model' is no setting"),
        ("lookup:n_draft=many", "'n_draft=many' is no setting"),
        ("lookup:n_draft=0", "n_draft 0: must be between 1 and"),
        ("lookup+none", "'none' means plain decoding"),
        ("lookup,lookup", "'lookup' is named twice"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_all(text, {})


def test_a_stored_plan_with_an_older_name_of_a_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown setting 'temperature'"):
        parse_all("lookup", {"temperature": 0.0})


def test_a_stored_plan_is_the_plan() -> None:
    plan = BenchPlan(
        models=LoadOptions.of("a.gguf", threads=2, flash_attention=None), drafting={"n_draft": 4},
        sampling=Sampling(repeat_penalty=1.1, logit_bias={3: -1.5}), methods="plain,lookup",
        baselines=("llama-server=/bin/x",), n=32,
    )  # fmt: skip
    assert BenchPlan.read(json.loads(json.dumps(plan.as_dict()))) == plan


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"n": 1}, "from the second on"),
        ({"baselines": ("openai=x",), "keep_prompts": True}, "--keep-prompts"),
        ({"baselines": ("openai=x",), "sampling": Sampling(temperature=0.7)}, "--temp"),
        ({"baselines": ("llama-server",), "sampling": Sampling(temperature=0.7, top_k=9)}, "without top-k"),
        ({"baselines": ("llama-server",), "sampling": Sampling(dry_multiplier=1.0)}, "min-p or DRY"),
    ],
)
def test_plans_that_cannot_be_measured_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        BenchPlan(**values)
