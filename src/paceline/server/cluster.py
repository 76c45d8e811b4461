"""`paceline serve --replicas`: on the Ray cluster that this machine belongs to, or on a new local one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping

from paceline.server import listen
from paceline.server.affinity import CALLBACK, IMPORT_PATH
from paceline.server.replicas import NAME, build
from paceline.server.settings import ServerSettings, parse_replica_range
from paceline.speculative.errors import PacelineError, UsageError


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
            raise UsageError(
                f"{least} replicas reserve {least * each:g} {name}s, and this machine has "
                f"{has.get(name, 0.0):g}: say fewer --replicas, or less --replica-{name.lower()}s for each"
            )


def start_failure_reason() -> str:
    """Return the last line of the error of the last replica that Ray tried; empty if Ray has none."""
    from ray import serve

    application = serve.status().applications.get(NAME)
    known = application is not None and NAME in application.deployments
    return application.deployments[NAME].message.strip().rpartition("\n")[2] if known else ""


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
