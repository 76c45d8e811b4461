"""The process of a server: what it may open, and how it ends where its service has."""

from __future__ import annotations

import resource
import threading
from typing import Any

import httpx2
import pytest

import paceline
from paceline.core.errors import PacelineError
from paceline.serve import app, listen
from paceline.serve.asking import Ask
from paceline.serve.guard import Rules
from paceline.serve.service import Service
from serving import LONG, until


def test_a_server_whose_service_has_failed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever looks after it may start another."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def meanwhile(port: int, service: Service) -> None:
        url = f"http://127.0.0.1:{port}/health"
        until(lambda: _status(url) == 200)
        monkeypatch.setattr(service, "_take", broken)
        service.submit([Ask([1], 5)], "a", lambda _: lambda update: None)

    with paceline.load("toy:", drafters="lookup") as llm:
        service, listening = Service(llm), listen.bind("127.0.0.1", 0)
        other = threading.Thread(target=meanwhile, args=(listening.getsockname()[1], service))
        other.start()
        with pytest.raises(PacelineError, match="start it again"):
            listen.run(app.create(service, ["toy"], Rules()), service, listening, 1.0)
        other.join(LONG)


def _status(url: str) -> int:
    try:
        return httpx2.get(url, timeout=LONG).status_code
    except httpx2.TransportError:
        return 0


@pytest.mark.parametrize(
    ("soft", "hard", "most", "set_to"),
    [
        (256, 4096, 1024, 1152),  # more is to be had
        (256, 512, 384, 512),  # not enough
        (4096, 4096, 1024, None),
        (100, 100, 16, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1024, None),
    ],
)
def test_connections_are_as_many_as_there_are_files_for(
    soft: int, hard: int, most: int, set_to: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert listen.room() == most
    assert given == ([] if set_to is None else [(set_to, hard)])
