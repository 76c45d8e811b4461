"""`paceline serve --replicas`: on the Ray cluster that this machine belongs to, or on one of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from paceline.core.errors import PacelineError
from paceline.serve import listen
from paceline.serve.affinity import CALLBACK, IMPORT_PATH
from paceline.serve.replicas import NAME, Settings, build

POLL = 0.5  # seconds between two looks at whether all has ended


def run(settings: Settings, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; then streams have `grace` seconds to end. Raises MissingExtraError,
    UsageError for a port that cannot be had, and PacelineError where the replicas do not start."""
    application = build(settings)  # before anything starts: MissingExtraError
    listen.bind(host, port).close()

    import ray
    from ray import serve

    own = join()
    try:
        serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
        try:
            serve.run(application, name=NAME, route_prefix="/")
        except RuntimeError as error:
            raise PacelineError(f"the replicas have not started: {error}") from error
        print(f"{settings.replicas} replicas at http://{host}:{port}/v1", file=sys.stderr)
        wait()
    finally:
        end(own)
        ray.shutdown()
    return 0


def join() -> bool:
    """Whether the cluster is this process' own, since there was none to join."""
    import ray

    quiet = {"log_to_driver": True, "logging_level": "warning"}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        os.environ.setdefault(CALLBACK, IMPORT_PATH)  # what is started from here has it
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, **quiet)
        return True
    return False


def wait() -> None:
    """Until a signal comes. Ray has handlers of its own by now, which would not let streams end."""
    over = threading.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: over.set())
    while not over.wait(1.0):
        pass


def end(own: bool) -> None:
    """The application, and Serve with it where nobody else can have applications in it."""
    from ray import serve

    serve.delete(NAME, _blocking=False)
    while NAME in serve.status().applications:
        time.sleep(POLL)
    if own:
        serve.shutdown()
