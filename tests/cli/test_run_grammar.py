"""`paceline run` with a JSON schema or a regular expression: the text, the refusals, and a text cut short."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command_line import command, run
from gguf_files import write_llama
from paceline.cli import texts
from paceline.speculative.errors import UsageError

Capture = pytest.CaptureFixture[str]
SCHEMA = (
    '{"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"],'
    ' "additionalProperties": false}'
)


@pytest.mark.parametrize("sampling", [[], ["--temp", "1", "--seed", "4"]])
@pytest.mark.parametrize("drafting", [[], ["--width", "3"], ["--draft-temp", "1"], ["--draft", "none"]])
def test_the_text_satisfies_the_schema_however_it_is_drafted(
    capsys: Capture, models: Path, sampling: list[str], drafting: list[str]
) -> None:
    draft = [] if "none" in drafting else ["-md", str(models / "draft.gguf")]
    done = run(capsys, models / "target.gguf", *draft, "ab", "-j", SCHEMA, *sampling, *drafting, "--json")
    record = done.json
    assert json.loads(record["text"])["n"] in (1, 22)
    assert (done.code, record["stop_reason"], record["complete"]) == (0, "eos", True)
    assert record["provenance"]["request"]["json_schema"] == SCHEMA


def test_a_schema_comes_from_a_file_or_the_environment_too(
    capsys: Capture, target: Path, tmp_path: Path
) -> None:
    typed = run(capsys, target, "ab", "--json-schema", SCHEMA).out
    (tmp_path / "schema.json").write_text(SCHEMA)
    assert run(capsys, target, "ab", "--json-schema-file", tmp_path / "schema.json").out == typed
    assert run(capsys, target, "ab", "-jf", tmp_path / "schema.json").out == typed
    assert run(capsys, target, "ab", PACELINE_JSON_SCHEMA=SCHEMA).out == typed
    assert run(capsys, target, "ab", PACELINE_JSON_SCHEMA_FILE=str(tmp_path / "schema.json")).out == typed
    assert json.loads(typed)["n"] in (1, 22)


def test_a_regular_expression_is_matched_as_a_whole(capsys: Capture, models: Path, target: Path) -> None:
    done = run(capsys, target, "-md", models / "draft.gguf", "ab", "--regex", r"[a-c]{3}-\d{4}", "--compare")
    assert done.code == 0
    plain, drafted = done.out.splitlines()[:2]
    assert plain == drafted
    assert re.fullmatch(r"[a-c]{3}-\d{4}", plain)
    assert "output identical: yes" in done.out


def test_a_chat_answers_under_a_grammar(capsys: Capture, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "chat.gguf", chat_template="[{{ messages[0].content }}]")
    assert run(capsys, model, "--chat", "hi", "--regex", "yes|no").out in ("yes\n", "no\n")


def test_a_text_cut_short_is_said_to_be(capsys: Capture, target: Path) -> None:
    request = ("ab", "--regex", "[0-9]{20}")
    short = run(capsys, target, *request, "-n", "5")
    assert (short.code, len(short.out)) == (0, 6)
    assert short.err.startswith("the text is cut short of what the grammar asks for\n5 tokens, ")
    record = run(capsys, target, *request, "-n", "5", "--json").json
    assert (record["stop_reason"], record["complete"]) == ("length", False)
    assert run(capsys, target, *request).err.startswith("21 tokens, ")
    assert run(capsys, target, "ab", "--regex", "[0-9]+", "-n", "5").err.startswith("5 tokens, ")
    assert "complete" not in run(capsys, target, "ab", "-n", "5", "--json").json


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-j", '{"type": '], "the JSON schema is not JSON: Expecting value: line 1 column 10"),
        (["-j", '{"type": "text"}'], "the JSON schema cannot be used: Invalid type: text"),
        (["-j", "false"], "no text can satisfy the JSON schema: schema is false"),
        (["-j", '{"type": "string", "minLength": 2, "maxLength": 1}'], "no text can satisfy the JSON schema"),
        (["-j", "{}\udcff"], "the JSON schema is not UTF-8 text (character 2)"),
        (["-jf", "{odd}/missing.json"], "missing.json: cannot be read (No such file or directory)"),
        (["-jf", "{odd}"], "cannot be read (Is a directory)"),
        (["-jf", "{odd}/latin-1.json"], "latin-1.json: is not UTF-8 text (byte 9)"),
        (
            ["-jf", "{odd}/latin-1.json", "-j", "{}"],
            "more than one JSON schema: give it as text (-j) or as a file",
        ),
        (["-j", "{}", "--regex", "a"], "a text can follow only one of them"),
        (["--regex", "(a"], "the regular expression cannot be used: unclosed group"),
        (["--regex", ""], "the regular expression is empty"),
        (["--regex", r"[^\s\S]"], "no text can satisfy the regular expression"),
        (["--regex", "a\udcff"], "the regular expression is not UTF-8 text (character 1)"),
        (["--regex", "a", "--ignore-eos"], "a grammar says where the text ends: it cannot be combined with"),
        (["--regex", "A", "--logit-bias", "65=-inf"], "a logit bias or the grammar forbids every one"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused(
    capsys: Capture, target: Path, tmp_path: Path, args: list[str], words: str
) -> None:
    (tmp_path / "latin-1.json").write_bytes('{"const":"é"}'.encode("latin-1").replace(b'"\xe9', b"\xe9"))
    given = [arg.replace("{odd}", str(tmp_path)) for arg in args]
    run(capsys, target, "hi", *given, "--json").refused(2, words)


def test_a_grammar_that_cannot_be_used_is_refused_before_a_model_is_loaded(capsys: Capture) -> None:
    command(capsys, "run", "-m", "missing.gguf", "hi", "--regex", "(").refused(2, "unclosed group")


def test_a_schema_is_read_from_one_place(tmp_path: Path) -> None:
    assert texts.read_schema(None, None) is None
    with pytest.raises(UsageError, match="more than one JSON schema"):
        texts.read_schema("{}", tmp_path)
