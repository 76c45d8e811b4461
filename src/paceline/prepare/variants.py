"""What measurements of a model's variants share: prompts, answers, and the scores of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites import workload
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.request import extend_with_prompt
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import chain
from paceline.storage.variants import Recommendation, store_recommendation
from paceline.system.home import to_stderr

MAX_PROMPT_CHARACTERS = 1200
SCORED_ROWS = 64  # rows of a pass over a text
ANSWERS, SCORING = "answers", "scoring"  # phases

# Takes the number of steps of each phase, and returns a function to call after each step.
Begin = Callable[[Mapping[str, int]], Callable[[str], None]]
Text = tuple[list[int], list[int]]  # a prompt, and the whole model's answer
Scores = tuple[NDArray[np.float64], NDArray[np.int64]]  # nats of each token, and the likeliest token


def short_items(suite: str, n_items: int) -> list[workload.Item]:
    """Return short items of all categories. Raises UsageError if a suite has none."""
    items = workload.load(suite)
    short = [item for item in items if not item.session and workload.length(item) <= MAX_PROMPT_CHARACTERS]
    if not short:
        raise UsageError(f"suite {suite}: holds no item of at most {MAX_PROMPT_CHARACTERS:,} characters")
    return workload.sample_items(short, n_items)


def tokenise_prompts(llm: Any, items: Sequence[workload.Item], n: int) -> Iterator[list[int]]:
    """Yield the tokens of each item's prompt, which must leave room for n more."""
    prompts = RequestBuilder(llm, n=n, sampling=Sampling(), seed=0)
    for item in items:
        yield list(prompts.request(item, {}).tokens)


def generate_answers(llm: Any, items: Sequence[workload.Item], n: int) -> Iterator[Text]:
    """Yield the prompt of each item, and the model's n tokens after it."""
    for prompt in tokenise_prompts(llm, items, n):
        yield prompt, list(llm.generate(prompt, max_tokens=n, ignore_eos=True).tokens)


def score_text(target: Target, tokens: Sequence[int], n_prompt: int = 1) -> Scores:
    """Return the nats of each token of a text after its prompt, and the token that is likeliest there."""
    nats, likeliest = list[float](), list[int]()
    target.forget()
    with closing(target.open()) as session:
        extend_with_prompt(target, session, tokens[:n_prompt])
        for start in range(n_prompt, len(tokens), SCORED_ROWS):
            right = list(tokens[start : start + SCORED_ROWS])
            out = target.forward([(session, chain(right[:-1], "text"))], RequiredOutputs())[0]
            for row, token in enumerate(right):
                logits = np.asarray(out.logits(row), np.float64)
                most = logits.max()
                nats.append(float(most + np.log(np.exp(logits - most).sum()) - logits[token]))
                likeliest.append(int(logits.argmax()))
            session.commit(range(len(right) - 1), right[-1])
    return np.array(nats), np.array(likeliest)


def recommend_lossy(choice: str, models: Mapping[str, Any], lossy: str, effect: str) -> None:
    """Store a lossy choice for the role "speed". models: the target, and the draft if it depends on it."""
    keys = {name: model.identity()["model"] for name, model in models.items()}
    store_recommendation(choice, keys, Recommendation(lossy, effect), to_stderr)
