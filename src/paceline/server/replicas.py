"""The server as a Ray Serve deployment: many replicas of one process' server, each with a model of its own.

Ray starts replicas, watches them, replaces them and spreads requests; what a replica is, and what it answers,
is app.py over service.py. Facts are of Ray 2.60.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.api import LLM
from paceline.loading import load
from paceline.models.resolve import default_name
from paceline.server import app, listen
from paceline.server.metrics import prometheus_text
from paceline.server.security import App, Message, Receive, SecurityRules, Send
from paceline.server.service import PREFILL_CHUNK_TOKENS, ServerLimits, ServingEngine
from paceline.speculative.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from ray.serve import Application, Deployment

NAME = "paceline"  # of the application, and of its one deployment
HEADER = b"x-replica"  # of every reply: who gave it
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
# Replicas that a request may go on to where its own is full. Each costs the router a walk along its ring.
FALLBACKS = 7
CONSTRUCTIONS = 3  # tries to load a model: what is wrong with a setting stays wrong
SCRAPE = 5.0  # seconds that /metrics waits for the other replicas

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, lt=1e6)]


class ReplicaSettings(BaseModel):
    """What `paceline serve` takes, by the same names; `args` in a file for `serve deploy`.

    load: what `paceline.load` takes (target, draft, drafters, n_ctx, threads, gpu_layers, n_draft, ...);
    paths are those of the nodes. alias: what requests may call the model. replicas: "4", or "2..8" for as
    many as there is work for. num_cpus, num_gpus: of a node, which a replica reserves; it decodes with as
    many threads as CPUs where `load` says nothing of them. sampling: temperature, top_k, top_p and min_p of
    requests that do not say. release: any text; another one replaces the
    replicas of an application that is deployed again with the same settings (the model's file has changed).
    """

    model_config = ConfigDict(extra="forbid")

    load: dict[str, Any] = Field(default_factory=dict)
    alias: list[str] = Field(default_factory=list)
    api_key: list[str] = Field(default_factory=list)
    api_key_file: Path | None = None
    hosts: list[str] = Field(default_factory=list)
    trusted_proxy: list[str] = Field(default_factory=list)
    sessions: Annotated[int, Field(ge=1)] = 4
    queue: Count = 64
    per_client: Count = 0
    apart: bool = False
    n_predict: Count = 0
    sampling: dict[str, int | float] = Field(default_factory=dict)
    timeout: Positive = 600.0
    body_limit: Positive = 8.0
    grace: Positive = 30.0
    chunk: Annotated[int, Field(ge=1)] = PREFILL_CHUNK_TOKENS
    log_json: bool = False
    quiet: bool = False
    replicas: str = "1"
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    release: str = ""

    @field_validator("replicas", mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        """YAML has a number where only one is given."""
        text = str(value) if type(value) is int else value
        if isinstance(text, str):
            parse_replica_range(text)
        return text

    @property
    def most(self) -> int:
        return parse_replica_range(self.replicas)[1]

    def rules(self) -> SecurityRules:
        keys, file = list(self.api_key), self.api_key_file
        if file is not None:
            in_file = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            if not in_file:  # without keys anybody could ask
                raise UsageError(f"{file}: holds no key; write one a line")
            keys += in_file
        return SecurityRules(keys, self.hosts, self.trusted_proxy, round(self.body_limit * 1e6))

    def limits(self) -> ServerLimits:
        return ServerLimits(
            queue=self.queue,
            max_per_client=self.per_client,
            request_timeout=self.timeout,
            n_predict=self.n_predict,
            sampling=self.sampling,
            isolate_clients=self.apart,
        )

    def server(self, llm: LLM) -> tuple[ServingEngine, FastAPI]:
        """The engine of a loaded model, and what answers HTTP with it."""
        listen.configure_logging(self.log_json, self.quiet)
        service = ServingEngine(llm, self.limits(), chunk=self.chunk)
        names = self.alias or [default_name(str(self.loading()["target"]))]
        return service, app.create(service, names, self.rules())

    def loading(self) -> dict[str, Any]:
        """Arguments for `load`, in a replica."""
        given = {"target": "zoo:smollm2", **self.load, "sessions": self.sessions}
        if given.get("threads") is None and self.num_cpus >= 1:
            given["threads"] = int(self.num_cpus)
        return given


def parse_replica_range(replicas: str) -> tuple[int, int]:
    """The least and the most of "4" or "2..8". Raises ValueError (pydantic's) for anything else."""
    matched = re.fullmatch(r"(\d{1,5})(?:\.\.(\d{1,5}))?", replicas)
    least, most = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(f"{replicas!r}: say how many, 4 or 2..8")
    return least, most


class Replica:
    """One process, one model, one server. Owns all three until Ray calls `__del__`, which it does when the
    last of its requests has ended, or `grace` seconds are over."""

    def __init__(self, settings: ReplicaSettings) -> None:
        from ray import serve

        self._name = serve.get_replica_context().replica_id.unique_id
        self._llm = load(**settings.loading())
        self._service, self._app = settings.server(self._llm)
        self._app.router.routes.insert(0, Route("/metrics", self._metrics))  # before that of one process

    def __serve_build_asgi_app__(self) -> App:
        """Ray asks for it when this is made."""
        return ReplicaHeaderMiddleware(self._app, self._name)

    def check_health(self) -> None:
        """Ray replaces a replica that raises here a few times. (While Ray itself ends one, nothing is amiss:
        what is still routed to it is answered.)"""
        if self._service.health:
            raise RuntimeError(self._service.health)

    async def metric_families(self) -> list[Metric]:
        """What Prometheus may know of this replica, under its name."""
        service = self._service
        return add_replica_label(service.metrics.families(service.running, service.waiting), self._name)

    async def _metrics(self, _: Request) -> Response:
        """Of all replicas: a scrape reaches any of them."""
        from ray import serve

        handle = serve.get_deployment_handle(NAME, serve.get_replica_context().app_name)
        reported = handle.broadcast("metric_families").results_async(timeout_s=SCRAPE, return_exceptions=True)
        all_of_them = [
            one for one in await reported if isinstance(one, list)
        ]  # one that has died tells nothing
        text = await asyncio.to_thread(prometheus_text, merge_metrics(all_of_them))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def __del__(self) -> None:
        if hasattr(self, "_service"):  # loading may have failed
            self._service.close()
            self._llm.close()


class ReplicaHeaderMiddleware:
    """`app`, whose replies say which replica gave them."""

    def __init__(self, app: App, name: str) -> None:
        self._app, self._name = app, name.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Ray's proxy adds the request's name once more.
                selected = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"x-request-id"]
                message["headers"] = [*selected, (HEADER, self._name)]
            await send(message)

        await self._app(scope, receive, named)


def add_replica_label(families: Sequence[Metric], replica: str) -> list[Metric]:
    for family in families:
        family.samples = [one._replace(labels={**one.labels, "replica": replica}) for one in family.samples]
    return list(families)


def merge_metrics(replicas: Sequence[Sequence[Metric]]) -> list[Metric]:
    """One family of a name, with the samples of all."""
    out: dict[str, Metric] = {}
    for families in replicas:
        for family in families:
            if family.name in out:
                out[family.name].samples += family.samples
            else:
                out[family.name] = family
    return list(out.values())


def deployment(settings: ReplicaSettings) -> Deployment:
    """Without its settings bound: what Ray does with replicas. A request waits in its own replica while as
    many wait there as are decoded, for the sake of what that one remembers; then it goes on to the next on
    the ring. Raises MissingExtraError."""
    try:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
    except ImportError as error:
        raise MissingExtraError(f"replicas need {error.name}: pip install 'paceline[ray]'") from error

    least, most = parse_replica_range(settings.replicas)
    scaled: dict[str, Any] = {"num_replicas": least}
    if least < most:
        scaled = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=least, max_replicas=most, target_ongoing_requests=settings.sessions
            )
        }
    return serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        max_ongoing_requests=2 * settings.sessions,
        max_queued_requests=max(1, settings.queue),  # each is one for a moment, until it is sent on
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1.0),
        graceful_shutdown_timeout_s=settings.grace,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=5.0,
        logging_config={"enable_access_log": False},  # security.py has one
        max_constructor_retry_count=CONSTRUCTIONS,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"num_fallback_replicas": min(FALLBACKS, most - 1)},
        ),
        **scaled,
    )(serve.ingress()(Replica))


def build(args: ReplicaSettings | dict[str, Any]) -> Application:
    """An application; `import_path: paceline.server.replicas:build` in a file for `serve deploy`, whose
    `args` come as they were read. Raises pydantic's ValidationError, UsageError or MissingExtraError."""
    settings = ReplicaSettings.model_validate(args)
    if "sessions" in settings.load:
        raise UsageError("load: sessions: say it beside load, for it is how many requests a replica takes")
    return deployment(settings).bind(settings)
