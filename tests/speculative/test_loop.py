"""The decoding loop: stopping, budgets, batches, and equality with plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import begin, decoded
from enumeration import Ticking
from paceline.backends.toy import ToySession, ToyTarget
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.prediction import PredictionDrafter
from paceline.speculative.errors import ContractError, UsageError
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import advance_requests, decode
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

V = 6
NONE = NoDrafter()
BUDGET = Budget(depth=5, nodes=12, width=1)


def model(seed: int = 0, noise: float = 0.3, temperature: float = 0.0) -> ModelDrafter:
    return ModelDrafter(ToyTarget(V, seed=seed, noise=noise), V, temperature=temperature)


MAKERS: dict[str, Callable[[int], Drafter]] = {
    "none": lambda seed: NONE,
    "lookup": lambda seed: LookupDrafter(),
    "model": model,
    "model, sampled": lambda seed: model(seed, temperature=0.9),
    "lookup,model": lambda seed: ComposedDrafter([LookupDrafter(2, 3), model(seed)]),
}


def steps_of(
    target: ToyTarget,
    drafter: Drafter,
    prompt: Sequence[int],
    budget: Budget = BUDGET,
    max_tokens: int = 40,
    stop: Callable[[int], bool] = lambda token: False,
) -> list[Step]:
    request = begin(target, drafter, prompt, max_tokens, should_stop=stop)
    steps = [step for _, step in decode(target, drafter, FixedPolicy(budget), [request])]
    assert request.stop_reason == steps[-1].stop_reason
    request.close()
    return steps


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("name", MAKERS)
@given(
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=12),
    seed=st.integers(0, 20),
    depth=st.integers(1, 6),
    width=st.integers(1, 4),
    p_min=st.sampled_from([0.0, 0.4]),
    eos=st.sampled_from([frozenset[int](), frozenset({2})]),
)
@settings(max_examples=25, deadline=None)
def test_greedy_output_and_stop_are_those_of_plain_decoding(
    name: str, prompt: list[int], seed: int, depth: int, width: int, p_min: float, eos: frozenset[int]
) -> None:
    target = ToyTarget(V, seed=seed, eos=eos)
    budget = Budget(depth=depth, nodes=depth * width, width=width, p_min=p_min)
    drafted = steps_of(target, MAKERS[name](seed), prompt, budget)
    plain = steps_of(target, NONE, prompt)
    assert tokens_of(drafted) == tokens_of(plain)
    assert drafted[-1].stop_reason == plain[-1].stop_reason


def test_a_stop_inside_the_accepted_path_cuts_it_there() -> None:
    target = ToyTarget(V, seed=3)
    plain = tokens_of(steps_of(target, NONE, [1, 2, 3]))
    for cut in range(1, 8):
        seen: list[int] = []

        def stop(token: int, seen: list[int] = seen, cut: int = cut) -> bool:
            seen.append(token)
            return len(seen) == cut

        steps = steps_of(target, model(3, 0.0), [1, 2, 3], stop=stop)
        assert tokens_of(steps) == plain[:cut] == seen
        assert steps[-1].stop_reason == "stop"
        assert steps[-1].path == tuple(range(len(steps[-1].tokens) - 1))


@pytest.mark.parametrize("ends", ["stop", "eos", "length"])
def test_a_session_holds_what_was_emitted_and_nothing_that_a_stop_cut_off(ends: str) -> None:
    """It continues like a fresh session."""
    prompt, drafter = [1, 2, 3], model(3, 0.0)
    plain = tokens_of(steps_of(ToyTarget(V, seed=3), NONE, prompt))
    eos = frozenset({plain[2]} if ends == "eos" else ())
    target, seen = ToyTarget(V, seed=3, eos=eos), list[int]()

    def stop(token: int) -> bool:
        seen.append(token)
        return ends == "stop" and len(seen) == 3

    request = begin(target, drafter, prompt, 3 if ends == "length" else 20, should_stop=stop)
    emitted: list[int] = []
    for _, step in decode(target, drafter, FixedPolicy(BUDGET), [request]):
        assert len(step.tree) > len(step.path) or ends == "length"
        emitted += step.tokens
        assert request.session.tokens == [*prompt, *emitted]
    assert request.stop_reason == ends
    assert emitted == plain[: len(emitted)]
    follows = [*prompt, *emitted, 5]
    rows = []
    assert isinstance(request.session, ToySession)
    for session in (request.session, target.open()):
        session.extend(follows[len(session.tokens) :])
        rows.append(target.forward([(session, EMPTY)], NONE.required_outputs)[0].logits(0))
    assert rows[0].tolist() == rows[1].tolist()


def test_a_cut_step_counts_the_same_acceptances_in_total_and_by_source() -> None:
    stops = iter([False, True])
    target, drafter = ToyTarget(V, seed=3), model(3, noise=0.0)
    request = begin(target, drafter, [1, 2, 3], 20, should_stop=lambda token: next(stops))
    ((_, step),) = advance_requests(target, drafter, FixedPolicy(BUDGET), [request])
    assert len(step.tokens) == 2
    assert request.stats.accepted == request.stats.by_source["model"].accepted == 5


def test_eos_can_be_ignored() -> None:
    target = ToyTarget(V, seed=3, eos=frozenset(range(V)))
    assert len(decoded(target, NONE, [1], 5, ignore_eos=True)[0]) == 5


@pytest.mark.parametrize("maker", [lambda: NONE, lambda: model(3, 0.0), LookupDrafter])
def test_the_context_ends_plain_and_drafted_decoding_at_the_same_token(maker: Callable[[], Drafter]) -> None:
    steps = steps_of(ToyTarget(V, seed=3, n_ctx=10), maker(), [1, 2, 3], max_tokens=100)
    assert len(tokens_of(steps)) == 8  # ten positions are filled, and one more token is predicted
    assert steps[-1].stop_reason == "context"


def test_an_end_of_text_at_a_stop_is_an_end_of_text() -> None:
    target = ToyTarget(V, seed=3, eos=frozenset(range(V)))
    assert steps_of(target, NONE, [1], stop=lambda token: True)[-1].stop_reason == "eos"


@pytest.mark.parametrize("drafter", [NONE, model(3, 0.0)], ids=["plain", "drafted"])
def test_a_prompt_that_fills_the_context_is_followed_by_one_token(drafter: Drafter) -> None:
    (step,) = steps_of(ToyTarget(V, seed=3, n_ctx=10), drafter, [1, 2] * 5)
    assert (len(step.tokens), step.stop_reason) == (1, "context")


def test_a_draft_and_its_root_fit_the_rows_of_a_pass_and_the_rest_of_the_context() -> None:
    target = ToyTarget(V, seed=2, n_ctx=20)
    request = begin(target, NONE, [1] * 5, 99)
    assert request.limit_budget(Budget(40, 40, width=4), target.caps, 8) == Budget(15, 7, width=4)
    assert request.limit_budget(Budget(40, 40, width=4), target.caps, 99) == Budget(15, 15, width=4)


def test_a_budget_holds_only_what_the_target_can_verify_and_undo() -> None:
    target = ToyTarget(V, seed=2)
    request = begin(target, NONE, [1] * 5, 99)
    chains, fixed = replace(target.caps, max_branches=1), replace(target.caps, rollback="none")
    assert request.limit_budget(Budget(4, 9, width=4), chains, 99) == Budget(4, 9, width=1)
    assert request.limit_budget(Budget(4, 9, width=4), fixed, 99).nodes == 0


def test_the_statistics_add_up() -> None:
    target, drafter = ToyTarget(V, seed=3), model(3, noise=0.3)
    request = begin(target, drafter, [1, 2, 3], 30)
    steps = [step for _, step in decode(target, drafter, FixedPolicy(BUDGET), [request])]
    stats = request.stats
    assert stats.steps == len(steps)
    assert stats.tokens == 30 == sum(len(s.tokens) for s in steps)
    assert stats.drafted == sum(s.drafted["model"] for s in steps) == stats.by_source["model"].drafted
    assert stats.accepted == stats.by_source["model"].accepted == 30 - stats.steps
    assert stats.acceptance_rate == stats.accepted / stats.drafted
    assert stats.acceptance_length == 1 + stats.accepted / stats.steps
    assert stats.as_dict()["time"]["forward"] == pytest.approx(sum(s.times.forward for s in steps))
    assert all(s.times.total > 0 for s in steps)


class Rogue(NoDrafter):
    """A drafter that breaks its contract."""

    name = "rogue"

    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def propose(self, batch: Sequence[object]) -> list[DraftTree]:
        return [self._tree] * len(batch)


FORK = DraftTree((1, 2), (ROOT, ROOT), (0.5, 0.5), ("rogue", "rogue"))


@pytest.mark.parametrize(
    "tree", [chain([1] * 6, "rogue"), chain([V], "rogue"), chain([-1], "rogue"), FORK], ids=str
)
def test_a_draft_over_budget_or_outside_the_vocabulary_never_reaches_the_engine(tree: DraftTree) -> None:
    target, rogue = ToyTarget(V), Rogue(tree)
    request = begin(target, rogue, [1], 20)
    with pytest.raises(ContractError, match="rogue"):
        advance_requests(target, rogue, FixedPolicy(BUDGET), [request])


def test_a_proposal_missing_from_a_batch_is_noticed() -> None:
    class Silent(NoDrafter):
        def propose(self, batch: Sequence[object]) -> list[DraftTree]:
            return []

    target, silent = ToyTarget(V), Silent()
    request = begin(target, silent, [1], 20)
    with pytest.raises(ContractError, match="0 proposals for 1 requests"):
        advance_requests(target, silent, FixedPolicy(BUDGET), [request])


@pytest.mark.parametrize(
    ("prompt", "n", "complaint"),
    [
        ([1, V], 5, "outside the vocabulary of 6"),
        ([1] * 11, 5, "11 tokens, the context 10"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(prompt: list[int], n: int, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        begin(ToyTarget(V, n_ctx=10), NONE, prompt, n)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_drafter_that_fails_to_open_leaves_no_session_open(error: type[BaseException]) -> None:
    class Broken(NoDrafter):
        def open(self, prompt: Sequence[int], seed: int, *_: object) -> object:  # type: ignore[override]
            raise error("no room")

    class Counting(ToyTarget):
        def open(self, beside=None):  # type: ignore[no-untyped-def]
            self.session = super().open()
            return self.session

    target = Counting(V)
    with pytest.raises(error, match="no room"):
        begin(target, Broken(), [1], 5)  # type: ignore[arg-type]
    assert target.session.tokens == []


def test_a_memory_that_fails_to_close_leaves_no_session_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("no disk")

    request = begin(ToyTarget(V), LookupDrafter(), [1, 2], 5)
    monkeypatch.setattr(request.drafter_state, "close", fails)
    with pytest.raises(RuntimeError, match="no disk"):
        request.close()
    assert list(request.session.tokens) == []


@pytest.mark.parametrize("policy", ["fixed", "goodput"])
@pytest.mark.parametrize("lengths", [[9], [3, 17, 9]])
def test_the_phases_of_all_steps_add_up_to_the_time_that_the_clock_told(
    lengths: list[int], policy: str
) -> None:
    """Every look at the clock takes a second. The time between two passes is the caller's; time after a
    request's last step is in `carried_over_seconds`."""
    clock, passes = Ticking(1.0), 0
    target, drafter = ToyTarget(V, seed=2), PortfolioDrafter([LookupDrafter(1, 3), model(2)])
    decides: DraftPolicy = (
        FixedPolicy(BUDGET)
        if policy == "fixed"
        else GoodputPolicy(DecodingCosts(PassCosts.flat(4.0, 0.1)), clock=clock)
    )
    requests = [begin(target, drafter, [1, 2, i], n) for i, n in enumerate(lengths)]
    active, began, seconds = list(requests), clock(), 0.0
    while active:
        for _, step in advance_requests(target, drafter, decides, active, clock):
            seconds += step.times.total
            assert min(step.times.draft, step.times.forward, step.times.verify, step.times.commit) > 0
            assert step.times.other > 0
        passes += 1
        active = [request for request in active if request.stop_reason is None]
    left = sum(request.carried_over_seconds for request in requests)
    told = sum(request.stats.seconds for request in requests)
    assert seconds == pytest.approx(told)
    assert seconds + left == pytest.approx(clock() - began - (passes + 1))


def test_right_prediction_is_accepted_whole() -> None:
    target, prompt = ToyTarget(6, seed=1), [1, 2, 3]
    plain, _ = decoded(target, PredictionDrafter(), prompt, 12, Budget(depth=4, nodes=4))
    drafted, steps = decoded(
        target, PredictionDrafter(), prompt, 12, Budget(depth=4, nodes=4), prediction=tuple(plain)
    )
    assert drafted == plain
    assert [len(step.tokens) for step in steps] == [5, 5, 2]
