"""Settings to a loaded model: defaults and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from gguf_architectures import write_architecture
from paceline.backends.toy import ToyTarget
from paceline.drafter_factory import make_drafter, make_policy
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.ngram_cache import NgramCache
from paceline.drafters.suffix_sort import build
from paceline.models import zoo
from paceline.plan import model_files
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Drafter
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import FixedPolicy
from paceline.storage.corpora import Corpora
from stage import asking


def test_what_is_left_open_is_filled_in_with_what_there_is() -> None:
    embedded = (zoo.target_path(), zoo.draft_path())
    assert model_files(None, None, ["auto"]) == embedded
    assert model_files(None, None, ["lookup"]) == (embedded[0], None)
    assert model_files(None, None, ["lookup", "model"]) == embedded
    a, b = Path("a.gguf"), Path("b.gguf")
    assert model_files("a.gguf", None, ["auto"]) == (a, None)
    assert model_files("a.gguf", b, ["auto"]) == (a, b)


def test_a_recurrent_model_drafts_and_is_drafted_for(models: Path, tmp_path: Path) -> None:
    """Rejected drafts leave its state without a trace: the text is that of plain decoding."""
    recurrent = {arch: write_architecture(tmp_path / f"{arch}.gguf", arch) for arch in ("mamba2", "jamba")}
    prompt = [65, 66, 67, 65, 66, 67, 65]
    for target, draft in (
        (recurrent["mamba2"], None),
        (recurrent["jamba"], recurrent["mamba2"]),
        (models / "target.gguf", recurrent["mamba2"]),
    ):
        with paceline.load(target, drafters="none", threads=1) as llm:
            plain = llm.generate(prompt, max_tokens=40, ignore_eos=True).tokens
        names = "lookup" if draft is None else "model"
        with paceline.load(target, draft, names, threads=1, n_draft=3, policy="fixed") as llm:
            for _ in range(2):  # and with what is left in the cache
                answer = llm.generate(prompt, max_tokens=40, ignore_eos=True)
                assert answer.tokens == plain
                assert answer.stats.rejected > 0


def test_a_model_whose_state_cannot_be_rolled_back_decodes_plainly_and_cannot_draft(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.backends.llama_cpp.target.drops_rejected_drafts", lambda _: False)
    mamba = write_architecture(tmp_path / "mamba.gguf", "mamba")
    with paceline.load(mamba, threads=1) as llm:
        assert llm.drafting.drafters == ("none",)
        done = [llm.generate([65, 66, 67], max_tokens=9, ignore_eos=True).tokens for _ in range(2)]
        assert len(done[0]) == 9
        assert done[0] == done[1]
    for drafters in (None, "model", "cascade", "auto"):
        with pytest.raises(UsageError, match="the draft model's state cannot be rolled back"):
            paceline.load(models / "target.gguf", mamba, drafters, threads=1)
    with pytest.raises(UsageError, match="nothing can be drafted for it: leave out remember"):
        paceline.load(mamba, threads=1, remember=True)
    with pytest.raises(UsageError, match="the target's state cannot be rolled back"):
        paceline.load(mamba, drafters="lookup", threads=1)


def drafters_of(made: Drafter) -> str:
    assert isinstance(made, PortfolioDrafter)
    return made.name


@pytest.mark.parametrize(
    ("draft", "caches", "stores", "names"),
    [
        (False, False, False, "prediction,suffix,lookup"),
        (True, False, False, "prediction,suffix,lookup,model"),
        (False, True, False, "prediction,suffix,lookup,ngram"),
        (True, True, True, "prediction,suffix,lookup,ngram,datastore,model"),
    ],
)
def test_auto_is_all_there_is_something_for(
    tmp_path: Path, draft: bool, caches: bool, stores: bool, names: str
) -> None:
    """The cheapest first."""
    toy = ToyTarget(8)
    NgramCache.build([[1, 2, 3, 1, 2, 3]]).write(tmp_path / "cache")
    build(tmp_path, [[1, 2, 3]], 8)
    corpora = Corpora((tmp_path / "cache",) * caches, (tmp_path,) * stores)
    drafting = Drafting(drafters=("auto",))
    made, resolved = make_drafter(drafting, toy, toy if draft else None, corpora)
    assert drafters_of(made) == names
    assert resolved == drafting


def test_the_policy_is_the_one_that_was_named() -> None:
    costs = DecodingCosts(PassCosts.flat())
    for drafting in (
        Drafting(),
        Drafting(policy="fixed"),
        Drafting(drafters=("none",)),
        Drafting(drafters=("none",), policy="goodput"),
    ):
        policy = make_policy(drafting, None)
        assert isinstance(policy, FixedPolicy)
        assert policy.budget([None]) == [drafting.budget]  # type: ignore[list-item]  # it asks no request
    rate = make_policy(Drafting(drafters=("auto",), n_draft=3, width=2), costs)
    assert isinstance(rate, GoodputPolicy)
    assert rate.costs is costs
    (budget,) = rate.budget(asking(1))
    assert (budget.depth, budget.nodes, budget.width, budget.p_min) == (3, 6, 2, 0.0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"drafters": "model"}, "needs a draft model"),
        ({"cross_vocab": "tli"}, "cross_vocab tli is for a draft model: give one"),
        ({"draft": "x.gguf", "drafters": "lookup"}, "have no 'model'"),
        ({"threads": 0}, "0 threads"),
        ({"threads": 4096}, r"\(threads, -t, .*: use \d+"),
        ({"n_drafts": 3}, "unknown setting 'n_drafts'.*n_draft"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_model_is_loaded(
    arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        paceline.load("not/loaded.gguf", **arguments)


def test_settings_reach_the_drafters(models: Path) -> None:
    with paceline.load(
        models / "target.gguf",
        models / "draft.gguf",
        "model",
        n_ctx=128,
        threads=1,
        n_draft=3,
        draft_temp=0.7,
        draft_top_k=4,
    ) as llm:
        assert llm.target.caps.n_ctx == 128
        done = llm.generate([1, 2, 3], max_tokens=20, temperature=0.9, ignore_eos=True)
        assert done.n_tokens == 20
        assert set(done.stats.by_source) == {"model"}
        assert done.stats.drafted <= 3 * done.stats.steps


def test_closing_twice_is_harmless_and_a_second_generation_reuses_the_first(models: Path) -> None:
    llm = paceline.load(models / "target.gguf", threads=1, n_ctx=128)
    first = llm.generate([5, 6, 7], max_tokens=30, ignore_eos=True)
    assert llm.generate([5, 6, 7], max_tokens=30, ignore_eos=True).tokens == first.tokens
    llm.close()
    llm.close()


def test_what_was_loaded_is_closed_where_the_rest_fails(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.backends.llama_cpp import LlamaTarget

    closed: list[Path] = []
    close = LlamaTarget.close

    def counted(engine: LlamaTarget) -> None:
        closed.append(engine.path)
        close(engine)

    def fail(*_: Any, **__: Any) -> None:
        raise UsageError("no policy")

    monkeypatch.setattr(LlamaTarget, "close", counted)
    monkeypatch.setattr("paceline.loading.make_policy", fail)
    with pytest.raises(UsageError, match="no policy"):
        paceline.load(models / "target.gguf", models / "draft.gguf", "model", threads=1)
    assert closed == [models / "draft.gguf", models / "target.gguf"]
