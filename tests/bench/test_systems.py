"""Other programs in a bench: their names and references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fake_llama_server import write_fake_server
from fixed_system import FixedSystem
from paceline.bench.baselines.llama_server import LlamaServer
from paceline.bench.gate import Contestant
from paceline.bench.method import parse_all
from paceline.bench.systems import BASELINES, join, parse
from paceline.models import zoo
from paceline.speculative.errors import BaselineError, UsageError

METHODS = parse_all("plain,model:n_draft=3", {})
FILES = (zoo.target_path(), zoo.draft_path())
ENGINE = {"n_ctx": 128, "threads": 1, "flash_attention": None, "cache_type": "f16", "gpu_layers": 0}


@pytest.fixture
def entries() -> Iterator[list[Contestant]]:
    """Yield our plain decoding; all added programs are closed and have then ended."""
    out = [Contestant(FixedSystem("plain"))]
    yield out
    for entry in out:
        entry.system.close()
    servers = [entry.system for entry in out if isinstance(entry.system, LlamaServer)]
    assert not any(psutil.pid_exists(server.pid) for server in servers)


def test_a_kind_may_say_where_and_a_path_may_have_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    path = str(write_fake_server(tmp_path / "a=b" / "c", "well"))
    kinds = [("transformers", ""), ("llama-server", path), ("openai", "http://h:1")]
    assert parse([f"{kind}={where}".rstrip("=") for kind, where in kinds]) == kinds


@pytest.mark.parametrize(
    ("texts", "error", "said"),
    [
        (["vllm"], UsageError, f"--baseline vllm: unknown; choose from {', '.join(BASELINES)}"),
        (["transformers", "transformers"], UsageError, "--baseline transformers: given twice"),
        (["openai"], UsageError, "--baseline openai: give its address"),
        (["llama-server=/nowhere/x"], BaselineError, "there is no program /nowhere/x"),
    ],
)
def test_what_is_no_program_is_refused(texts: list[str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        parse(texts)


def test_program_that_cannot_draft_is_refused_and_those_started_are_closed(
    entries: list[Contestant], tmp_path: Path
) -> None:
    server, path = write_fake_server(tmp_path / "fake", "well"), tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\ncase "$*" in *--spec-type*) exit 3;; esac\nexec {server} "$@"\n')
    path.chmod(0o755)
    with pytest.raises(BaselineError, match="llama-server lookup ended with exit status 3"):
        join(entries, [("llama-server", str(path))], parse_all("plain,lookup", {}), *FILES, ENGINE)
    assert [entry.name for entry in entries] == ["plain", "llama-server"]


def test_two_programs_of_a_kind_are_told_apart(entries: list[Contestant], tmp_path: Path) -> None:
    paths = [str(write_fake_server(tmp_path / name, "well")) for name in ("old", "new")]
    join(entries, [("llama-server", path) for path in paths], METHODS[:1], *FILES, ENGINE)
    assert [entry.name for entry in entries[1:]] == [f"llama-server={path}" for path in paths]
    assert all(entry.other_program_plain and entry.reference is entries[0] for entry in entries[1:])


def test_a_program_without_any_of_the_methods_is_refused(entries: list[Contestant]) -> None:
    with pytest.raises(UsageError, match="--baseline llama-lookup: has none of the methods plain, model"):
        join(entries, [("llama-lookup", "/nowhere")], METHODS, *FILES, ENGINE)
