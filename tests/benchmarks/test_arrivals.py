"""Requests at a simulated server, compared with queueing theory and exact sums."""

from __future__ import annotations

from statistics import mean

import pytest
from arrivals import Conversation, Replica, Served, poisson

from paceline.backends.recorded import Recording, numeric_vocab
from paceline.bench.method import parse_all
from paceline.bench.replay.replay import ReplayContext
from paceline.speculative.policy.costs import DecodingCosts, PassCosts

PASS = 0.125  # seconds; sums of eighths are exact
VOCAB = numeric_vocab(1000)


def said(at: int, n_prompt: int = 2, n_tokens: int = 4) -> Recording:
    """Return a recording with unique tokens."""
    tokens = [7 + (at * 31 + i) % 900 for i in range(n_prompt + n_tokens)]
    return Recording(tuple(tokens[:n_prompt]), tuple(tokens[n_prompt:]))


def serve(
    conversations: list[Conversation],
    begins: list[float],
    pause: float = 0.0,
    sessions: int = 1,
    chunk: int = 64,
) -> list[Served]:
    """Serve by plain decoding, with passes of PASS seconds."""
    recordings = [one for conversation in conversations for one in conversation]
    given = ReplayContext(VOCAB, costs=DecodingCosts(PassCosts.flat(PASS, 0.0, 64)))
    made = Replica(parse_all("plain", {})[0], recordings, given, sessions=sessions, chunk=chunk)
    try:
        return made.serve(conversations, begins, lambda: pause)
    finally:
        made.close()


def test_one_request_takes_a_pass_a_token_and_one_more_a_chunk_of_its_prompt() -> None:
    (one,) = serve([[said(0, n_prompt=101)]], [1.0], chunk=50)  # two chunks, and the root
    assert one.arrived == 1.0
    assert one.ttft == 3 * PASS
    assert one.end == 1.0 + (2 + 4) * PASS
    assert one.tpot == PASS
    assert (one.n_prompt, one.n_cached, one.n_tokens) == (101, 0, 4)


def test_a_second_request_waits_for_the_only_session_and_not_for_one_of_two() -> None:
    both: list[Conversation] = [[said(0)], [said(1)]]
    alone = serve(both, [0.0, 0.0])
    assert [one.ttft for one in alone] == [PASS, 5 * PASS]
    together = serve(both, [0.0, 0.0], sessions=2)
    assert [one.ttft for one in together] == [PASS, PASS]
    assert [one.end for one in together] == [4 * PASS, 4 * PASS]


def test_a_turn_follows_the_one_before_after_a_pause_and_reads_only_what_is_new() -> None:
    first = said(0, n_prompt=200)
    prompt = first.prompt + first.tokens + (1, 2, 3)
    second = Recording(prompt, (4, 5))
    a, b = serve([[first, second]], [0.0], pause=10.0)
    assert b.arrived == a.end + 10.0
    assert b.n_cached == len(first.prompt) + len(first.tokens) - 1  # the last token was never computed
    assert b.ttft == PASS


@pytest.mark.slow
def test_waiting_times_are_those_of_a_queue_with_one_server_and_equal_requests() -> None:
    """M/D/1: the mean wait is rho s / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    n, seconds, load = 4000, 4 * PASS, 0.7
    conversations: list[Conversation] = [[said(at % 29)] for at in range(n)]
    served = serve(conversations, poisson(n, load / seconds, seed=1))
    waits = mean(one.ttft - PASS for one in served)
    assert waits == pytest.approx(load * seconds / (2 * (1 - load)), rel=0.1)
