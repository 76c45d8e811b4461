"""What a server counts about drafting, in Prometheus' text format: vLLM, llama-server and SGLang."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.bench.baselines.replies import MAX_COUNT
from paceline.speculative.errors import MissingExtraError, PeerError
from paceline.speculative.printable import shortened

COUNTED = ("vllm:spec_decode_num_", "llamacpp:spec_decode_num_")  # the second took the first's names
VERIFIED = "sglang:spec_verify_calls_total"
ROWS = "sglang:spec_num_draft_tokens"  # a setting: the rows of a verification, the root among them
MOST_OF_ALL = 1e300  # a float holds it
LONGEST_LINE = 1 << 14  # characters: the parser's time for a line grows with the square of its length


@dataclass(frozen=True)
class DraftCounts:
    """Tokens drafted, and of these accepted."""

    drafted: int
    accepted: int


def read_metrics(name: str, text: str) -> dict[str, float]:
    """Every sample that is a number by its name, summed over its labels: a server counts each of its engines
    apart. Raises PeerError for what is no such text."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise MissingExtraError(
            f"a server's metrics need prometheus-client ({error}): pip install 'paceline[peers]'"
        ) from error
    sums: defaultdict[str, float] = defaultdict(float)
    try:
        if any(len(line) > LONGEST_LINE for line in text.splitlines()):
            raise ValueError(f"a line of more than {LONGEST_LINE:,} characters")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] += sample.value if abs(sample.value) < MOST_OF_ALL else math.nan
    # The parser stumbles over some lines that are none of the format's.
    except (ValueError, IndexError, ArithmeticError) as error:
        said = shortened(str(error))
        raise PeerError(f"{name}: its /metrics is not in Prometheus' format: {said}") from error
    return {sample: value for sample, value in sums.items() if math.isfinite(value)}


def drafts_between(
    before: Mapping[str, float], after: Mapping[str, float], n_tokens: int
) -> DraftCounts | None:
    """Return what was drafted for an answer of `n_tokens`; None if the server does not count it, or counts
    what cannot be."""

    def grown(name: str) -> int:
        return round(after.get(name, 0.0) - before.get(name, 0.0))

    for counted in COUNTED:
        if counted + "draft_tokens_total" in after:
            drafted, accepted = (
                grown(counted + "draft_tokens_total"),
                grown(counted + "accepted_tokens_total"),
            )
            break
    else:
        if VERIFIED not in after or ROWS not in after:
            return None
        # It counts no accepted tokens: they are those that neither a prompt nor a verification itself gave.
        passes = grown(VERIFIED)
        drafted = passes * (round(after[ROWS]) - 1)
        accepted = min(max(0, n_tokens - 1 - passes), drafted)
    return DraftCounts(drafted, accepted) if 0 <= accepted <= drafted <= MAX_COUNT else None
