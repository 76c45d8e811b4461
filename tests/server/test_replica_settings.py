"""What replicas are told, and what they tell, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from paceline.server.cluster import check_room, last_error
from paceline.server.metrics import Metrics, written
from paceline.server.replicas import (
    Replica,
    ReplicaHeaderMiddleware,
    ReplicaSettings,
    bounds,
    build,
    labelled,
    merged,
)
from paceline.server.security import Receive, Send
from paceline.speculative.errors import UsageError


@pytest.mark.parametrize(
    ("said", "meant"), [("1", (1, 1)), ("4", (4, 4)), ("2..8", (2, 8)), ("3..3", (3, 3))]
)
def test_replicas_are_a_number_or_a_range(said: str, meant: tuple[int, int]) -> None:
    assert bounds(said) == meant


@pytest.mark.parametrize("said", ["", "0", "x", "4..2", "-1", "1..", "..3", "1...3", "1.5", "0..2", "999999"])
def test_anything_else_is_refused_with_what_to_write(said: str) -> None:
    with pytest.raises(ValidationError, match=r"say how many, 4 or 2\.\.8"):
        ReplicaSettings(replicas=said)


def test_yaml_may_say_a_number() -> None:
    assert ReplicaSettings.model_validate({"replicas": 3}).most == 3


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        ReplicaSettings.model_validate({"session": 3})


def test_sessions_are_said_once() -> None:
    with pytest.raises(UsageError, match="beside load"):
        build(ReplicaSettings(load={"sessions": 2}))


@pytest.mark.parametrize(
    ("given", "cpus", "threads"),
    [({}, 4.0, 4), ({}, 0.5, None), ({"threads": 2}, 4.0, 2), ({"threads": None}, 3.0, 3)],
)
def test_a_replica_has_as_many_threads_as_it_reserves_cpus(
    given: dict[str, Any], cpus: float, threads: int | None
) -> None:
    assert ReplicaSettings(load=given, num_cpus=cpus).loading().get("threads") == threads


def test_replicas_that_this_machine_has_no_room_for_are_refused() -> None:
    settings = ReplicaSettings(replicas="2..8", num_cpus=3.0)
    check_room(settings, {"CPU": 6.0})
    with pytest.raises(
        UsageError, match=r"2 replicas reserve 6 CPUs, and this machine has 4: .* --replica-cpus"
    ):
        check_room(settings, {"CPU": 4.0})
    with pytest.raises(UsageError, match=r"1 replicas reserve 0\.5 GPUs, and this machine has 0"):
        check_room(ReplicaSettings(num_gpus=0.5), {"CPU": 4.0})


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("", ""),
        (
            "Error:\n  File x\npaceline.speculative.errors.UsageError: no such file: a.gguf\n",
            "no such file: a.gguf",
        ),
        ("Error:\nTypeError: load() got 1\n\n", "TypeError: load() got 1"),
    ],
)
def test_why_a_replica_did_not_start_is_the_last_line_of_its_traceback(told: str, meant: str) -> None:
    assert last_error(told) == meant


def test_a_replica_is_healthy_as_long_as_its_service_is() -> None:
    service = SimpleNamespace(health="", close=lambda: None)
    replica = object.__new__(Replica)
    replica._service, replica._llm = service, service  # type: ignore[assignment]  # what is asked of them
    replica.check_health()
    service.health = "the model failed"
    with pytest.raises(RuntimeError, match="the model failed"):
        replica.check_health()


def test_the_metrics_of_replicas_are_one_text_with_their_names() -> None:
    first, second = Metrics(), Metrics()
    first.refused(429)
    second.refused(429)
    text = written(
        merged([labelled(one.families(3, 2), name) for one, name in ((first, "a"), (second, "b"))])
    )
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    for prefix in ("paceline:", "vllm:"):
        refused = families[f"{prefix}requests_refused"].samples
        counts = {one.labels["replica"]: one.value for one in refused if one.name.endswith("_total")}
        assert counts == {"a": 1.0, "b": 1.0}
        assert [one.value for one in families[f"{prefix}num_requests_running"].samples] == [3.0, 3.0]


def test_replies_name_their_replica_and_leave_the_request_s_name_to_the_proxy() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        headers = [(b"X-Request-Id", b"1"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"said"})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(ReplicaHeaderMiddleware(app, "abc")({"type": "http"}, receive, send))
    assert sent[0]["headers"] == [(b"content-type", b"text/plain"), (b"x-replica", b"abc")]
    assert sent[1] == {"type": "http.response.body", "body": b"said"}
