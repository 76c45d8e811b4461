"""Prometheus metrics: vLLM's names with the prefix `paceline:`, and again with `vllm:`.

`vllm bench serve` and many dashboards read lines that begin with `vllm:spec_decode`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from paceline.request_handle import Finish
from paceline.speculative.stats import TIME_PARTS, Step

OWN, ALIAS = "paceline:", b"vllm:"
PREFIX = re.compile(rb"^((?:# (?:HELP|TYPE) )?)paceline:", re.MULTILINE)
LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_TIME_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
MAX_DRAFT_POSITIONS = 64  # that have a counter each


class Metrics:
    """Metrics that the engine's thread updates; any thread may read them."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(OWN + name, about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...] = LATENCY_BUCKETS) -> Histogram:
            return Histogram(OWN + name, about, registry=registry, buckets=buckets)

        self.running = Gauge(OWN + "num_requests_running", "Requests in a session.", registry=registry)
        self.waiting = Gauge(OWN + "num_requests_waiting", "Requests in the queue.", registry=registry)
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._query = counter("prefix_cache_queries", "Tokens of prompts that were looked for in the cache.")
        self._hits = counter("prefix_cache_hits", "Tokens of prompts that were in the cache.")
        self._generated = counter("generation_tokens", "Tokens of answers.")
        self._drafts = counter("spec_decode_num_drafts", "Drafts that were verified.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Tokens of drafts.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Tokens of drafts that were accepted.")
        self._accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos", "The same, by position in the draft.", "position"
        )
        self._by_drafted = counter("draft_tokens", "Tokens of drafts, by drafter.", "drafter")
        self._by_accepted = counter("accepted_tokens", "Accepted tokens, by drafter.", "drafter")
        self._seconds = counter("step_seconds", "Where steps spend their time.", "part")
        self._success = counter("request_success", "Requests that ended, by reason.", "finished_reason")
        self._failed = counter("request_failure", "Requests that ended otherwise.", "reason")
        self._refused = counter("requests_refused", "Requests that were not taken, by HTTP status.", "status")
        self._first = histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._queue = histogram("request_queue_time_seconds", "From arrival to a session.")
        about = "Mean time between the tokens of a request."
        self._each = histogram("request_time_per_output_token_seconds", about, TOKEN_TIME_BUCKETS)
        self._whole = histogram("e2e_request_latency_seconds", "From arrival to the last token.")

    def step(self, step: Step) -> None:
        for part in TIME_PARTS:
            self._seconds.labels(part).inc(max(0.0, getattr(step.times, part)))
        self._generated.inc(len(step.tokens))
        if not step.drafted:
            return
        self._drafts.inc()
        for name, n in step.drafted.items():
            self._drafted.inc(n)
            self._by_drafted.labels(name).inc(n)
        for name, n in step.accepted.items():
            self._accepted.inc(n)
            self._by_accepted.labels(name).inc(n)
        for position in range(min(sum(step.accepted.values()), MAX_DRAFT_POSITIONS)):
            self._accepted_at.labels(str(position)).inc()

    def end(self, end: Finish) -> None:
        self._prompt.inc(end.n_prompt)
        self._query.inc(end.n_prompt)
        self._hits.inc(end.n_cached)
        if end.reason is not None:
            self._success.labels("stop" if end.reason in ("eos", "stop") else "length").inc()
        else:
            self._failed.labels("cancelled" if end.error is None else type(end.error).__name__).inc()
        if end.n_tokens:
            self._first.observe(end.first_token_seconds)
            self._queue.observe(end.queue_seconds)
            self._whole.observe(end.first_token_seconds + end.decode_seconds)
        if end.n_tokens > 1 and end.reason is not None:
            self._each.observe(end.decode_seconds / (end.n_tokens - 1))

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def families(self, running: int, waiting: int) -> list[Metric]:
        self.running.set(running)
        self.waiting.set(waiting)
        return list(self._registry.collect())

    def text(self, running: int, waiting: int) -> bytes:
        return prometheus_text(self.families(running, waiting))


def prometheus_text(families: Sequence[Metric]) -> bytes:
    """Return the metrics in Prometheus' text format, under both prefixes."""
    text = generate_latest(cast("Collector", SimpleNamespace(collect=lambda: families)))
    return text + PREFIX.sub(rb"\1" + ALIAS, text)
