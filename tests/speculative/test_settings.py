"""Validation and defaults of drafting settings."""

import math
from typing import Any

import pytest

from paceline.drafter_table import DRAFT
from paceline.fits import LAYER_VIEW, LLAMA_CPP, NO_MODEL, TargetTraits, drafters_of, what_fits
from paceline.settings import Drafting, LoadOptions, Quality, make_settings
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling


def test_the_budget_of_a_tree_holds_a_full_chain_a_leaf() -> None:
    drafting = Drafting(n_draft=4, width=3, p_min=0.2, p_split=0.3)
    assert drafting.budget == Budget(depth=4, nodes=12, width=3, p_min=0.2, p_split=0.3)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"drafters": ()}, "no drafter named"),
        ({"drafters": ("lookahead", "lookup")}, "name it without other drafters"),
        ({"lookahead_ngram": 1}, "lookahead_ngram 1: must be between 2 and"),
        ({"drafters": ("guess",)}, "unknown drafter 'guess': choose from prediction, suffix, lookup, ngram"),
        ({"drafters": ("lookup", "lookup")}, "named twice"),
        ({"drafters": ("none", "lookup")}, "'none' means plain decoding: name it without other drafters"),
        ({"n_draft": 0}, "n_draft 0"),
        ({"width": 0}, "width 0"),
        ({"draft_top_k": 0}, "draft_top_k 0"),
        ({"p_min": 1.5}, "p_min 1.5"),
        ({"p_split": math.nan}, "p_split nan"),
        ({"draft_temp": math.nan}, "draft_temp nan"),
        ({"verify": "lossy"}, "unknown verify 'lossy': choose from auto, token, block"),
        ({"verify": "block", "width": 2}, "verify block is for chains .*: for a tree choose from auto"),
        ({"ngram_min": 4, "ngram_max": 3}, "ngram_max 3: must be at least ngram_min, 4"),
        ({"ngram_min": 0}, "ngram_min 0"),
        ({"cross_vocab": "uag"}, "unknown cross_vocab 'uag': choose from off, tli, slem, auto"),
        ({"cross_vocab": "slem", "draft_temp": 0.5}, "slem drafts greedily, .* use cross_vocab tli"),
        ({"drafters": ("cascade", "model")}, "model and cascade draft with the same draft model: name one"),
        ({"drafters": ("cascade",), "cross_vocab": "slem"}, "'cascade' needs token ids: use cross_vocab tli"),
        ({"policy": "greedy"}, "unknown policy 'greedy': choose from goodput, p_min, fixed"),
        ({"drafters": ("auto", "lookup")}, "'auto' already has all .*: name it without other"),
        ({"drafters": ("lookahead",), "policy": "goodput"}, "use policy fixed or p_min"),
        ({"drafters": ("auto",), "verify": "block", "width": 2}, "verify block is for chains"),
        ({"cross_vocab": "slem", "width": 2}, "slem drafts greedily, .* use cross_vocab tli"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Drafting(**values)  # type: ignore[arg-type]


def test_an_unknown_setting_is_answered_with_the_known_ones() -> None:
    assert make_settings(Sampling, {"top_k": 5}) == Sampling(top_k=5)
    with pytest.raises(UsageError, match=r"'topk' \(did you mean top_k.*choose from .*top_k"):
        make_settings(Sampling, {"topk": 5})


def test_a_budget_is_only_ever_made_smaller() -> None:
    budget = Budget(depth=4, nodes=8, p_min=0.5)
    assert budget.limited_to(9, 9, 9) is budget
    assert budget.limited_to(2, -1, 1) == Budget(depth=2, nodes=0, p_min=0.5)
    assert Budget(4, 8, width=3).limited_to(9, 9, 2) == Budget(4, 8, width=2)
    assert budget.should_extend(0.5, drafted=7, depth=3)
    assert not budget.should_extend(0.4, drafted=0, depth=0)
    assert not budget.should_extend(0.9, drafted=8, depth=0)
    assert not budget.should_extend(0.9, drafted=0, depth=4)


def test_lookahead_has_the_room_of_its_window_and_guesses() -> None:
    sizes = {"lookahead_window": 5, "lookahead_ngram": 4, "lookahead_guesses": 2}
    budget = Drafting(drafters=("lookahead",), n_draft=3, **sizes).budget  # type: ignore[arg-type]
    # Columns of three tokens, the last of which begins below four others; as many for each guess.
    assert (budget.depth, budget.nodes, budget.width) == (3 + 3, 7 * 3, 7)
    assert Drafting(drafters=("lookup",), n_draft=3).budget.nodes == 3


@pytest.mark.parametrize(
    ("values", "policy", "n_draft", "width", "nodes"),
    [
        ({}, "p_min", 7, 1, 7),
        ({"policy": "fixed"}, "fixed", 7, 1, 7),
        ({"drafters": ("auto",)}, "goodput", 31, 4, 62),
        ({"drafters": ("auto",), "policy": "p_min"}, "p_min", 7, 1, 7),
        ({"policy": "goodput"}, "goodput", 31, 4, 62),
        ({"policy": "goodput", "n_draft": 5}, "goodput", 5, 4, 10),
        ({"drafters": ("auto",), "width": 2}, "goodput", 31, 2, 62),
        ({"drafters": ("auto",), "width": 1}, "goodput", 31, 1, 31),
        ({"policy": "fixed", "width": 3}, "fixed", 7, 3, 21),
        ({"drafters": ("none",)}, "p_min", 7, 1, 7),
    ],
)
def test_what_is_left_open_depends_on_who_decides(
    values: dict[str, object], policy: str, n_draft: int, width: int, nodes: int
) -> None:
    drafting = Drafting(**values)  # type: ignore[arg-type]
    assert (drafting.policy, drafting.n_draft, drafting.width) == (policy, n_draft, width)
    assert drafting.budget.nodes == nodes
    assert drafting.budget.p_min == (0.0 if policy == "fixed" else 0.5)


@pytest.mark.parametrize("values", [{"verify": "token"}, {"verify": "block"}, {"cross_vocab": "slem"}])
def test_what_is_for_chains_leaves_no_width_open(values: dict[str, str]) -> None:
    assert Drafting(drafters=("auto",), **values).width == 1  # type: ignore[arg-type]


def test_lossy_choices_are_experts_and_a_share_of_the_prompt() -> None:
    numbers = {"": (0, 0), "experts=3": (3, 0), "prefill=.25": (0, 0.25), "prefill=0.2,experts=3": (3, 0.2)}
    for text, expected in numbers.items():
        quality = Quality(text)
        assert (quality.experts, quality.prefill) == expected
    for text in (
        "experts", "experts=0", "experts=-1", "experts=1.5", "prefill", "prefill=0.0", "prefill=1",
        "prefill=1.5", "prefill=nan", "draft=0.2", ",", "experts=1_0", "experts=3,experts=2",
        "experts=\u0663", "prefill=0." + "0" * 400 + "1", "experts=" + "1" * 5000, "prefill=0.\u0665",
        "prefill=1e-400",
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"write experts=N.* or prefill=0\.2"):
            Quality(text)


def test_auto_becomes_its_chains_where_all_passes_have_one_shape() -> None:
    given = Drafting(drafters=("auto",), n_draft=5)
    assert given.as_chains(with_draft=False) == Drafting(drafters=("lookup",), n_draft=5)
    assert given.as_chains(with_draft=True) == Drafting(drafters=("lookup", "model"), n_draft=5)
    named = Drafting(drafters=("lookup",))
    assert named.as_chains(with_draft=True) is named


def test_load_options_take_each_keyword_into_its_group() -> None:
    options = LoadOptions.of("a", "b", "lookup, model", corpora=["c"], n_ctx=5, lossy="experts=2", n_draft=3)
    assert options.drafting == Drafting(drafters=("lookup", "model"), n_draft=3)
    assert (options.engine.n_ctx, options.quality.experts, options.corpora) == (5, 2, ("c",))
    again = LoadOptions.of(**options.models_as_dict())
    assert (again.engine, again.quality, again.corpora) == (options.engine, options.quality, options.corpora)
    unknown: list[dict[str, Any]] = [{"thread": 4}, {"experts": 4}]  # `experts` is a number in `lossy`
    for setting in unknown:
        with pytest.raises(UsageError, match="unknown setting"):
            LoadOptions.of(**setting)


def test_the_role_quality_refuses_lossy_choices() -> None:
    with pytest.raises(UsageError, match="role quality"):
        Quality("experts=2", "quality")


def test_the_drafters_of_a_kind_of_draft() -> None:
    assert drafters_of(NO_MODEL) == ["prediction", "suffix", "lookup", "ngram", "datastore", "lookahead"]
    assert drafters_of(LAYER_VIEW) == drafters_of(DRAFT) == ["model", "cascade"]
    rows = {row["kind"]: row["reason"] for row in what_fits(TargetTraits(LLAMA_CPP, "restore"))}
    assert "cannot leave out layers" in rows[LAYER_VIEW]
    assert rows[DRAFT] == ""
