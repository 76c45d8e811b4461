"""A server on a local port, in a thread beside the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

import httpx2
import uvicorn

from paceline.api import LLM
from paceline.request_handle import Finish, StepOutput
from paceline.server import app, listen
from paceline.server.security import SecurityMiddleware, SecurityRules
from paceline.server.service import ServingEngine
from paceline.server.settings import ServerLimits
from paceline.speculative.request import GenerationRequest

LONG = 60.0  # seconds that nothing here takes


@dataclass(frozen=True)
class Served:
    service: ServingEngine
    server: uvicorn.Server
    port: int
    app: Any

    @property
    def guard(self) -> SecurityMiddleware:
        layer = self.app.middleware_stack
        while not isinstance(layer, SecurityMiddleware):
            layer = layer.app
        return layer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=LONG, **more)

    def post_text(self, path: str, body: str) -> httpx2.Response:
        """Post a body as JSON, whether it is or not."""
        headers = {"content-type": "application/json"}
        return httpx2.post(self.url + path, content=body, headers=headers, timeout=LONG)

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=LONG, **more)

    def text(self, prompt: str, **more: Any) -> str:
        """Return a completion's text."""
        answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **more})
        assert answer.status_code == 200, answer.text
        said: str = answer.json()["choices"][0]["text"]
        return said

    def rest(self) -> None:
        """Wait until no request waits or runs."""
        until(lambda: idle(self.service))


def idle(service: ServingEngine) -> bool:
    return not (service.running or service.waiting)


def until(holds: Any, message: Any = lambda: "") -> None:
    """Wait until a condition holds. message: returns the message of the failure."""
    end = monotonic() + LONG
    while not holds():
        assert monotonic() < end, message()
        sleep(0.01)


class Gate:
    """Holds a model's passes, or makes them fail."""

    def __init__(self, target: Any) -> None:
        self._forward, self._inside = target.forward, threading.Semaphore(0)
        self.open, self._allowed = threading.Event(), threading.Semaphore(0)
        self.open.set()
        self.error: BaseException | None = None
        target.forward = self

    def __call__(self, *args: Any) -> Any:
        if not self.open.is_set():
            self._inside.release()
            assert self._allowed.acquire(timeout=LONG)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self._forward(*args)

    def shut(self) -> None:
        """Hold the next pass."""
        self.open.clear()

    def held(self) -> None:
        """Wait until the held pass has begun."""
        assert self._inside.acquire(timeout=LONG)

    def one(self) -> None:
        """Let the held pass end, and hold the next."""
        self._allowed.release()
        self.held()

    def go(self) -> None:
        """Let the held pass and all later ones end."""
        self.open.set()
        self._allowed.release()


class Answer:
    """The outputs of one request, from the engine's thread."""

    def __init__(self) -> None:
        self.updates: list[StepOutput] = []
        self._over = threading.Event()

    def take(self, _: int, update: StepOutput) -> None:
        assert not self._over.is_set()
        self.updates.append(update)
        if update.finish is not None:
            self._over.set()

    @property
    def end(self) -> Finish:
        assert self._over.wait(LONG)
        end = self.updates[-1].finish
        assert end is not None
        return end

    @property
    def text(self) -> str:
        assert self.end.error is None
        return "".join(update.text for update in self.updates)

    @property
    def tokens(self) -> list[int]:
        return [token for update in self.updates for token in update.tokens]


def submit(service: ServingEngine, request: GenerationRequest, client: str = "a") -> Answer:
    """Submit a client's request with the service's timeout."""
    return submit_all(service, [request], client)[0]


def submit_all(service: ServingEngine, requests: Sequence[GenerationRequest], client: str) -> list[Answer]:
    answers = [Answer() for _ in requests]
    given = [replace(request, client=client, timeout=service.limits.timeout) for request in requests]
    service.submit(given, lambda at, update: answers[at].take(at, update))
    return answers


@contextmanager
def serving(
    llm: LLM,
    limits: ServerLimits | None = None,
    rules: SecurityRules | None = None,
    names: Sequence[str] = ("small",),
    patience: float = LONG,
    **service: Any,
) -> Iterator[Served]:
    """Run a server. patience: seconds until a stalled connection is aborted."""
    listening = listen.bind("127.0.0.1", 0)
    served = ServingEngine(llm, limits, **service)
    made = app.create(served, names, rules or SecurityRules(hosts=("127.0.0.1",)))
    server = uvicorn.Server(listen.uvicorn_config(made, 5.0, patience))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    try:
        thread.start()
        until(lambda: server.started)
        yield Served(served, server, listening.getsockname()[1], made)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        served.close()
