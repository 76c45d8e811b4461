"""`paceline serve` as a process: what it says before it begins, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from command_line import Done, command, start
from paceline.cli.serve import read_keys
from paceline.server import listen
from paceline.speculative.errors import UsageError
from real_model import smollm2
from serving import LONG, until

TOY = ("-m", "toy:seed=3,eos=7", "--draft", "lookup")


class Running:
    """A server's process. err: the lines it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.err: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        until(lambda: self.url or process.poll() is not None)
        assert self.url, self.err

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err.append(line.decode())

    @property
    def url(self) -> str:
        found = (re.search(r"http://\S+:\d+(?=/v1)", line) for line in self.err)
        return next((one[0] for one in found if one), "")

    def ends(self) -> int:
        code = self.process.wait(LONG)
        self._reading.join(LONG)
        return code


@contextmanager
def running(*args: str | Path, **env: str) -> Iterator[Running]:
    with start("serve", "--port", "0", *args, **env) as process:
        server = None
        try:
            server = Running(process)
            until(lambda: answers(server.url))
            yield server
        finally:
            if process.poll() is None:
                process.kill()
            if server is not None:
                server.ends()


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=LONG).status_code == 200
    except httpx2.TransportError:
        return False


def refused(capsys: pytest.CaptureFixture[str], *args: str | Path) -> Done:
    return command(capsys, "serve", *args)


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused(capsys, "-m", "/nowhere.gguf", "--port", str(port)).refused(2, f"port {port}", "--port")


def test_two_that_begin_at_once_on_one_port() -> None:
    """Both can have it until one of them listens."""
    with listen.bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with listen.bind("127.0.0.1", port) as second:
            listen.listen_on(first)
            with pytest.raises(UsageError, match=f"port {port}: Address already in use; choose with --port"):
                listen.listen_on(second)


@pytest.mark.parametrize("missing", ["fastapi", "prometheus_client"])
def test_without_the_extra_it_says_what_to_install(
    missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    refused(capsys, *TOY).refused(1, f"serving needs {missing}", "pip install 'paceline[serve]'")


def test_keys_come_from_options_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two  \n")
    assert read_keys(["three"], file) == ["three", "one", "two"]
    assert read_keys(None, None) == []
    monkeypatch.setenv("PACELINE_API_KEY", "four")
    assert read_keys(None, None) == ["four"]
    assert read_keys(["three"], None) == ["three"]
    file.write_text("\n")
    with pytest.raises(UsageError, match="holds no key"):
        read_keys(None, file)


@pytest.mark.slow
def test_it_says_where_it_is_and_asks_for_its_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    with running(*TOY, "--api-key-file", tmp_path / "keys", "--alias", "a", "--alias", "b/c") as server:
        assert httpx2.get(f"{server.url}/v1/models", timeout=LONG).status_code == 401
        headers = {"authorization": "Bearer sesame"}
        listed = httpx2.get(f"{server.url}/v1/models", headers=headers, timeout=LONG).json()
        assert [model["id"] for model in listed["data"]] == ["a", "b/c"]
        assert str(tmp_path) not in str(listed)
        chat = httpx2.post(
            f"{server.url}/v1/chat/completions", headers=headers, timeout=LONG,
            json={"model": "b/c", "messages": [{"role": "user", "content": "1"}]},
        )  # fmt: skip
        assert "no chat template, so it cannot chat" in chat.json()["error"]["message"]
        server.process.send_signal(signal.SIGTERM)
        assert server.ends() == 0
    assert not any("sesame" in line for line in server.err)


SECRET = "Xyzzy"


def talk(url: str) -> None:
    """Send requests with a secret at every place that a log might copy."""
    body: dict[str, Any] = {"prompt": "1234", "stop": SECRET, "user": SECRET, "max_tokens": 5}
    for more in ({}, {"stream": True}, {"flavour": SECRET}, {"temperature": SECRET}, {"model": SECRET}):
        httpx2.post(f"{url}/v1/completions", json=body | more, timeout=LONG)
    httpx2.post(f"{url}/tokenize", json={"content": SECRET}, timeout=LONG)
    httpx2.post(f"{url}/v1/completions?q={SECRET}", content=f'{{"{SECRET}"', timeout=LONG)
    httpx2.get(
        f"{url}/health", headers={"authorization": f"Bearer {SECRET}", "x-request-id": "mine"}, timeout=LONG
    )
    httpx2.get(f"{url}/a%0aINFO%1b[31mforged", headers={"x-forwarded-for": "6.6.6.6"}, timeout=LONG)


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [True, False])
def test_the_log_has_a_line_a_request_without_its_text(as_json: bool) -> None:
    with running(*TOY, *(["--log-json"] if as_json else [])) as server:
        before = len(server.err)
        talk(server.url)
        server.process.send_signal(signal.SIGTERM)
        assert server.ends() == 0
    lines = server.err[before:]
    assert not [line for line in server.err if SECRET in line]
    assert not [line for line in lines if "6.6.6.6" in line]
    assert all(line.removesuffix("\n").isprintable() for line in lines)
    logged: list[dict[str, Any]] = [json.loads(line) for line in lines] if as_json else []
    if not as_json:
        assert all(line[0].isdigit() for line in lines)
        logged = [dict(word.split("=", 1) for word in line.split()[3:]) for line in lines if "=" in line]
    requests = [fields for fields in logged if fields.get("path", "/health") != "/health"]
    statuses = " ".join(str(fields["status"]) for fields in requests)
    assert statuses == "200 200 200 400 404 200 400 404"
    assert int(requests[0]["tokens"]) <= 5
    assert int(requests[0]["prompt"]) == 4
    assert {fields["client"] for fields in requests} == {"127.0.0.1"}
    assert any(fields.get("id") == "mine" for fields in logged)


def stream(url: str, n: int) -> httpx2.Request:
    body = {
        "prompt": "Once upon a time",
        "max_tokens": n,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    return httpx2.Request("POST", f"{url}/v1/completions", json=body)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_server_without_waiting_for_a_stream() -> None:
    with (
        running("-m", smollm2(), "--draft", "none", "-c", "4096", "--shutdown-timeout", "600") as server,
        httpx2.Client(timeout=LONG) as client,
    ):
        answer = client.send(stream(server.url, 4000), stream=True)
        lines = answer.iter_lines()
        next(line for line in lines if line)
        server.process.send_signal(signal.SIGINT)
        until(lambda: not answers(server.url))
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.ends() == 0
        with pytest.raises(httpx2.RemoteProtocolError):
            list(lines)  # the stream was cut off
    assert "Traceback" not in "".join(server.err)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_ends_whole_and_nobody_new_is_let_in(kind: signal.Signals) -> None:
    with (
        running("-m", smollm2(), "--draft", "none", "-c", "256") as server,
        httpx2.Client(timeout=LONG) as client,
    ):
        answer = client.send(stream(server.url, 60), stream=True)
        lines = answer.iter_lines()
        first = next(line for line in lines if line)
        server.process.send_signal(kind)
        until(lambda: not answers(server.url))
        events = [first, *(line for line in lines if line)]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
        said = [json.loads(line[6:])["choices"][0]["text"] for line in events[:-1]]
        assert len("".join(said)) > 60
        answer.close()
        assert server.ends() == 0
