"""`paceline check`, on files without weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gguf_files import write_llama
from paceline.cli.check import check
from paceline.models import zoo

TARGET, DRAFT = str(zoo.target_path()), str(zoo.draft_path())


def run(*args: str | Path) -> tuple[int, str, str]:
    app = typer.Typer()

    @app.callback()
    def _several() -> None:
        pass

    app.command()(check)
    done = CliRunner().invoke(app, ["check", *map(str, args)], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("check")
    write_llama(out / "target.gguf", vocab_only=True, chat_template="<|im_start|>{{ x }}")
    write_llama(out / "more.gguf", vocab_only=True, extra_tokens=("Ġmore", "Ġand"))
    write_llama(out / "other.gguf", vocab_only=True, extra_tokens=tuple(f"Ġword{i}" for i in range(200)))
    write_llama(out / "bert.gguf", vocab_only=True, arch="bert")
    write_llama(out / "jamba.gguf", vocab_only=True, arch="jamba")
    return out


def test_the_embedded_draft_fits_the_embedded_target() -> None:
    code, out, err = run(TARGET, DRAFT)
    assert (code, err) == (0, "")
    assert out.startswith("same: it fits")
    assert "paceline-draft.gguf" in out


def test_files_that_transformers_would_open_are_read_like_others() -> None:
    code, out, _ = run(f"hf:{TARGET}", f"hf:{DRAFT}")
    assert code == 0
    assert out.startswith("same: it fits")


@pytest.mark.parametrize(
    ("target", "draft", "verdict", "code"),
    [
        ("target", "target", "same", 0),
        ("target", "more", "compatible", 0),
        ("target", "other", "mappable", 0),
        ("target", "bert", "incompatible", 3),
        ("jamba", "target", "incompatible", 3),
        ("target", "jamba", "incompatible", 3),
    ],
)
def test_the_exit_code_says_whether_it_can_be_used(
    folder: Path, target: str, draft: str, verdict: str, code: int
) -> None:
    done, out, err = run(folder / f"{target}.gguf", folder / f"{draft}.gguf", "--json")
    found = json.loads(out)
    assert (done, err, out.count("\n")) == (code, "", 1)
    assert (found["verdict"], found["usable"]) == (verdict, code == 0)


def test_json_has_every_reason_as_data(folder: Path) -> None:
    found = json.loads(run(folder / "target.gguf", folder / "other.gguf", "--json")[1])
    assert set(found) == {"target", "draft", "verdict", "reasons", "usable", "advice"}
    assert (found["target"], found["draft"]) == (str(folder / "target.gguf"), str(folder / "other.gguf"))
    by_field = {reason.pop("field"): reason for reason in found["reasons"]}
    assert by_field["vocabulary size"] == {
        "target": 258,
        "draft": 458,
        "weight": "mapping",
        "text": "200 apart: at most 128 may be padding",
        "advice": "",
    }
    assert by_field["tokens in common"]["target"] == "257 of 257"
    assert any("--cross-vocab auto" in line for line in found["advice"])
    assert any(line.endswith("-o OUT.gguf") for line in found["advice"])


def test_a_foreign_draft_of_the_embedded_pair_is_mappable(foreign_draft: Path) -> None:
    code, out, _ = run(TARGET, foreign_draft)
    assert (code, out.split(":")[0]) == (0, "mappable")
