"""Requests that arrive at a simulated server, beside what queueing theory says and what can be added up."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from paceline import zoo
from paceline.core.cost import Cost, Costs
from paceline.core.errors import UsageError
from paceline.engines.llama import LlamaTarget
from paceline.engines.recorded import Recording, numbered
from paceline.lab.bench.method import parse_all
from paceline.lab.replay.arrivals import Conversation, Replica, Served, poisson, thinking
from paceline.lab.replay.lane import Means
from paceline.lab.replay.reading import agreeing

PASS = 0.125  # seconds; sums of eighths are exact
VOCAB = numbered(1000)


def means(per_row: float = 0.0, step: float = 0.0, rows: int = 64) -> Means:
    return Means(VOCAB, costs=Costs(Cost.flat(PASS, per_row, rows), step=step))


def said(at: int, n_prompt: int = 2, n_tokens: int = 4) -> Recording:
    """Tokens that no other has."""
    tokens = [7 + (at * 31 + i) % 900 for i in range(n_prompt + n_tokens)]
    return Recording(tuple(tokens[:n_prompt]), tuple(tokens[n_prompt:]))


def replica(
    conversations: list[Conversation], given: Means, method: str = "plain", sessions: int = 1, chunk: int = 64
) -> Replica:
    chosen = parse_all(method, {})[-1]  # plain decoding is always there, and the first
    recordings = [one for conversation in conversations for one in conversation]
    return Replica(chosen, recordings, given, sessions=sessions, chunk=chunk)


def serve(
    conversations: list[Conversation], begins: list[float], given: Means, pause: float = 0.0, **more: Any
) -> list[Served]:
    made = replica(conversations, given, **more)
    try:
        return made.serve(conversations, begins, lambda: pause)
    finally:
        made.close()


def test_one_request_takes_a_pass_a_token_and_one_more_a_chunk_of_its_prompt() -> None:
    (one,) = serve([[said(0, n_prompt=101)]], [1.0], means(), chunk=50)  # two chunks, and the root
    assert one.arrived == 1.0
    assert one.ttft == 3 * PASS
    assert one.end == 1.0 + (2 + 4) * PASS
    assert one.tpot == PASS
    assert (one.n_prompt, one.n_cached, one.n_tokens) == (101, 0, 4)


def test_a_short_prompt_is_read_with_the_first_token_and_costs_its_rows() -> None:
    (one,) = serve([[said(0, n_prompt=9)]], [0.0], means(per_row=PASS / 2))
    assert one.ttft == PASS + 8 * PASS / 2


def test_a_second_request_waits_for_the_only_session_and_not_for_one_of_two() -> None:
    both: list[Conversation] = [[said(0)], [said(1)]]
    alone = serve(both, [0.0, 0.0], means())
    assert [one.ttft for one in alone] == [PASS, 5 * PASS]
    together = serve(both, [0.0, 0.0], means(), sessions=2)
    assert [one.ttft for one in together] == [PASS, PASS]
    assert [one.end for one in together] == [4 * PASS, 4 * PASS]


def test_one_that_arrives_during_a_pass_joins_the_next() -> None:
    second = serve([[said(0)], [said(1)]], [0.0, 1.5 * PASS], means(), sessions=2)[1]
    assert second.first == 3 * PASS


def test_the_step_of_each_request_costs_beside_the_pass() -> None:
    served = serve([[said(0)], [said(1)]], [0.0, 0.0], means(step=1.0), sessions=2)
    assert served[0].end == 4 * (PASS + 2.0)


def test_a_turn_follows_the_one_before_after_a_pause_and_reads_only_what_is_new() -> None:
    first = said(0, n_prompt=200)
    prompt = first.prompt + first.tokens + (1, 2, 3)
    second = Recording(prompt, (4, 5))
    a, b = serve([[first, second]], [0.0], means(), pause=10.0)
    assert b.arrived == a.end + 10.0
    assert b.n_cached == len(first.prompt) + len(first.tokens) - 1  # the last token was never computed
    assert b.ttft == PASS


def test_what_another_request_has_overwritten_is_read_again() -> None:
    first, other = said(0, n_prompt=200), said(1, n_prompt=200)
    second = Recording(first.prompt + first.tokens, (4, 5))
    served = serve([[first, second], [other]], [0.0, 1.0], means(), pause=10.0, chunk=50)
    assert [one.n_cached for one in served] == [0, 0, 0]
    kept = serve([[first, second], [other]], [0.0, 1.0], means(), pause=10.0, sessions=2, chunk=50)
    assert [one.n_cached for one in kept] == [0, 0, 203]


def test_drafts_save_passes_and_the_policy_sees_the_clock_of_the_simulation() -> None:
    text = tuple(range(10, 20)) * 6
    one = Recording(text[:30], text[30:])
    plain = replica([[one]], means())
    drafted = replica([[one]], means(), "lookup")
    auto = replica([[one]], means(), "auto")
    ends = []
    for made in (plain, drafted, auto):
        ends.append(made.serve([[one]], [0.0], lambda: 0.0)[0].end)
        made.close()
    assert ends[0] == 30 * PASS
    assert ends[1] == 4 * PASS  # seven drafted tokens and one more a pass
    assert ends[2] < ends[0] / 2
    assert drafted.stats.acceptance_rate is not None


def test_waiting_times_are_those_of_a_queue_with_one_server_and_equal_requests() -> None:
    """M/D/1: the mean wait is rho s / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    n, seconds, load = 4000, 4 * PASS, 0.7
    conversations: list[Conversation] = [[said(at % 29)] for at in range(n)]
    served = serve(conversations, poisson(n, load / seconds, seed=1), means())
    waits = mean(one.ttft - PASS for one in served)
    assert waits == pytest.approx(load * seconds / (2 * (1 - load)), rel=0.1)


def test_it_can_forget_what_it_has_learned_and_computed() -> None:
    one = said(0, n_prompt=200)
    made = replica([[one]], means(), "suffix")
    try:
        first = made.serve([[one]], [0.0], lambda: 0.0)[0]
        again = made.serve([[one]], [0.0], lambda: 0.0)[0]
        made.forget()
        anew = made.serve([[one]], [0.0], lambda: 0.0)[0]
    finally:
        made.close()
    assert (first.n_cached, again.n_cached, anew.n_cached) == (0, 199, 0)
    assert anew.end - anew.arrived == first.end - first.arrived > again.end - again.arrived


def test_arrivals_are_poisson_and_pauses_exponential() -> None:
    begins = poisson(20_000, 4.0, seed=3)
    assert begins == sorted(begins)
    assert begins[-1] / 20_000 == pytest.approx(0.25, rel=0.05)
    pause = thinking(2.0, seed=3)
    assert mean(pause() for _ in range(20_000)) == pytest.approx(2.0, rel=0.05)
    assert thinking(0.0, seed=3)() == 0.0


def test_costs_have_to_be_known() -> None:
    with pytest.raises(UsageError, match="paceline doctor --json"):
        replica([[said(0)]], replace(means(), costs=None))


def test_texts_agree_as_far_as_they_do() -> None:
    assert [agreeing([1, 2, 3], other) for other in ([], [1], [1, 2, 4], [1, 2, 3, 4])] == [0, 1, 2, 3]


def test_a_draft_model_serves_one_replica_after_the_other() -> None:
    draft: Any = LlamaTarget(zoo.draft_path(), n_ctx=256)
    try:
        tokens = draft.text.encode("def add(a, b):\n    return a + b\n" * 3)
        conversations: list[Conversation] = [[Recording(tuple(tokens[:20]), tuple(tokens[20:40]))]]
        costs = Costs(Cost.flat(PASS), draft=Cost.flat(PASS / 64))
        given = Means(draft.vocab, draft.text, draft=draft, costs=costs)
        first, second = (serve(conversations, [0.0], given, method="model") for _ in range(2))
        assert first == second
        assert first[0].n_tokens == len(tokens) - 20
    finally:
        draft.close()
