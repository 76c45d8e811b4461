"""Replicas on a Ray cluster of three local nodes, through OpenAI's client.

They run alone (`-m serial`): Ray starts some fifteen processes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest

import paceline
from paceline import LLM
from paceline.server.affinity import CALLBACK, IMPORT_PATH
from paceline.server.replicas import NAME, build
from paceline.server.settings import ServerSettings
from paceline.settings import LoadOptions, make_settings

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'paceline[ray]'"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

MODEL = "toy:seed=3,width=256"  # a token takes a tenth of a millisecond
SLOW = "toy:seed=3,width=1024"
EXAMPLE = Path(__file__).parents[2] / "examples" / "replicas.yaml"
PATIENCE = 60.0  # seconds that Ray may take for anything
LENGTH = 48  # tokens of an answer
MEMORY = 80 << 20  # bytes of each node's object store, the least that Ray takes


@dataclass
class Site:
    """A cluster with one application. url: the proxy's. nodes: nodes that can be removed."""

    cluster: Any
    url: str
    nodes: list[Any] = field(default_factory=list)

    def client(self, retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="k", max_retries=retries, timeout=PATIENCE)


def settings() -> ServerSettings:
    load = LoadOptions.of(MODEL, drafters=["lookup"])
    limits: dict[str, Any] = {"sessions": 2, "shutdown_timeout": 20.0}
    return ServerSettings(load=load, alias=("toy",), replicas="3", quiet=True, **limits)


def sources() -> str:
    """Return the package's folder for processes that Ray starts."""
    return str(Path(paceline.__file__).parents[1])


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture
def program(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`paceline serve --replicas 2` on a new cluster, and its URL."""
    port, errors = free_port(), tmp_path / "stderr"
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short, errors.open("w") as stderr:
        # Ray looks there for clusters to join, and for names of sockets the folder must be short.
        environment = os.environ | {"RAY_TMPDIR": short, "PYTHONPATH": sources()}
        words = [sys.executable, "-m", "paceline", "serve", "-m", SLOW, "-c", "100000", "--draft", "none"]
        words += ["--replicas", "2", "--replica-cpus", "0.1", "--alias", "toy", "--port", str(port)]
        started = subprocess.Popen(words, env=environment, stderr=stderr, text=True)
        try:
            until(lambda: "2 replicas at" in errors.read_text() or started.poll() is not None, "it serves")
            assert started.poll() is None, errors.read_text()
            yield started, f"http://127.0.0.1:{port}"
        finally:
            started.terminate()
            started.wait(PATIENCE)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", sources())
        patch.setenv(CALLBACK, IMPORT_PATH)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": MEMORY},
        )
        try:
            nodes = [cluster.add_node(num_cpus=1, object_store_memory=MEMORY) for _ in range(2)]
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            port = free_port()
            # One proxy: those of several nodes of one machine would share its port.
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            serve.run(build(settings()), name=NAME, route_prefix="/")
            yield Site(cluster, f"http://127.0.0.1:{port}", nodes)
            serve.shutdown()
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with paceline.load(MODEL, drafters=["none"]) as plain:
        yield plain


def expected(llm: LLM, at: int) -> str:
    return llm.generate(f"{at:06d}", max_tokens=LENGTH, temperature=1.0, seed=at).text


def asked(site: Site, at: int, *, session: str = "", retries: int = 0) -> tuple[str, str]:
    """Return the text, and the replica's name."""
    said = site.client(retries).completions.with_raw_response.create(
        model="toy",
        prompt=f"{at:06d}",
        max_tokens=LENGTH,
        temperature=1.0,
        seed=at,
        extra_headers={"x-session-id": session or f"session-{at}"},
    )
    return said.parse().choices[0].text, str(said.headers["x-replica"])


def streamed(site: Site, at: int, *, retries: int = 0) -> str:
    """Return a streamed text, starting again if the stream breaks, as a client has to."""
    for left in range(retries, -1, -1):
        try:
            stream = site.client(retries).completions.create(
                model="toy", prompt=f"{at:06d}", max_tokens=LENGTH, temperature=1.0, seed=at, stream=True
            )
            chunks = list(stream)
            if chunks and chunks[-1].choices[0].finish_reason == "length":
                return "".join(chunk.choices[0].text for chunk in chunks)
        except (openai.APIError, OSError):
            if not left:
                raise
        time.sleep(0.2)
    raise AssertionError(f"request {at} never came to its end")


def until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"in {seconds:g} seconds it has not come to this: {what}"
        time.sleep(0.2)


def states() -> Counter[str]:
    """Count the replicas by Ray's state."""
    from ray import serve

    applications = serve.status().applications
    if NAME not in applications:
        return Counter()
    found = applications[NAME].deployments[NAME].replica_states
    return Counter({str(state): n for state, n in found.items() if n})


@dataclass
class Load:
    """Clients in the background, each with one request after the other until the end of the context."""

    ask: Callable[[int], str]
    answers: dict[int, str] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._over = threading.Event()
        self._numbers, self._lock = iter(range(1000, 100_000)), threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(4)]
        for thread in self._threads:
            thread.start()
        return self

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                at = next(self._numbers)
            try:
                self.answers[at] = self.ask(at)
            except Exception as error:
                self.errors.append(error)
            time.sleep(0.05)  # two threads of a machine are enough for the tests, too

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a request did not come to its end"

    def check(self, llm: LLM) -> None:
        """Check that every request has ended with the right text."""
        assert self.errors == []
        assert self.answers
        for at, text in self.answers.items():
            assert text == expected(llm, at), at


def test_ctrl_c_lets_streams_end(program: tuple[subprocess.Popen[str], str]) -> None:
    process, url = program
    stream = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0).completions.create(
        model="toy", prompt="12", max_tokens=3000, temperature=1.0, seed=1, stream=True
    )
    first = next(iter(stream))
    process.send_signal(signal.SIGINT)
    chunks = [first, *stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    with paceline.load(SLOW, drafters=["none"], n_ctx=100_000) as plain:
        text = plain.generate("12", max_tokens=3000, temperature=1.0, seed=1).text
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert process.wait(PATIENCE) == 0


def test_the_example_is_what_ray_and_the_replicas_take() -> None:
    import yaml
    from ray.serve.schema import ServeDeploySchema

    said = ServeDeploySchema.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    (application,) = said.applications
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    args: Any = application.args
    assert make_settings(ServerSettings, args).replicas == "2..8"
    assert build(args)._bound_deployment.name == NAME
    assert [deployment.name for deployment in application.deployments] == [NAME]


def test_every_replica_answers_as_the_model_does_and_streams(site: Site, llm: LLM) -> None:
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda at: asked(site, at), range(16)))
        flowed = list(pool.map(lambda at: streamed(site, at), range(4)))
    texts = [expected(llm, at) for at in range(16)]
    assert [text for text, _ in said] == texts
    assert flowed == texts[:4]
    assert len(set(texts)) > 12  # one could tell them apart
    assert len({replica for _, replica in said}) == 3


def test_a_chat_without_a_session_id_stays_too(site: Site) -> None:
    """(The toy cannot chat; who says so is in the reply.)"""
    first = [[{"role": "user", "content": f"question {at}"}] for at in range(8)]
    later = [*({"role": "assistant", "content": "1"}, {"role": "user", "content": "2"})]
    homes = list[str]()
    for messages in first:
        replicas = set()
        for turn in (messages, messages + later):
            with pytest.raises(openai.BadRequestError, match="no chat template") as told:
                site.client().chat.completions.create(model="toy", messages=turn)  # type: ignore[arg-type]
            replicas.add(told.value.response.headers["x-replica"])
        assert len(replicas) == 1
        homes += replicas
    assert len(set(homes)) > 1


def test_when_a_node_dies_requests_that_are_tried_again_come_to_their_end(site: Site, llm: LLM) -> None:
    with Load(lambda at: asked(site, at, retries=8)[0] if at % 2 else streamed(site, at, retries=8)) as load:
        until(lambda: len(load.answers) > 8, "some answers")
        site.cluster.remove_node(site.nodes.pop(), allow_graceful=False)
        until(lambda: states()["RUNNING"] == 2, "a replica less")
        n = len(load.answers)
        until(lambda: len(load.answers) > n + 8, "some more answers")
        site.nodes.append(site.cluster.add_node(num_cpus=1, object_store_memory=MEMORY))
        until(lambda: states() == {"RUNNING": 3}, "three replicas again")
    load.check(llm)
