"""A thousand requests on one model, up to eight in a pass: each gets its text, as alone and plainly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import paceline
from paceline.backends.llama_cpp import kernels
from paceline.speculative.sampling import Sampling
from paceline.speculative.scheduler import ScheduledRequest, Scheduler
from stage import add_to

REQUESTS, TOGETHER = 1000, 8
CHUNK = 16  # tokens of prompts in a pass: several requests share it, and some prompts need two
TREES: dict[str, Any] = {
    "drafters": "lookup,model",
    "width": 3,
    "n_draft": 6,
    "p_split": 0.01,
    "p_min": 0.0,
    "ngram_min": 1,
}
GIVEN: dict[str, Any] = {"threads": 1, "n_ctx": 64}


@dataclass(frozen=True)
class Ask:
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    seed: int

    def add_to(self, scheduler: Scheduler) -> ScheduledRequest:
        return add_to(
            scheduler,
            self.prompt,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            seed=self.seed,
            ignore_eos=True,
        )


def asks() -> list[Ask]:
    """Half of them greedy. Prompts repeat themselves, and each other's beginnings."""
    random = Random(0)
    made = []
    for seed in range(REQUESTS):
        few = random.choices(range(256), k=random.randint(2, 12))
        start = [5, 6, 7, 8] if random.random() < 0.3 else []
        prompt = (start + random.choices(few, k=24))[: random.randint(4, 24)]
        sampling = Sampling()
        if random.random() < 0.5:
            temperature, top_k = random.choice((0.3, 0.8, 1.5)), random.choice((0, 5, 40))
            sampling = Sampling(temperature=temperature, top_k=top_k, top_p=random.choice((0.8, 1.0)))
        made.append(Ask(prompt, random.randint(4, 12), sampling, seed))
    return made


@pytest.fixture(scope="module", autouse=True)
def entered() -> None:
    if not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)


def plain_texts(models: Path, todo: list[Ask]) -> list[list[int]]:
    """Return the tokens of each request, generated one after the other without drafts."""
    out = []
    with paceline.load(models / "target.gguf", drafters="none", **GIVEN) as llm:
        for ask in todo:
            scheduler = Scheduler(llm.target, llm.drafter, llm.policy)
            job = ask.add_to(scheduler)
            out.append([token for _, step in _steps(scheduler) for token in step.tokens])
            assert job.state == "done"
    return out


def _steps(scheduler: Scheduler) -> Iterator[tuple[ScheduledRequest, Any]]:
    while not scheduler.idle:
        yield from scheduler.step()


def test_a_thousand_requests_that_share_passes_get_their_plain_texts(models: Path) -> None:
    todo = asks()
    right = plain_texts(models, todo)
    random, accepted, together = Random(1), Counter[str](), Counter[int]()
    texts: dict[ScheduledRequest, list[int]] = {}
    given = GIVEN | TREES | {"sessions": TOGETHER}
    with paceline.load(models / "target.gguf", models / "draft.gguf", **given) as llm:
        scheduler = Scheduler(llm.target, llm.drafter, llm.policy, chunk=CHUNK)
        while len(texts) < REQUESTS or not scheduler.idle:
            if len(texts) < REQUESTS and len(scheduler.waiting) < TOGETHER and random.random() < 0.5:
                for ask in todo[len(texts) : len(texts) + random.randint(1, 2 * TOGETHER)]:
                    texts[ask.add_to(scheduler)] = []
            for job, step in scheduler.step():
                texts[job] += step.tokens
                accepted.update(step.accepted)
            together[len(scheduler.running)] += 1
    assert [job.error for job in texts if job.state != "done"] == []
    wrong = [i for i, (text, plain) in enumerate(zip(texts.values(), right, strict=True)) if text != plain]
    assert wrong == []
    assert min(accepted["lookup"], accepted["model"]) > 50  # both had guesses that were right
    assert together[TOGETHER] > 100
