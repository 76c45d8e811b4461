"""Settings that `paceline serve --replicas` refuses or passes on before it starts Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command
from paceline.server import replicas
from paceline.server.settings import ServerSettings
from paceline.settings import LoadOptions

Capture = pytest.CaptureFixture[str]
Asked = list[tuple[ServerSettings, str, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record the servers that would have been started."""
    out: Asked = []

    def run(settings: ServerSettings, host: str, port: int) -> int:
        out.append((settings, host, port))
        return 0

    monkeypatch.setattr(replicas, "run", run)
    return out


def serve(capsys: Capture, *args: str | Path) -> Done:
    return command(capsys, "serve", "-m", "toy:seed=3", *args)


def test_what_is_said_reaches_every_replica(capsys: Capture, asked: Asked, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\ntwo\n")
    given = """
        --draft lookup --n-draft 5 --port 81 --temp 0.5 --top-k 7 --quiet --log-json
        --sessions 3 --queue 5 --per-client 2 -n 9 --isolate-clients --timeout 7
        --body-limit 0.5 --shutdown-timeout 11 --chunk 64
        --replicas 2..8 --replica-cpus 4 --replica-gpus 0.5"""
    done = serve(capsys, *given.split(), "--api-key-file", keys)
    assert (done.code, done.out, done.err) == (0, "", "")
    ((settings, host, port),) = asked
    assert (host, port) == ("127.0.0.1", 81)
    others: dict[str, Any] = {
        **{"sessions": 3, "queue": 5, "per_client": 2, "n_predict": 9, "isolate_clients": True},
        **{"timeout": 7.0, "body_limit": 0.5, "shutdown_timeout": 11.0, "chunk": 64},
        **{"log_json": True, "quiet": True, "replicas": "2..8", "num_cpus": 4.0, "num_gpus": 0.5},
    }
    assert settings == ServerSettings(
        load=LoadOptions.of("toy:seed=3", drafters="lookup", n_draft=5),
        alias=("toy:seed=3",),
        api_key=("one", "two"),  # which keep web pages out: any host is served
        sampling={"temperature": 0.5, "top_k": 7},
        **others,
    )


def test_without_keys_a_local_server_answers_to_this_machine_s_names(capsys: Capture, asked: Asked) -> None:
    serve(capsys, "--replicas", "1")
    done = serve(capsys, "--replicas", "1", "--host", "0.0.0.0")
    assert done.err == "no --api-key: whoever reaches this machine can use it\n"
    assert "127.0.0.1" in asked[0][0].hosts
    assert asked[1][0].hosts == ()


def test_paths_are_said_from_the_root(
    capsys: Capture, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's processes are elsewhere."""
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").touch()
    command(capsys, "serve", "-m", "model.gguf", "--replicas", "1", "--corpus", "model.gguf")
    loading = asked[0][0].load
    file = str(tmp_path / "model.gguf")
    assert loading == LoadOptions(file, corpora=(file,))


def test_without_ray_it_says_what_to_install(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    serve(capsys, "--replicas", "1").refused(1, "ray", "paceline[ray]")
