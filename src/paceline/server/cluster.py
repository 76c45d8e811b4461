"""`paceline serve --replicas`: on the Ray cluster that this machine belongs to, or on one of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping

from paceline.server import listen
from paceline.server.affinity import CALLBACK, IMPORT_PATH
from paceline.server.replicas import NAME, ReplicaSettings, build, parse_replica_range
from paceline.speculative.errors import PacelineError, UsageError


def run(settings: ReplicaSettings, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; then streams have `grace` seconds to end. Raises MissingExtraError,
    UsageError for a port that cannot be had, and PacelineError where the replicas do not start."""
    application = build(settings)  # before anything starts: MissingExtraError
    listen.bind(host, port).close()

    import ray
    from ray import serve

    own = connect_or_start_ray(settings.quiet)
    try:
        if own:
            check_cluster_resources(settings, ray.cluster_resources())
        serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
        try:
            serve.run(application, name=NAME, route_prefix="/")
            print(f"{settings.replicas} replicas at http://{host}:{port}/v1", file=sys.stderr)
            wait_for_signal()
        except RuntimeError as error:
            raise PacelineError(
                f"the replicas have not started: {start_failure_reason() or error}"
            ) from error
        finally:
            delete_application(own)
    finally:
        ray.shutdown()
    return 0


def check_cluster_resources(settings: ReplicaSettings, has: Mapping[str, float]) -> None:
    """has: what a cluster that does not grow has to reserve, by Ray's names. Raises UsageError where replicas
    would wait for more for ever."""
    least, _ = parse_replica_range(settings.replicas)
    for name, each in (("CPU", settings.num_cpus), ("GPU", settings.num_gpus)):
        if least * each > has.get(name, 0.0):
            raise UsageError(
                f"{least} replicas reserve {least * each:g} {name}s, and this machine has "
                f"{has.get(name, 0.0):g}: say fewer --replicas, or less --replica-{name.lower()}s for each"
            )


def start_failure_reason() -> str:
    """The last line of what the last replica that was tried said; empty where Ray does not tell."""
    from ray import serve

    application = serve.status().applications.get(NAME)
    known = application is not None and NAME in application.deployments
    return application.deployments[NAME].message.strip().rpartition("\n")[2] if known else ""


def connect_or_start_ray(quiet: bool) -> bool:
    """Whether the cluster is this process' own, since there was none to join."""
    import ray

    logs = {"log_to_driver": not quiet, "logging_level": "warning"}
    try:
        ray.init(address="auto", **logs)
    except ConnectionError:
        os.environ.setdefault(CALLBACK, IMPORT_PATH)  # what is started from here has it
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, **logs)
        return True
    return False


def wait_for_signal() -> None:
    """Until a signal comes. Ray has handlers of its own by now, which would not let streams end."""
    over = threading.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: over.set())
    while not over.wait(1.0):
        pass


def delete_application(own: bool) -> None:
    """The application, and Serve with it where nobody else can have applications in it."""
    from ray import serve

    while True:
        try:
            serve.delete(NAME)
            break
        except TimeoutError:  # it waits a minute, and streams may take longer
            continue
    if own:
        serve.shutdown()
