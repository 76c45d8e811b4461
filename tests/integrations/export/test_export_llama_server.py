"""The command that starts llama-server: what is asked for is in it, and what would change the output is
refused. Its flags are those that the installed server knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xllamacpp_server import SETTINGS

from gguf_files import write_llama
from paceline.integrations.export import EngineRequest, command
from paceline.speculative.errors import UsageError

MODEL, DRAFT = "some/target-GGUF:Q4_K_M", "some/draft-GGUF:Q8_0"


def made(**asked: Any) -> str:
    """The words about drafting."""
    words = command("llama-server", EngineRequest(MODEL, **asked))
    assert words[:3] == ["llama-server", "-hf", MODEL]
    return " ".join(words[3:])


def test_each_way_of_drafting_has_its_type() -> None:
    assert made(drafters=("none",)) == ""
    assert made() == made(drafters=("lookup",)) == "--spec-type ngram-simple"
    assert made(n_draft=9) == "--spec-type ngram-simple --spec-ngram-simple-size-m 9"
    assert made(drafters=("mtp",)) == "--spec-type draft-mtp"
    words = made(drafters=("mtp",), n_draft=2, drafting_settings={"p_min": 0.3})
    assert words == "--spec-type draft-mtp --spec-draft-n-max 2 --spec-draft-p-min 0.3"
    assert made(draft=DRAFT) == f"-hfd {DRAFT} --spec-type draft-simple"
    assert made(draft="some/eagle3-head-GGUF:F16").endswith("--spec-type draft-eagle3")
    assert made(name="m", n_ctx=512, port=1, extra_args=("-ngl", "9")).endswith(
        "--ctx-size 512 --port 1 --alias m -ngl 9"
    )


def test_its_flags_are_known_to_the_server() -> None:
    words = made(drafters=("mtp",), n_draft=2, drafting_settings={"p_min": 0.3}).split()
    assert set(words[::2]) <= set(SETTINGS)


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    for asked, words in (
        ({"drafters": ("suffix",)}, "no counterpart of suffix"),
        ({"draft": "some/eagle-head-GGUF:F16"}, "no counterpart of eagle"),
        ({"extra_args": ("--spec-type", "x")}, "--spec-type is made by Paceline"),
        ({"drafters": ("mtp",), "drafting_settings": {"width": 3}}, "no counterpart of width"),
    ):
        with pytest.raises(UsageError, match=words):
            command("llama-server", EngineRequest(MODEL, **asked))
    with pytest.raises(UsageError, match="reads GGUF files only"):
        command("llama-server", EngineRequest("some/model"))
    assert command("llama-server", EngineRequest(str(write_llama(tmp_path / "m.gguf"))))
