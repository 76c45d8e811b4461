"""A bench from its plan to its record: rounds, sessions, and interruptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixed_system import FixedSystem
from paceline.api import LLM
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.bench import run_file
from paceline.bench.bench import Bench, unwatched
from paceline.bench.gate import Contestant
from paceline.bench.method import parse_all
from paceline.bench.paceline_system import LoadedModels, PacelineSystem
from paceline.bench.plan import BenchPlan
from paceline.bench.prompts import RequestBuilder
from paceline.bench.run_file import Run
from paceline.bench.runner import Runner, rotate_order
from paceline.bench.suites.workload import Item
from paceline.bench.system import BenchAnswer, BenchRequest, ItemMeasurements
from paceline.drafters import lookup
from paceline.settings import LoadOptions
from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.sampling import Sampling
from parrot import Parrot

EXACT: dict[str, Any] = {"threads": 1, "cache_type": "f32", "flash_attention": False}
ITEMS = (
    Item("a", "one", prompt="ab ab ab ab", max_tokens=6),
    Item("b", "two", prompt="hello hello", max_tokens=6),
    Item("c", "two", prompt="the end the", max_tokens=6),
)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    lines = [{"id": i.id, "category": i.category, "prompt": i.prompt, "max_tokens": 6} for i in ITEMS]
    path = tmp_path / "suite.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def asked(models: Path, suite: Path) -> dict[str, Any]:
    """Return arguments of a plan."""
    files = LoadOptions.of(f"{models}/target.gguf", f"{models}/draft.gguf", **EXACT)
    return {"models": files, "methods": "lookup,model", "suite": str(suite), "rounds": 1}


def test_order_rotates_over_places_and_neighbours() -> None:
    entries = [Contestant(FixedSystem(name)) for name in "abc"]
    turns = ["".join(entry.name for entry in rotate_order(entries, number)) for number in range(6)]
    assert turns == ["abc", "bca", "cab", "cba", "acb", "bac"]


TWICE = (*ITEMS, Item("again", "two", prompt="ab ab ab ab", max_tokens=6))


@pytest.fixture
def parroted(target: LoadedModels, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Return a runner with a drafter that repeats every answer it has seen."""
    monkeypatch.setattr(lookup, "make", lambda _: Parrot(name="lookup"))
    one = turns(target, TWICE)
    one.warm_up(TWICE)
    one.add(parse_all("lookup", {})[1:])
    return one


def drafted(groups: Iterable[ItemMeasurements]) -> list[tuple[int, str, int | None]]:
    return [(group.round, group.item, group.measurements["lookup"]["accepted"]) for group in groups]


ROUND = (("a", 0), ("b", 0), ("c", 0), ("again", 5))


def test_drafters_learn_within_a_round_only(parroted: Runner) -> None:
    groups = list(parroted.rounds(TWICE, 2))
    assert drafted(groups) == [(round_, item, n) for round_ in range(2) for item, n in ROUND]
    assert [set(group.measurements) for group in groups] == [{"plain", "lookup"}] * 8
    assert [entry.verdict.description for entry in parroted.entries] == ["reference", "identical"]


def test_drafters_learn_nothing_from_gate_and_warm_up(
    parroted: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    parroted.check(TWICE, Sampling(), 0)
    assert drafted(parroted.rounds(TWICE)) == [(0, *one) for one in ROUND]
    monkeypatch.setattr(PacelineSystem, "forget", lambda _: None)  # there is something to be forgotten
    assert [n for _, _, n in drafted(parroted.rounds(TWICE))] == [5, 5, 5, 5]


def test_resume_skips_finished_items_and_keeps_their_outcomes(parroted: Runner) -> None:
    first = list(parroted.rounds(TWICE, 2))
    done = [replace(group, outcomes={"plain": "identical", "lookup": "near-tie"}) for group in first[:6]]
    parroted.entries[1].outcomes.clear()
    assert drafted(parroted.rounds(TWICE, 2, done)) == [(1, "c", 0), (1, "again", 0)]
    assert parroted.entries[1].verdict.description == "4 near-ties"
    assert drafted(parroted.rounds(TWICE, 1, done[:2])) == [(0, "c", 0), (0, "again", 0)]


def test_answer_that_differs_from_plain_decoding_fails_the_gate(
    parroted: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = PacelineSystem.answer

    def wrong(system: PacelineSystem, ask: BenchRequest) -> BenchAnswer:
        said = answer(system, ask)
        if system.name == "lookup":
            said = replace(said, tokens=tuple((t + 1) % 50 for t in said.tokens or ()))
        return said

    monkeypatch.setattr(PacelineSystem, "answer", wrong)
    (group, *_) = parroted.rounds(TWICE)
    assert group.outcomes == {"plain": "identical", "lookup": "from token 0 on"}
    assert parroted.entries[1].verdict.description == "NOT LOSSLESS: a from token 0 on"
    assert not parroted.entries[1].row["lossless"]


def test_time_limit_leaves_out_all_but_the_first_item(parroted: Runner) -> None:
    groups = parroted.rounds(TWICE, 2, until=0.0)
    assert [(group.round, group.item) for group in groups] == [(0, "a"), (1, "a")]
    assert [reason[:12] for reason in parroted.skipped] == ["3 of 4 items"]


def test_a_programs_drafts_are_held_to_its_own_plain_text_whoever_comes_first(target: LoadedModels) -> None:
    one = turns(target, ITEMS)
    one.warm_up(ITEMS)
    theirs = Contestant(
        FixedSystem("theirs", (1, 2, 3, 4, 5, 6)), reference=one.plain, other_program_plain=True
    )
    one.entries += [theirs, Contestant(FixedSystem("drafted", (1, 2, 3, 4, 5, 6)), Budget(2, 2), theirs)]
    assert len(list(one.rounds(ITEMS))) == 3  # each was first once
    assert one.entries[1].verdict.description.startswith("its own text: a from token 0 on")
    assert one.entries[2].verdict.description == "identical"


def rows(run: Run) -> list[Any]:
    return [
        tuple(result[name] for name in ("system", "category", "verdict", "items", "n_tokens"))
        for result in run.results
    ]


def test_kept_prompts_change_no_result(asked: dict[str, Any]) -> None:
    plans = [BenchPlan(**asked), BenchPlan(**asked, keep_prompts=True)]
    records = [Bench(plan).measure() for plan in plans]
    assert rows(records[0]) == rows(records[1])
    assert [{result["ttft"] is None for result in record.results} for record in records] == [{False}, {True}]


def test_resume_continues_after_a_time_limit(asked: dict[str, Any], tmp_path: Path) -> None:
    plan = BenchPlan(**asked, keep_prompts=True, minutes=1e-9)
    file = tmp_path / "run.jsonl"
    record = Bench(plan, file=file).measure()
    assert [result["items"] for result in record.results] == [1, 1, 1]
    stored = run_file.read(file)
    again = Bench(replace(BenchPlan.read(stored.plan), minutes=5.0), stored=stored).measure()
    assert len(run_file.read(file).groups) == 3
    assert (again.status, rows(again)) == ("done", rows(Bench(BenchPlan(**asked)).measure()))


def test_sampled_bench_passes_the_gate(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.gate.SAMPLED_CHECK_SIZES", ((4, 20),))
    plan = BenchPlan(**asked | {"methods": "model"}, sampling=Sampling(temperature=0.7))
    verdicts = [result["verdict"] for result in Bench(plan).measure().results]
    assert verdicts[-2:] == ["reference", "identical, unbiased"]


def ending(target: LoadedModels, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `token` end a text."""
    vocab = replace(target.plain.target.vocab, eos=frozenset({token}))
    monkeypatch.setattr(target.plain.target, "vocab", vocab)


@pytest.fixture
def target(models: Path) -> Iterator[LoadedModels]:
    given = LoadOptions.of(models / "target.gguf", sessions=2, **EXACT)
    with LoadedModels(given, models / "draft.gguf") as loaded:
        yield loaded


def turns(target: LoadedModels, items: Sequence[Item], **settings: Any) -> Runner:
    defaults: dict[str, Any] = {"n": None, "sampling": Sampling(), "seed": 0}
    prompts = RequestBuilder(target.plain, **defaults | settings)
    return Runner(target, parse_all("plain", {})[0], prompts, unwatched)


def test_answer_is_cut_at_its_end_for_every_system(
    target: LoadedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = turns(target, ITEMS)
    one.warm_up(ITEMS)
    said = one.plain.greedy_tokens["a"]
    assert len(said) == 6
    end = said[3]
    assert end not in said[:3]
    ending(target, end, monkeypatch)
    cut = turns(target, ITEMS)
    cut.warm_up(ITEMS)
    cut.add(parse_all("lookup", {})[1:])
    group = next(cut.rounds(ITEMS))
    assert cut.plain.greedy_tokens["a"] == said[:3]
    assert [(name, m["n_tokens"]) for name, m in group.measurements.items()] == [("plain", 3), ("lookup", 3)]
    assert cut.entries[1].verdict.description == "identical"


def test_a_session_goes_on_with_what_the_model_said_until_its_end(
    target: LoadedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Item("s.1", "one", messages=(("user", "ab"),), max_tokens=6, session="s")
    messages = (("user", "ab"), ("assistant", None), ("user", "c"))
    second = Item("s.2", "one", messages=messages, max_tokens=6, session="s", earlier=("s.1",))
    one = turns(target, [first])
    one.check([first], Sampling(), 0)
    said = one.plain.greedy_tokens["s.1"]
    ending(target, said[2], monkeypatch)
    both = turns(target, [first, second])
    both.check([first, second], Sampling(), 0)
    answer = b"".join(map(target.plain.target.text.piece, said[:2])).decode(errors="replace")
    assert both.requests["s.2"].prompt == f"User: ab\n\nAssistant: {answer}\n\nUser: c\n\nAssistant:"


def test_answer_has_times_and_counts(target: LoadedModels) -> None:
    method = parse_all("model:n_draft=2:p_min=0", {})[1]
    system = PacelineSystem(method, target)
    tokens = tuple(target.plain.tokens("ab ab ab ab"))
    answer = system.answer(BenchRequest("ab ab ab ab", tokens, 8))
    assert (answer.n_tokens, len(answer.tokens or ()), answer.n_prompt) == (8, 8, 11)
    assert answer.steps == 8 - (answer.accepted or 0)
    assert (answer.drafted or 0) >= (answer.accepted or 0)
    assert 0 < max(answer.first, answer.decoding) < answer.seconds
    assert 0 < (answer.draft_seconds or 0) < (answer.decode_seconds or 0)
    # Its prompt is so short that the first step reads it, and is left out.
    assert answer.decoded < 8
    again = system.answer(BenchRequest("", tokens, 8))
    assert again.tokens == answer.tokens


def test_a_prompt_read_apart_leaves_every_step_to_decoding(target: LoadedModels) -> None:
    tokens = tuple(target.plain.tokens("ab cd ef gh ij kl " * 8))
    for name in ("none", "model:n_draft=2:p_min=0"):
        answer = PacelineSystem(parse_all(name, {})[-1], target).answer(BenchRequest("", tokens, 8))
        assert answer.decoded == answer.n_tokens == 8
        # The draft had read the prompt by then, and nothing is left of it for the first step to read.
        assert 0 < (answer.decode_seconds or 0) <= answer.decoding < answer.seconds


@pytest.mark.parametrize("keep", [False, True])
def test_prompts_that_are_kept_are_read_once_for_all_methods(
    target: LoadedModels, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    read: list[int] = []
    plan = LlamaSession.plan_prefill

    def noting(self: LlamaSession, n: int, batch: Any) -> None:
        read.append(n)
        plan(self, n, batch)

    monkeypatch.setattr(LlamaSession, "plan_prefill", noting)
    target.keep_prompts = keep
    tokens = tuple(target.plain.tokens("ab cd ef gh ij kl " * 8))
    said = []
    for name in ("none", "lookup", "model:n_draft=2:p_min=0"):
        system = PacelineSystem(parse_all(name, {})[-1], target)
        said.append(system.answer(BenchRequest("", tokens, 8)))
        assert said[-1].decoded == 8
    assert len({answer.tokens for answer in said}) == 1
    # The target for each of three, and the draft; or each model once.
    assert len(read) == (2 if keep else 4)


_, ALONE, DRAFTED = parse_all("lookup:policy=goodput,model:policy=goodput", {})


def _costs(llm: LLM) -> DecodingCosts:
    assert isinstance(llm.policy, GoodputPolicy)
    return llm.policy.costs


def test_methods_share_the_targets_costs_and_all_are_kept(models: Path, however_busy: None) -> None:
    given, draft = LoadOptions.of(models / "target.gguf", threads=1), models / "draft.gguf"
    with LoadedModels(given, draft) as loaded:
        alone, drafted = loaded.llm(ALONE), loaded.llm(DRAFTED)
        assert alone.draft is None
        assert loaded.draft_memory > 0
        assert _costs(alone).target is _costs(drafted).target
        assert drafted.draft is not None
        assert drafted.draft.on_forward is not None
        measured = _costs(drafted).draft
        assert measured is not None
        cost = 30 * measured.seconds(1, 16)  # neither less than a row's nor more than 99 of them
        for _ in range(3):
            drafted.draft.on_forward(99, 16, cost)
            _costs(alone).target.update(99, 16, 1e-4)
    with LoadedModels(given, draft) as again:
        costs = _costs(again.llm(DRAFTED))
        assert costs.draft is not None
        assert costs.draft.seconds(99, 16) == pytest.approx(cost)
        assert 99 in costs.target.rows
