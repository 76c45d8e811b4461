"""openvino-genai: what a run of the library becomes; a stub stands for it where it is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline.bench.baselines.openvino import OpenVino
from paceline.bench.system import BenchRequest
from paceline.models import zoo
from paceline.speculative.errors import BaselineError, MissingExtraError


class Pipeline:
    """One answer of 7 tokens in three steps, as openvino-genai 2026.4 reports it."""

    def __init__(self, path: Path, device: str, **settings: Any) -> None:
        if path.suffix == ".broken":
            raise IndexError("Check failed\nunordered_map::at\n\n")
        self.drafts = "draft_model" in settings

    def generate(self, tokens: Any, config: Any) -> Any:
        metrics = SimpleNamespace(
            get_ttft=lambda: SimpleNamespace(mean=1e-6), get_num_input_tokens=lambda: len(tokens[0]),
            raw_metrics=SimpleNamespace(m_batch_sizes=[1, 4, 2]),
        )  # fmt: skip
        draft = SimpleNamespace(get_num_generated_tokens=lambda: 9)
        both = SimpleNamespace(draft_model_metrics=draft) if self.drafts else None
        return SimpleNamespace(tokens=[[*range(7)]], perf_metrics=metrics, extended_perf_metrics=both)

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(decode=lambda tokens: f"{len(tokens)} tokens")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    genai: dict[str, Any] = {
        "LLMPipeline": Pipeline,
        "SchedulerConfig": SimpleNamespace,
        "GenerationConfig": SimpleNamespace,
    }
    parts = {"openvino_genai": genai | {"draft_model": lambda *_, **__: None}, "openvino": {"Tensor": list}}
    for name, contents in parts.items():
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
        vars(module).update(contents)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("drafting", "drafted"), [("none", 0), ("lookup", None), ("model", 9)])
def test_an_answer_counts_steps_and_leaves_out_what_the_library_hides(
    drafting: str, drafted: int | None
) -> None:
    system = OpenVino("", zoo.target_path(), zoo.draft_path(), name="ov", drafting=drafting)
    answer = system.answer(BenchRequest("ab", (1, 2), 7))
    assert (answer.text, answer.tokens, answer.n_prompt) == ("7 tokens", tuple(range(7)), 2)
    assert (answer.steps, answer.accepted, answer.drafted, answer.decoded) == (3, 4, drafted, 6)
    assert answer.seconds == answer.first + answer.decoding


@pytest.mark.usefixtures("library")
def test_model_that_does_not_load_is_named_with_the_last_line() -> None:
    with pytest.raises(BaselineError, match=r"ov cannot load a\.broken: unordered_map::at; name "):
        OpenVino("a.broken", zoo.target_path(), name="ov")


def test_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(MissingExtraError, match="pip install openvino-genai"):
        OpenVino("", zoo.target_path(), name="ov")
