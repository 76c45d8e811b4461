"""`paceline check`, on files without weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import command
from gguf_files import write_llama
from paceline.models import zoo

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("check")
    write_llama(out / "target.gguf", vocab_only=True, chat_template="<|im_start|>{{ x }}")
    write_llama(out / "other.gguf", vocab_only=True, extra_tokens=tuple(f"Ġword{i}" for i in range(200)))
    write_llama(out / "bert.gguf", vocab_only=True, arch="bert")
    return out


def test_the_embedded_draft_fits_the_embedded_target(capsys: Capture) -> None:
    for prefix in ("", "hf:"):
        done = command(capsys, "check", f"{prefix}{zoo.target_path()}", f"{prefix}{zoo.draft_path()}")
        assert done.code == 0
        assert done.out.startswith("same: it fits")
        assert "paceline-draft.gguf" in done.out


@pytest.mark.parametrize(
    ("draft", "verdict", "code"), [("other", "mappable", 0), ("bert", "incompatible", 3)]
)
def test_the_exit_code_says_whether_it_can_be_used(
    capsys: Capture, folder: Path, draft: str, verdict: str, code: int
) -> None:
    done = command(capsys, "check", folder / "target.gguf", folder / f"{draft}.gguf", "--json")
    assert (done.code, done.err) == (code, "")
    assert (done.json["verdict"], done.json["usable"]) == (verdict, code == 0)
