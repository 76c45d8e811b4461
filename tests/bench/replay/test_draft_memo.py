"""A remembered draft model drafts what the model itself does, and computes nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.backends.llama_cpp.target import LlamaTarget
from paceline.backends.recorded import Recording
from paceline.bench.method import parse
from paceline.bench.replay.draft_memo import DraftMemo
from paceline.bench.replay.replay import MethodReplay, ReplayContext
from paceline.speculative.policy.costs import DecodingCosts, PassCosts


@pytest.mark.parametrize(
    "method", ["model:policy=fixed:n_draft=5", "model:p_min=0.3", "lookup+model:width=3"]
)
def test_a_remembered_draft_drafts_the_same_for_the_same_cost_and_computes_once(
    models: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_draft = LlamaTarget(models / "draft.gguf", n_ctx=512)
    answers = [[7, 8, 9, 7, 8, 9, 7, 8], list(range(40, 60))]
    recordings = [Recording((1, *answer[:3]), tuple(answer)) for answer in answers]
    costs = DecodingCosts(PassCosts({64: {1: 0.01, 8: 0.02}}), PassCosts({64: {1: 0.001, 8: 0.002}}))
    try:
        memo, played = DraftMemo(with_draft), []
        for draft in (with_draft, memo, memo):
            context = ReplayContext(with_draft.vocab, None, draft=draft, costs=costs)
            play = MethodReplay(parse(method, {}), recordings, context)
            played.append([play.play(one) for one in recordings])
            if draft is memo:
                monkeypatch.setattr(with_draft, "forward", lambda *_: pytest.fail("computed twice"))
            else:
                with_draft.close = lambda: None  # type: ignore[method-assign]
            play.close()
        real, first, again = [
            [(one.tokens, one.steps, one.drafted, one.accepted, one.seconds) for one in stats]
            for stats in played
        ]
        assert first == real
        assert again == first
    finally:
        monkeypatch.undo()
        LlamaTarget.close(with_draft)
