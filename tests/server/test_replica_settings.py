"""Settings and metrics of replicas, without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import paceline
from paceline.hardware import probe
from paceline.models.headers import header
from paceline.server.metrics import Metrics, prometheus_text
from paceline.server.replicas import add_replica_label, check_cluster_resources, merge_metrics
from paceline.server.security import SecurityRules
from paceline.server.settings import ServerSettings, parse_replica_range, with_context
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError
from real_model import smollm2
from serving import serving


@pytest.mark.parametrize(("given", "bounds"), [("1", (1, 1)), (4, (4, 4)), ("2..8", (2, 8))])
def test_replicas_are_a_number_or_a_range(given: Any, bounds: tuple[int, int]) -> None:
    assert parse_replica_range(ServerSettings(replicas=given).replicas) == bounds


@pytest.mark.parametrize("said", ["", "0", "x", "4..2", "-1", "1..", "..3", "1...3", "1.5", "0..2", "999999"])
def test_anything_else_is_refused_with_what_to_write(said: str) -> None:
    with pytest.raises(UsageError, match=r"say how many, 4 or 2\.\.8"):
        ServerSettings(replicas=said)


@pytest.mark.parametrize(
    ("engine", "trained", "free", "chosen"),
    [
        ({}, 8192, 1 << 40, 8192),
        ({}, 1 << 20, 1 << 40, 32768),
        ({}, 1 << 20, 0, 4096),
        ({}, 2048, 0, 2048),
        ({"sessions": 4}, 1 << 20, 3 << 30, 16896),
        ({"sessions": 4, "cache_type": "f32"}, 1 << 20, 3 << 30, 8448),
        ({"n_ctx": 99}, 8192, 1 << 40, 99),
        ({"gpu_layers": 9}, 8192, 1 << 40, 0),
        ({}, 0, 1 << 40, 0),
    ],
)
def test_the_context_is_the_model_s_as_far_as_memory_goes(
    engine: dict[str, Any], trained: int, free: int, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = header.read_model_facts(Path(smollm2()), tokens=False)
    monkeypatch.setattr(header, "facts_or_note", lambda *_: replace(facts, n_ctx=trained))
    monkeypatch.setattr(probe, "free_memory", lambda: free)
    assert with_context(LoadOptions.of(smollm2(), **engine)).engine.n_ctx == chosen


@pytest.mark.parametrize(
    ("given", "cpus", "threads"),
    [({}, 4.0, 4), ({}, 0.5, None), ({"threads": 2}, 4.0, 2), ({"threads": None}, 3.0, 3)],
)
def test_a_replica_has_as_many_threads_as_it_reserves_cpus(
    given: dict[str, Any], cpus: float, threads: int | None
) -> None:
    made = ServerSettings(load=LoadOptions.of(**given), num_cpus=cpus)
    assert made.loading().engine.threads == threads


def test_replicas_that_this_machine_has_no_room_for_are_refused() -> None:
    settings = ServerSettings(replicas="2..8", num_cpus=3.0)
    check_cluster_resources(settings, {"CPU": 6.0})
    too_few = r"2 replicas reserve 6 CPUs, and this machine has 4: .* --replica-cpus"
    none = r"1 replicas reserve 0\.5 GPUs, and this machine has 0"
    for wanted, words in ((settings, too_few), (ServerSettings(num_gpus=0.5), none)):
        with pytest.raises(UsageError, match=words):
            check_cluster_resources(wanted, {"CPU": 4.0})


def test_the_metrics_of_replicas_are_one_text_with_their_names() -> None:
    first, second = Metrics(), Metrics()
    first.refused(429)
    second.refused(429)
    labelled = [add_replica_label(one.families(3, 2), name) for one, name in ((first, "a"), (second, "b"))]
    text = prometheus_text(merge_metrics(labelled)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for prefix in ("paceline:", "vllm:"):
        refused = families[f"{prefix}requests_refused"].samples
        counts = {one.labels["replica"]: one.value for one in refused if one.name.endswith("_total")}
        assert counts == {"a": 1.0, "b": 1.0}
        assert [sample.value for sample in families[f"{prefix}num_requests_running"].samples] == [3.0, 3.0]


def test_responses_name_the_replica_and_leave_the_request_id_to_rays_proxy() -> None:
    with (
        paceline.load("toy:", drafters="lookup") as llm,
        serving(llm, rules=SecurityRules(replica="one")) as up,
    ):
        for path in ("/health", "/nothing"):
            headers = up.get(path).headers
            assert headers["x-replica"] == "one"
            assert "x-request-id" not in headers
