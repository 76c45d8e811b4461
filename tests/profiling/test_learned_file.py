"""The file of what the policy has learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.api import LLM
from paceline.loading import load
from paceline.models import zoo
from paceline.profiling.learned import FOLDER, restore
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.system.home import home

PROMPT = [1, 2, 3] * 20


@contextmanager
def opened(target: Path, draft: Path | None = None) -> Iterator[tuple[LLM, GoodputPolicy]]:
    with load(target, draft, "auto", threads=1) as llm:
        assert isinstance(llm.policy, GoodputPolicy)
        yield llm, llm.policy


@pytest.mark.usefixtures("however_busy")
def test_a_process_stores_what_it_learned_and_the_next_begins_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.loading.restore", restore)
    target, draft = zoo.target_path(), zoo.draft_path()
    with opened(target, draft) as (llm, policy):
        assert policy.learned == {}
        plain = llm.generate(PROMPT, max_tokens=48, ignore_eos=True, plain=True).tokens
        assert llm.generate(PROMPT, max_tokens=48, ignore_eos=True).tokens == plain
        learned = policy.learned
    assert learned["values"]
    (file,) = (home() / FOLDER).glob("*.json")
    with opened(target, draft) as (llm, policy):
        assert policy.learned["values"].keys() == learned["values"].keys()
        assert llm.generate(PROMPT, max_tokens=48, ignore_eos=True).tokens == plain
    file.write_text(file.read_text().replace('"tokens"', '"token"'))
    with opened(target, draft) as (_, policy):
        assert policy.learned == {}
    assert f"{file}: is damaged, or of another version; drafters are tried anew" in capsys.readouterr().err
    with opened(target) as (_, policy):
        assert policy.learned == {}  # another set of drafters has another file
