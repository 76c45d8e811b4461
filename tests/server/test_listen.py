"""The server's process: its limit on connections, its end with the engine, its log."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import threading
from typing import Any

import httpx2
import pytest

import paceline
from paceline.server import app, listen
from paceline.server.security import SecurityRules
from paceline.server.service import ServingEngine
from paceline.speculative.errors import PacelineError
from paceline.speculative.request import GenerationRequest
from serving import LONG, Gate, serving, until


def test_a_server_whose_service_has_failed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def meanwhile(port: int, service: ServingEngine) -> None:
        url = f"http://127.0.0.1:{port}/health"
        until(lambda: _status(url) == 200)
        monkeypatch.setattr(service.metrics, "step", broken)
        request = GenerationRequest(prompt=[1], max_tokens=5)
        service.submit([request], lambda at, output: None)

    with paceline.load("toy:", drafters="lookup") as llm:
        service, listening = ServingEngine(llm), listen.bind("127.0.0.1", 0)
        other = threading.Thread(target=meanwhile, args=(listening.getsockname()[1], service))
        other.start()
        with pytest.raises(PacelineError, match="start it again"):
            listen.run(app.create(service, ["toy"], SecurityRules()), service, listening, 1.0)
        other.join(LONG)


def test_a_process_ends_with_its_grace_though_a_pass_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    events: list[str] = []
    monkeypatch.setattr(listen, "exit_now", left.append)
    with paceline.load("toy:", drafters="lookup") as llm:
        gate = Gate(llm.target)
        gate.shut()
        service, listening = ServingEngine(llm), listen.bind("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def meanwhile() -> None:
            until(lambda: _status(f"{url}/health") == 200)
            body = {"prompt": [1], "max_tokens": 5, "stream": True}
            with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=LONG) as answer:
                gate.held()
                os.kill(os.getpid(), signal.SIGTERM)
                events.extend(line for line in answer.iter_lines() if line and not line.startswith(":"))

        client = threading.Thread(target=meanwhile)
        client.start()
        listen.run(app.create(service, ["toy"], SecurityRules()), service, listening, 0.2)
        client.join(LONG)
        gate.go()
        assert service.close()
    assert left == [0]
    error, done = events
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "unavailable"
    assert done == "data: [DONE]"


def _status(url: str) -> int:
    try:
        return httpx2.get(url, timeout=LONG).status_code
    except httpx2.TransportError:
        return 0


@pytest.mark.parametrize(
    ("soft", "hard", "most", "set_to"),
    [
        *((256, 4096, 1024, 1152), (256, 512, 384, 512)),  # more is to be had; not enough
        *((4096, 4096, 1024, None), (100, 100, 16, None)),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1024, None),
    ],
)
def test_connections_are_as_many_as_there_are_files_for(
    soft: int, hard: int, most: int, set_to: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert listen.max_connections() == most
    assert given == ([] if set_to is None else [(set_to, hard)])


@pytest.mark.parametrize(
    ("proxies", "header", "client"),
    [
        ([], "6.6.6.6", "127.0.0.1"),
        (["10.0.0.1"], "6.6.6.6", "127.0.0.1"),
        (["127.0.0.0/8"], "1.1.1.1, 6.6.6.6", "6.6.6.6"),
    ],
)
def test_a_client_is_named_by_a_trusted_proxy_alone(
    proxies: list[str], header: str, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("paceline.server.requests")
    caplog.set_level(logging.INFO, log.name)
    log.addHandler(caplog.handler)
    try:
        with (
            paceline.load("toy:", drafters="lookup") as llm,
            serving(llm, rules=SecurityRules(proxies=proxies)) as up,
        ):
            up.get("/health", headers={"x-forwarded-for": header})
    finally:
        log.removeHandler(caplog.handler)
    assert f" client={client} " in caplog.text
