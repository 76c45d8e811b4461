"""`paceline run` with a JSON schema or a regular expression: the text, the refusals, and a text cut short."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command_line import run

Capture = pytest.CaptureFixture[str]
SCHEMA = (
    '{"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"],'
    ' "additionalProperties": false}'
)


def test_schema_comes_from_a_file_or_the_environment(capsys: Capture, target: Path, tmp_path: Path) -> None:
    typed = run(capsys, target, "ab", "--json-schema", SCHEMA).out
    (tmp_path / "schema.json").write_text(SCHEMA)
    assert run(capsys, target, "ab", "-jf", tmp_path / "schema.json").out == typed
    assert run(capsys, target, "ab", PACELINE_JSON_SCHEMA=SCHEMA).out == typed
    assert json.loads(typed)["n"] in (1, 22)


def test_a_regular_expression_is_matched_as_a_whole(capsys: Capture, models: Path, target: Path) -> None:
    done = run(capsys, target, "-md", models / "draft.gguf", "ab", "--regex", r"[a-c]{3}-\d{4}", "--compare")
    assert done.code == 0
    plain, drafted = done.out.splitlines()[:2]
    assert plain == drafted
    assert re.fullmatch(r"[a-c]{3}-\d{4}", plain)
    assert "output identical: yes" in done.out


def test_gbnf_comes_from_a_file(capsys: Capture, target: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.gbnf").write_text('root ::= pair pair\npair ::= [a-c] "-"')
    done = run(capsys, target, "ab", "--grammar-file", tmp_path / "pairs.gbnf")
    assert re.fullmatch("([a-c]-){2}\n", done.out)
    run(capsys, target, "ab", "--grammar-file", tmp_path / "pairs.gbnf", "-j", SCHEMA).refused(
        2, "only one of them"
    )


def test_what_a_schema_does_not_enforce_is_noted(capsys: Capture, target: Path) -> None:
    done = run(capsys, target, "ab", "-j", '{"enum": [1, 22], "not": {"const": 1}}')
    assert done.out in ("1\n", "22\n")
    assert done.err.startswith("the JSON schema: not is not enforced\n")


def test_a_text_cut_short_is_said_to_be(capsys: Capture, target: Path) -> None:
    request = ("ab", "--regex", "[0-9]{20}")
    short = run(capsys, target, *request, "-n", "5")
    assert (short.code, len(short.out)) == (0, 6)
    assert short.err.startswith("the text is cut short of what the grammar asks for\n")
    record = run(capsys, target, *request, "-n", "5", "--json").json
    assert (record["stop_reason"], record["complete"]) == ("length", False)
    assert run(capsys, target, *request).err.count("\n") == 1
    assert run(capsys, target, "ab", "--regex", "[0-9]+", "-n", "5").err.count("\n") == 1
    assert "complete" not in run(capsys, target, "ab", "-n", "5", "--json").json
