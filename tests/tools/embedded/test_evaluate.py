"""Classification of text as Python and as a loop, and agreement of the draft with the target."""

from __future__ import annotations

import pytest

from paceline.models import zoo
from tools.embedded.corpus import held_out
from tools.embedded.evaluate import compare, load


def test_draft_agrees_with_the_target_on_more_than_a_third_of_unseen_tokens() -> None:
    pytest.importorskip("llama_cpp")
    target, draft = (load(path) for path in (zoo.target_path(), zoo.draft_path()))
    first, second, agreement = compare(target, draft, [held_out()["heapq"][:1500]])
    assert first.nats < second.nats < 6
    assert agreement > 1 / 3
