"""Sessions of draft trees, and sessions and targets around others. tests/contract has their contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.backends.toy import ToyTarget
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.delegating import DelegatingTarget
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, Budget, Drafter, RequiredOutputs, Target
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sessions import DelegatingSession, TreeSession
from paceline.speculative.tree import EMPTY, DraftTree, chain
from sum_model import N_CTX, SumTarget

CHAIN = chain([4, 5, 6], "test")


class Recorder(TreeSession):
    """A session that records the calls of its methods."""

    def __init__(self) -> None:
        super().__init__(n_ctx=8)
        self.calls: list[object] = []

    def _append(self, tokens: Sequence[int]) -> None:
        self.calls.append(("append", len(self.tokens), *tokens))

    def _compute(self, tree: DraftTree, first: int) -> None:
        self.calls.append(("compute", tree.tokens, first))

    def _rewind(self) -> None:
        self.calls.append("rewind")


def test_hooks_are_called_once_and_in_order() -> None:
    session = Recorder()
    session.extend([1, 2])
    assert session.pending_tokens == 0
    assert [session.compute_tree(tree) for tree in (chain([4], "test"), CHAIN, EMPTY)] == [0, 2, 0]
    assert session.calls == [
        ("append", 0, 1, 2), ("compute", (4,), 0), ("compute", (4, 5, 6), 2), "rewind", ("compute", (), 0)
    ]  # fmt: skip
    session.calls.clear()
    session.extend(())
    session.extend(())  # there is no tree any more
    session.compute_tree(CHAIN)
    session.commit([0], 7)
    session.extend([3])
    assert session.tokens == [1, 2, 4, 7, 3]
    assert session.calls == [
        "rewind",
        ("compute", (4, 5, 6), 0),
        "rewind",
        ("append", 2, 4, 7),
        ("append", 4, 3),
    ]
    session.close()
    assert (session.tokens, session.tree) == ([], None)


def test_a_text_that_goes_on_along_the_tree_commits_its_nodes() -> None:
    session = SumTarget(9).open()
    session.extend([1])
    session.compute_tree(CHAIN)
    session.extend([4, 5, 8])
    assert (session.sums, session.pending_tokens) == ([0, 1, 5, 10], 0)


@pytest.mark.parametrize(("n", "complaint"), [(0, "prompt is empty"), (9, "9 tokens do not fit")])
def test_a_prompt_without_tokens_or_beyond_the_context_changes_nothing(n: int, complaint: str) -> None:
    session = Recorder()
    with pytest.raises(UsageError, match=complaint):
        session.extend([1] * n)
    assert (session.tokens, session.calls) == ([], [])


class Wrapper(DelegatingTarget):
    def open(self, beside: object = None) -> DelegatingSession:
        return DelegatingSession(self.inner.open())

    def forward(self, batch: Sequence[tuple[Any, DraftTree | int]], want: RequiredOutputs) -> Any:
        return self.inner.forward([(session.inner, tree) for session, tree in batch], want)


def decoded(target: Target, drafter: Drafter) -> list[int]:
    request = start_request(target, drafter, GenerationRequest(prompt=[1, 2], max_tokens=30))
    for _ in decode(target, drafter, FixedPolicy(Budget(4, 4)), [request], chunk=1):
        pass
    tokens = list(request.session.tokens)
    request.close()
    return tokens


def test_a_wrapped_target_decodes_as_the_target_does() -> None:
    inner = ToyTarget(6)
    target = Wrapper(inner)
    assert (target.vocab, target.caps, target.origin, target.text) == (
        inner.vocab, inner.caps, inner.origin, inner.text
    )  # fmt: skip
    plain = decoded(inner, NoDrafter())
    assert decoded(target, LookupDrafter(1, 2)) == plain
    session = target.open()
    session.extend([1, 2, 3])
    target.forward([(session, 1)], NO_OUTPUTS)
    assert session.pending_tokens == 1
    target.forget()
    target.close()


def test_the_documented_backend_decodes() -> None:
    target = SumTarget(7)
    tokens = decoded(target, LookupDrafter(1, 2))
    assert tokens == decoded(target, NoDrafter())
    assert len(tokens) == 32 < N_CTX
