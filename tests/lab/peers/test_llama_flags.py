"""The command line of llama-server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import PeerError
from paceline.lab.peers.llama_flags import arguments, needs_draft, output_of, require_types, spec_types

COMMON = "-m t.gguf -c 1536 -np 3 -t 2 -tb 2 -ngl 7 -ctk q8_0 -ctv q8_0"


def line(method: str, n_draft: int | None = 4, p_min: float | None = 0.5, **more: Any) -> str:
    given: dict[str, Any] = {
        "n_ctx": 512, "threads": 2, "parallel": 3, "flash_attention": None, "cache_type": "q8_0",
        "gpu_layers": 7,
    }  # fmt: skip
    return " ".join(
        arguments(
            Path("t.gguf"), spec_types(method), Path("d.gguf"), n_draft=n_draft, p_min=p_min, **given | more
        )
    )


@pytest.mark.parametrize(
    ("method", "more", "written"),
    [
        ("plain", {}, "--cache-ram 0 --fit off"),
        ("plain", {"flash_attention": False}, "-fa off --cache-ram 0 --fit off"),
        (
            "model",
            {},
            "--cache-ram 0 --fit off -md d.gguf --spec-draft-ngl 7 -ctkd q8_0 -ctvd q8_0 "
            "--spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0.5 --spec-type draft-simple",
        ),
        ("draft-mtp", {"n_draft": None, "p_min": None}, "--cache-ram 0 --fit off --spec-type draft-mtp"),
        ("ngram-mod", {}, "--cache-ram 0 --fit off --spec-type ngram-mod"),
        (
            "lookup, ngram-map-k",
            {},
            "--cache-ram 0 --fit off --spec-ngram-simple-size-m 4 --spec-ngram-map-k-size-m 4 "
            "--spec-type ngram-simple,ngram-map-k",
        ),
    ],
)
def test_every_setting_is_told_and_nothing_is_left_for_it_to_choose(
    method: str, more: dict[str, Any], written: str
) -> None:
    assert line(method, **more) == f"{COMMON} {written}"


def test_methods_combine_and_our_names_are_translated() -> None:
    assert spec_types("lookup, model") == ("ngram-simple", "draft-simple")
    assert [needs_draft(spec_types(m)) for m in ("plain", "lookup", "draft-mtp", "lookup,draft-eagle3")] == [
        *(False, False, False, True)
    ]


def test_what_a_program_cannot_do_is_named(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho '--spec-type none,draft-simple,ngram-map-k4v'\n")
    program.chmod(0o755)
    require_types([str(program)], ["draft-simple"])
    with pytest.raises(PeerError, match="llama-server does not draft by ngram-map-k: see --spec-type"):
        require_types([str(program)], ["draft-simple", "ngram-map-k"])
    with pytest.raises(PeerError, match="there is no program /no/such/server"):
        output_of(["/no/such/server"], "--help")
    program.write_text("#!/bin/sh\necho libggml.so is missing >&2; exit 127\n")
    with pytest.raises(PeerError, match=r"--help failed with exit status 127: libggml.so is missing"):
        output_of([str(program)], "--help")
