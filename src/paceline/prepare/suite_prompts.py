"""Short prompts of suites, to measure variants of a model by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from paceline.api import LLM
from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites import workload
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling

MAX_PROMPT_CHARACTERS = 1200
LOADING, ANSWERS = "loading", "answers"  # phases of a measurement

# Takes the number of steps of each phase, and returns a function to call after each step.
Begin = Callable[[Mapping[str, int]], Callable[[str], None]]


def short_items(suite: str, n_items: int, longest: int = MAX_PROMPT_CHARACTERS) -> list[workload.Item]:
    """Return short items of all categories. Raises UsageError if a suite has none."""
    items = workload.load(suite)
    short = [item for item in items if not item.session and workload.length(item) <= longest]
    if not short:
        raise UsageError(f"suite {suite}: holds no item of at most {longest:,} characters")
    return workload.sample_items(short, n_items)


def tokenise_prompts(llm: LLM, items: Sequence[workload.Item], n: int) -> Iterator[list[int]]:
    """Yield the tokens of each item's prompt, which must leave room for n more."""
    prompts = RequestBuilder(llm, n=n, sampling=Sampling(), seed=0)
    for item in items:
        yield list(prompts.request(item, {}).tokens)
