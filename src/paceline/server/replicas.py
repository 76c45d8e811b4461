"""The server as a Ray Serve deployment: replicas, each a process with its model and its server.

Ray starts, watches and replaces replicas, and routes requests to them; app.py and service.py answer them.
Tested with Ray 2.60.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI
from prometheus_client.metrics_core import Metric
from pydantic import ConfigDict, Field, field_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.api import LLM
from paceline.loading import load
from paceline.models.resolve import default_name
from paceline.server import app, listen
from paceline.server.metrics import prometheus_text
from paceline.server.security import App, SecurityRules
from paceline.server.service import PREFILL_CHUNK_TOKENS, Positive, ServerLimits, ServingEngine
from paceline.speculative.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from ray.serve import Application, Deployment

NAME = "paceline"  # of the application, and of its one deployment
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
FALLBACKS = 7  # further replicas for a request if the first is full; each costs the router a search
CONSTRUCTIONS = 3  # tries to load a model
SCRAPE_SECONDS = 5.0  # that /metrics waits for the other replicas


class ReplicaSettings(ServerLimits):
    """The options of `paceline serve`, by the same names; `args` in a file for `serve deploy`.

    load: arguments of `paceline.load` (target, draft, drafters, n_ctx, ...); paths are those of the nodes.
    alias: names of the model that requests may use.
    replicas: "4", or "2..8" for autoscaling.
    num_cpus, num_gpus: resources that each replica reserves; by default it has a thread for each CPU.
    release: any text. A change of it replaces the replicas when the application is deployed again.
    """

    load: dict[str, Any] = Field(default_factory=dict)
    alias: list[str] = Field(default_factory=list)
    api_key: list[str] = Field(default_factory=list)
    api_key_file: Path | None = None
    hosts: list[str] = Field(default_factory=list)
    trusted_proxy: list[str] = Field(default_factory=list)
    sessions: Annotated[int, Field(ge=1)] = 4
    body_limit: Positive = 8.0
    grace: Positive = 30.0
    chunk: Annotated[int, Field(ge=1)] = PREFILL_CHUNK_TOKENS
    log_json: bool = False
    quiet: bool = False
    replicas: str = "1"
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    release: str = ""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # YAML reads 4 as a number

    @field_validator("replicas")
    @classmethod
    def _validate_replicas(cls, replicas: str) -> str:
        parse_replica_range(replicas)
        return replicas

    def rules(self) -> SecurityRules:
        keys, file = list(self.api_key), self.api_key_file
        if file is not None:
            in_file = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            if not in_file:  # a server without keys would answer everybody
                raise UsageError(f"{file}: holds no key; write one a line")
            keys += in_file
        return SecurityRules(keys, self.hosts, self.trusted_proxy, round(self.body_limit * 1e6))

    def server(self, llm: LLM, replica: str = "") -> tuple[ServingEngine, FastAPI]:
        """Return the engine of a loaded model, and its ASGI application. replica: name in responses."""
        listen.configure_logging(self.log_json, self.quiet)
        service = ServingEngine(llm, self, chunk=self.chunk)
        names = self.alias or [default_name(str(self.loading()["target"]))]
        return service, app.create(service, names, replace(self.rules(), replica=replica))

    def loading(self) -> dict[str, Any]:
        """Return a replica's arguments of `load`."""
        given = {"target": "zoo:smollm2", **self.load, "sessions": self.sessions}
        if given.get("threads") is None and self.num_cpus >= 1:
            given["threads"] = int(self.num_cpus)
        return given


def parse_replica_range(replicas: str) -> tuple[int, int]:
    """Return the bounds of "4" or "2..8". Raises ValueError, which pydantic expects, for anything else."""
    matched = re.fullmatch(r"(\d{1,5})(?:\.\.(\d{1,5}))?", replicas)
    least, most = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(f"{replicas!r}: say how many, 4 or 2..8")
    return least, most


class Replica:
    """A process with one model and its server, which it closes in `__del__`. Ray calls that when the last
    request has ended, or after `grace` seconds."""

    def __init__(self, settings: ReplicaSettings) -> None:
        from ray import serve

        self._name = serve.get_replica_context().replica_id.unique_id
        self._llm = load(**settings.loading())
        self._service, self._app = settings.server(self._llm, self._name)
        self._app.router.routes.insert(0, Route("/metrics", self._metrics))  # replaces the server's route

    def __serve_build_asgi_app__(self) -> App:
        """Return the application that Ray serves."""
        return self._app

    def check_health(self) -> None:
        """Raise RuntimeError if the server is unhealthy: Ray replaces a replica that does so a few times."""
        if self._service.health:
            raise RuntimeError(self._service.health)

    async def metric_families(self) -> list[Metric]:
        """Return the metrics of this replica, labelled with its name."""
        service = self._service
        return add_replica_label(service.metrics.families(service.running, service.waiting), self._name)

    async def _metrics(self, _: Request) -> Response:
        """Answer with the metrics of all replicas: a scrape reaches any of them."""
        from ray import serve

        handle = serve.get_deployment_handle(NAME, serve.get_replica_context().app_name)
        results = await handle.broadcast("metric_families").results_async(
            timeout_s=SCRAPE_SECONDS, return_exceptions=True
        )
        replicas = [text for text in results if isinstance(text, list)]  # a dead replica gives an error
        text = await asyncio.to_thread(prometheus_text, merge_metrics(replicas))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def __del__(self) -> None:
        if hasattr(self, "_service"):  # loading may have failed
            self._service.close()
            self._llm.close()


def add_replica_label(families: Sequence[Metric], replica: str) -> list[Metric]:
    for family in families:
        family.samples = [s._replace(labels={**s.labels, "replica": replica}) for s in family.samples]
    return list(families)


def merge_metrics(replicas: Sequence[Sequence[Metric]]) -> list[Metric]:
    """Return each metric once, with the samples of all replicas."""
    merged: dict[str, Metric] = {}
    for family in chain.from_iterable(replicas):
        if merged.setdefault(family.name, family) is not family:
            merged[family.name].samples += family.samples
    return list(merged.values())


def deployment(settings: ReplicaSettings) -> Deployment:
    """Return the deployment, without its arguments. Raises MissingExtraError.

    A replica takes twice as many requests as it decodes at once: its KV cache is worth a wait. Further
    requests go to the next replica on the router's ring."""
    try:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
    except ImportError as error:
        raise MissingExtraError(f"replicas need {error.name}: pip install 'paceline[ray]'") from error

    least, most = parse_replica_range(settings.replicas)
    scaling: dict[str, Any] = {"num_replicas": least}
    if least < most:
        config = AutoscalingConfig(
            min_replicas=least, max_replicas=most, target_ongoing_requests=settings.sessions
        )
        scaling = {"autoscaling_config": config}
    return serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        max_ongoing_requests=2 * settings.sessions,
        max_queued_requests=max(1, settings.queue),  # 0 would refuse requests that are not yet routed
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1.0),
        graceful_shutdown_timeout_s=settings.grace,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=5.0,
        logging_config={"enable_access_log": False},  # security.py logs requests
        max_constructor_retry_count=CONSTRUCTIONS,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"num_fallback_replicas": min(FALLBACKS, most - 1)},
        ),
        **scaling,
    )(serve.ingress()(Replica))


def build(args: ReplicaSettings | dict[str, Any]) -> Application:
    """Return the application; `import_path: paceline.server.replicas:build` in a file for `serve deploy`.

    Raises pydantic's ValidationError for unusable `args`, UsageError and MissingExtraError."""
    settings = ReplicaSettings.model_validate(args)
    if "sessions" in settings.load:
        raise UsageError("load: sessions: say it beside load, for it is how many requests a replica takes")
    return deployment(settings).bind(settings)
