"""The plain answers of a bench, recorded for replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from paceline.api import LLM
from paceline.bench.replay.recording import Recorder
from paceline.bench.suites.workload import Item
from paceline.bench.system import BenchRequest
from paceline.request_handle import Generation
from paceline.speculative.sampling import Sampling

GREEDY = Sampling()


def todo(asks: Mapping[str, BenchRequest]) -> list[tuple[str, BenchRequest]]:
    """By item: all of them greedily, and then as they were asked those that draw."""
    greedy = [
        (id_, ask if ask.sampling.greedy else replace(ask, sampling=GREEDY)) for id_, ask in asks.items()
    ]
    return greedy + [(id_, ask) for id_, ask in asks.items() if not ask.sampling.greedy]


def record(
    recorder: Recorder,
    llm: LLM,
    asks: Mapping[str, BenchRequest],
    items: Mapping[str, Item],
    tick: Callable[[str], None],
) -> None:
    """tick: told of each."""
    for id_, ask in todo(asks):
        if recorder.adding:
            said, item = answered(llm, ask, recorder.top_k), items[id_]
            recorder.add(
                ask.tokens,
                said,
                id_=id_,
                sampling=ask.sampling,
                seed=ask.seed,
                category=item.category,
                session=item.session,
            )
        tick("record")


def answered(llm: LLM, ask: BenchRequest, top_k: int) -> Generation:
    """A plain answer, and how long it took when nothing was asked for beside it."""

    def generated(logprobs: int | None) -> Generation:
        llm.target.forget()
        return llm.generate(
            ask.tokens,
            max_tokens=ask.max_tokens,
            seed=ask.seed,
            ignore_eos=ask.ignore_eos,
            plain=True,
            logprobs=logprobs,
            **asdict(ask.sampling),
        )

    said = generated(None)
    return replace(said, logprobs=generated(top_k).logprobs) if top_k else said
