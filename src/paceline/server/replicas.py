"""The server as a Ray Serve deployment: replicas, each a process with its model and its server.

Ray starts, watches and replaces replicas, and routes requests to them; app.py and service.py answer them.
`paceline serve --replicas` joins this machine's Ray cluster, or starts one. Tested with Ray 2.60."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.loading import load_options
from paceline.server import listen
from paceline.server.affinity import CALLBACK, IMPORT_PATH
from paceline.server.metrics import prometheus_text
from paceline.server.security import App
from paceline.server.settings import ServerSettings, parse_replica_range, with_context
from paceline.settings import make_settings
from paceline.speculative.errors import MissingExtraError, PacelineError, UsageError

if TYPE_CHECKING:
    from ray.serve import Application, Deployment

NAME = "paceline"  # of the application, and of its one deployment
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
FALLBACKS = 7  # further replicas for a request if the first is full; each costs the router a search
CONSTRUCTIONS = 3  # tries to load a model
SCRAPE_SECONDS = 5.0  # that /metrics waits for the other replicas


class Replica:
    """A process with one model and its server, which it closes in `__del__`. Ray calls that when the last
    request has ended, or after `shutdown_timeout` seconds."""

    def __init__(self, settings: ServerSettings) -> None:
        from ray import serve

        self._name = serve.get_replica_context().replica_id.unique_id
        rules = replace(settings.rules(), replica=self._name)
        self._llm = load_options(with_context(settings.loading()))
        self._service, self._app = settings.server(self._llm, rules)
        self._app.router.routes.insert(0, Route("/metrics", self._metrics))  # replaces the server's route

    def __serve_build_asgi_app__(self) -> App:
        """Return the application that Ray serves."""
        return self._app

    def check_health(self) -> None:
        """Raise RuntimeError if the server is unhealthy: Ray replaces a replica that does so a few times."""
        if self._service.unhealthy_reason:
            raise RuntimeError(self._service.unhealthy_reason)

    async def metric_families(self) -> list[Metric]:
        """Return the metrics of this replica, labelled with its name."""
        service = self._service
        return add_replica_label(service.metrics.families(service.running, service.waiting), self._name)

    async def _metrics(self, _: Request) -> Response:
        """Answer with the metrics of all replicas: a scrape reaches any of them."""
        from ray import serve

        handle = serve.get_deployment_handle(NAME, serve.get_replica_context().app_name)
        calls = handle.broadcast("metric_families")
        results = await calls.results_async(timeout_s=SCRAPE_SECONDS, return_exceptions=True)
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


def deployment(settings: ServerSettings) -> Deployment:
    """Return the deployment, without its arguments. Raises MissingExtraError.
    A replica takes twice as many requests as it decodes at once: its KV cache is worth a wait. Further
    requests go to the next replica on the router's ring."""
    try:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
    except ImportError as error:
        raise MissingExtraError(f"replicas need {error.name}: pip install 'paceline[ray]'") from error

    least, most = parse_replica_range(settings.replicas)
    bounds: Any = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": settings.sessions}
    scales = {"autoscaling_config": AutoscalingConfig(**bounds)} if least < most else {"num_replicas": least}
    return serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        max_ongoing_requests=2 * settings.sessions,
        max_queued_requests=max(1, settings.queue),  # 0 would refuse requests that are not yet routed
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1.0),
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=5.0,
        logging_config={"enable_access_log": False},  # security.py logs requests
        max_constructor_retry_count=CONSTRUCTIONS,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"num_fallback_replicas": min(FALLBACKS, most - 1)},
        ),
        **scales,
    )(serve.ingress()(Replica))


def build(args: ServerSettings | dict[str, Any]) -> Application:
    """Return the application; `import_path: paceline.server.replicas:build` in a file for `serve deploy`.
    Raises UsageError and MissingExtraError."""
    settings = args if isinstance(args, ServerSettings) else make_settings(ServerSettings, args)
    return deployment(settings).bind(settings)


def run(settings: ServerSettings, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; then streams have `shutdown_timeout` seconds to end.
    Raises MissingExtraError, UsageError for a port that is taken or too few resources, and PacelineError if
    the replicas do not start."""
    application = build(settings)
    listen.bind(host, port).close()

    import ray
    from ray import serve

    is_local = connect_or_start_ray(settings.quiet)
    try:
        if is_local:
            check_cluster_resources(settings, ray.cluster_resources())
        serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
        try:
            serve.run(application, name=NAME, route_prefix="/")
            print(f"{settings.replicas} replicas at http://{host}:{port}/v1", file=sys.stderr)
            wait_for_signal()
        except RuntimeError as error:
            reason = start_failure_reason() or error
            raise PacelineError(f"the replicas have not started: {reason}") from error
        finally:
            delete_application(is_local)
    finally:
        ray.shutdown()
    return 0


def check_cluster_resources(settings: ServerSettings, has: Mapping[str, float]) -> None:
    """Raise UsageError if the replicas need more than the cluster has: they would wait for ever.
    has: resources of a cluster that does not grow, by Ray's names."""
    least, _ = parse_replica_range(settings.replicas)
    for name, each in (("CPU", settings.num_cpus), ("GPU", settings.num_gpus)):
        if least * each > has.get(name, 0.0):
            there = f"and this machine has {has.get(name, 0.0):g}"
            advice = f"say fewer --replicas, or less --replica-{name.lower()}s for each"
            raise UsageError(f"{least} replicas reserve {least * each:g} {name}s, {there}: {advice}")


def start_failure_reason() -> str:
    """Return the last line of the error of the last replica that Ray tried; empty if Ray has none."""
    from ray import serve

    application = serve.status().applications.get(NAME)
    deployed = None if application is None else application.deployments.get(NAME)
    return "" if deployed is None else str(deployed.message).strip().rpartition("\n")[2]


def connect_or_start_ray(quiet: bool) -> bool:
    """Join the cluster of this machine, or start one; true if this process has started it."""
    import ray

    logs = {"log_to_driver": not quiet, "logging_level": "warning"}
    try:
        ray.init(address="auto", **logs)
    except ConnectionError:
        os.environ.setdefault(CALLBACK, IMPORT_PATH)  # Ray's proxies inherit it
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, **logs)
        return True
    return False


def wait_for_signal() -> None:
    """Wait for SIGINT or SIGTERM. This replaces Ray's handlers, which would not let streams end."""
    over = threading.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: over.set())
    while not over.wait(1.0):
        pass


def delete_application(is_local: bool) -> None:
    """Delete the application; shut Ray Serve down too on a local cluster, which has no other applications."""
    from ray import serve

    while True:
        try:
            serve.delete(NAME)
            break
        except TimeoutError:  # after a minute; streams may take longer
            continue
    if is_local:
        serve.shutdown()
