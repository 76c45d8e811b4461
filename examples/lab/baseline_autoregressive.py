"""Plain decoding, one token a pass: what every speedup is measured against.

    python examples/lab/baseline_autoregressive.py [-n TOKENS]

The loop is written out here: a draft could come before each pass, and stays empty. First on the toy model,
whose numbers are exact, then on the embedded one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import paceline
from paceline.drafters.none import NoDrafter
from paceline.speculative.interfaces import Budget, RequiredOutputs, Target
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.tree import EMPTY

PROMPT = Path(__file__).parents[1] / "prompt.txt"
TOY_PROMPT = [1, 2, 3, 4, 5, 6, 7, 0] * 5
LEAST = 2


@dataclass(frozen=True)
class Run:
    """prefill, decode: seconds."""

    tokens: list[int]
    steps: int
    prefill: float
    decode: float


def plain(target: Target, prompt: Sequence[int], n: int) -> Run:
    drafter, policy = NoDrafter(), FixedPolicy(Budget(depth=0, nodes=0))
    began = perf_counter()
    request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=n, ignore_eos=True))
    target.forward(
        [(request.session, request.session.pending_tokens)], drafter.required_outputs
    )  # the prompt, all at once
    prefilled = perf_counter()
    tokens: list[int] = []
    while request.stop_reason is None:
        ((_, step),) = advance_requests(
            target, drafter, policy, [request]
        )  # draft nothing, one pass, keep its token
        tokens += step.tokens
    ended = perf_counter()
    request.close()
    return Run(tokens, request.stats.steps, prefilled - began, ended - prefilled)


def without_cache(target: Target, prompt: Sequence[int], n: int) -> tuple[list[int], float]:
    """As `plain`, but every token starts over from the beginning of the text."""
    text = list(prompt)
    began = perf_counter()
    for _ in range(n):
        session = target.open()
        session.extend(text)
        (out,) = target.forward([(session, EMPTY)], RequiredOutputs())
        text.append(out.argmax(0))
        session.close()
    return text[len(prompt) :], perf_counter() - began


def report(name: str, prompt: Sequence[int], run: Run) -> None:
    n = len(run.tokens)
    print(f"{name}: {n} tokens in {run.steps} passes, {n / run.steps:.2f} tokens a pass")
    for phase, count, seconds in (("prefill", len(prompt), run.prefill), ("decode", n, run.decode)):
        ms, each, speed = seconds * 1e3, seconds / count * 1e6, count / seconds
        print(f"  {phase:8}{count:5} tokens{ms:10.2f} ms{each:8.0f} us a token{speed:8.0f} tokens/s")
    share = run.prefill / len(prompt) / (run.decode / n)
    print(f"  a token of the prompt took {share:.2f} of the time of a decoded one")


def main() -> None:
    parser = argparse.ArgumentParser(description="Plain decoding on the toy and the embedded model.")
    parser.add_argument("-n", type=int, default=128, help="tokens to decode (default: 128)")
    parser.add_argument("-t", type=int, help="threads (default: one a physical core)")
    options = parser.parse_args()
    n = options.n
    if n < LEAST:
        parser.error(f"-n {n}: must be at least {LEAST}")

    toy = paceline.ToyTarget(n_vocab=8, seed=3)
    plain(toy, TOY_PROMPT, LEAST)  # the first call of anything is slow
    run = plain(toy, TOY_PROMPT, n)
    report("toy model", TOY_PROMPT, run)
    tokens, seconds = without_cache(toy, TOY_PROMPT, n)
    assert tokens == run.tokens, "the cache changed the output"
    slower = seconds / (run.prefill + run.decode)
    print(f"  without a cache: the same tokens in {slower:.1f} times the time")
    print()

    with paceline.load(drafters="none", threads=options.t) as llm:
        prompt = llm.tokens(PROMPT.read_text())
        plain(llm.target, prompt[:1], LEAST)  # the weights come into memory
        run = plain(llm.target, prompt, n)
        report("embedded model", prompt, run)
        generated = llm.generate(prompt, max_tokens=n, ignore_eos=True).tokens
        assert run.tokens == list(generated), "llm.generate() says something else"
        print("  llm.generate(): the same tokens")
    print()
    print(
        "The toy computes its rows one after the other. The embedded model reads its weights once a pass, and"
    )
    print("shares that among the rows: tokens that are known beforehand, as the prompt's are, come cheaper.")
    print("Speculative decoding guesses what follows, to have more tokens that are known beforehand.")


if __name__ == "__main__":
    main()
