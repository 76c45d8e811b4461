"""What chance has no part in, on held answers: where a text ends, and tokens that are equally likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.core.decode import ActiveRequest, advance, start
from paceline.core.policy import Fixed
from paceline.core.request import GenerationRequest
from paceline.core.sampling import Sampling, argmax
from paceline.lab.certify.contexts import first_q
from paceline.lab.certify.held import HeldTarget
from paceline.lab.certify.loop import Context, Loop

ENDINGS = 50  # runs after each context


def begun(loop: Loop, context: Context, seed: int) -> ActiveRequest:
    loop.place.at = context.row
    request = GenerationRequest(
        prompt=context.tokens,
        max_tokens=loop.budget.depth + 2,
        sampling=loop.sampling,
        seed=seed,
        ignore_eos=True,
    )
    return start(loop.target, loop.drafter, request, rule=loop.rule)


def overrun(loop: Loop, contexts: Sequence[Context], seed: int) -> int:
    """How many texts went on behind their end, which is the token that is most often drafted and kept."""
    policy, wrong = Fixed(loop.budget), 0
    for number, context in enumerate(contexts):
        q = first_q(loop, context)
        if q is None:
            continue
        end = int(np.minimum(q, loop.p(context)).argmax())
        for seed_of_run in np.random.default_rng([seed, number, 1]).integers(2**32, size=ENDINGS).tolist():
            request = begun(loop, context, seed_of_run)
            request.eos = frozenset({end})
            step = advance(loop.target, loop.drafter, policy, [request])[0][1]
            request.close()
            last = len(step.tokens) - 1
            if end in step.tokens and (step.tokens.index(end) < last or step.stop_reason != "eos"):
                wrong += 1
    return wrong


def misjudged_ties(loop: Loop, contexts: Sequence[Context]) -> int:
    """After how many contexts greedy output was not the lowest of the likeliest tokens, with logits rounded
    to whole numbers, so that many are equal."""
    rounded = HeldTarget(loop.target, np.round(loop.target.rows), loop.place)
    greedy = replace(loop, target=rounded, sampling=Sampling())
    policy, wrong = Fixed(loop.budget), 0
    for context in contexts:
        request = begun(greedy, context, 0)
        tokens = advance(rounded, loop.drafter, policy, [request])[0][1].tokens
        request.close()
        for i, token in enumerate(tokens):
            row = rounded.rows[loop.place.row(tokens[:i], len(rounded.rows))]
            if token != argmax(row):
                wrong += 1
                break
    return wrong
