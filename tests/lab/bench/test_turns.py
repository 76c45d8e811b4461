"""A bench from its plan to its record: sweeps, turns, batches, sessions, and what ends too early."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import UsageError
from paceline.core.ports import Budget, Features, Session, Want
from paceline.core.record import Step
from paceline.core.sampling import Sampling
from paceline.core.tree import DraftTree, chain
from paceline.drafters import lookup
from paceline.engines.llama import LlamaTarget
from paceline.engines.llama.session import LlamaSession
from paceline.lab.bench.bench import Bench, unwatched
from paceline.lab.bench.entry import Entry
from paceline.lab.bench.history import History
from paceline.lab.bench.measurement import Group
from paceline.lab.bench.method import parse_all
from paceline.lab.bench.models import Models
from paceline.lab.bench.outcome import Record
from paceline.lab.bench.outlook import Outlook
from paceline.lab.bench.own import Paceline
from paceline.lab.bench.plan import Plan
from paceline.lab.bench.prompts import Prompts
from paceline.lab.bench.sweep import every_drafter
from paceline.lab.bench.turns import Turns, in_turn, together
from paceline.lab.system import Answer, Ask
from paceline.lab.workload import Item

EXACT: dict[str, Any] = {"threads": 1, "cache_type": "f32", "flash_attention": False}
ITEMS = (
    Item("a", "one", prompt="ab ab ab ab", max_tokens=6),
    Item("b", "two", prompt="hello hello", max_tokens=6),
    Item("c", "two", prompt="the end the", max_tokens=6),
)


@dataclass
class Named:
    name: str

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        raise NotImplementedError

    def memory(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    lines = [{"id": i.id, "category": i.category, "prompt": i.prompt, "max_tokens": 6} for i in ITEMS]
    path = tmp_path / "suite.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def asked(models: Path, suite: Path) -> dict[str, Any]:
    """What a plan is made of."""
    files = {"target": f"{models}/target.gguf", "draft": f"{models}/draft.gguf"}
    return {"models": files | EXACT, "methods": "lookup,model", "suite": str(suite), "rounds": 1}


def overall(record: Record) -> list[tuple[dict[str, Any], str]]:
    assert all(result.lossless and result.speed for result in record.results)
    return [(dict(one.point), one.system) for one in record.results if not one.category]


@pytest.mark.parametrize(
    ("sweep", "values"),
    [
        ("k=1,4", [("n_draft", 1), ("n_draft", 4)]),
        ("draft-temp=0,0.5", [("draft_temp", 0.0), ("draft_temp", 0.5)]),
        ("draft-type=F16,Q8_0", [("draft_type", "F16"), ("draft_type", "Q8_0")]),
        ("threads=1", [("threads", 1)]),  # two that wait for each other are slow on a busy machine
        ("depth=20,60", [("depth", 20), ("depth", 60)]),
        ("batch=1,2", [("batch", 1), ("batch", 2)]),
    ],
)
def test_a_sweep_has_every_system_at_every_point(
    asked: dict[str, Any], sweep: str, values: list[tuple[str, Any]]
) -> None:
    record = Bench(Plan(**asked, sweep=sweep)).measure()
    assert record.status == "done"
    systems = ("plain", "lookup", "model")
    assert overall(record) == [({name: value}, system) for name, value in values for system in systems]


def test_a_sweep_over_temperatures_checks_sampling_where_it_samples(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.lab.bench.gate.SIZES", ((4, 20),))
    record = Bench(Plan(**asked | {"methods": "model"}, sweep="temp=0,0.7")).measure()
    verdicts = [(one.point["temp"], one.verdict) for one in record.results if one.system == "model"]
    assert sorted(set(verdicts)) == [(0.0, "identical"), (0.7, "identical, unbiased")]


def test_the_sweep_over_drafters_names_each_and_all(asked: dict[str, Any]) -> None:
    record = Bench(Plan(**asked, sweep="drafter")).measure()
    methods = every_drafter(has_draft=True, has_stores=False).split(",")
    assert overall(record) == [({}, name) for name in methods]


def test_what_ends_a_sweep_leaves_the_points_before_it(asked: dict[str, Any], tmp_path: Path) -> None:
    models = asked["models"] | {"n_ctx": 128}
    plan = Plan(**asked | {"models": models, "methods": "model"}, sweep="depth=40,500")
    with History(tmp_path / "bench.sqlite") as history:
        record = Bench(plan, history=history).measure()
        assert history.run(1).status == "failed"
        assert len(history.run(1).results) == 6
    assert isinstance(record.broken, UsageError)
    assert "nothing to ask: item a: its 500 tokens" in str(record.broken)
    assert overall(record) == [({"depth": 40}, "plain"), ({"depth": 40}, "model")]
    with pytest.raises(UsageError, match="nothing to ask"):
        Bench(Plan(**asked | {"models": models}, sweep="depth=500")).measure()


def test_models_are_loaded_again_only_where_a_point_wants_them_otherwise(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    start = LlamaTarget.__init__

    def starts(target: LlamaTarget, path: Path, *args: Any, **named: Any) -> None:
        loaded.append(Path(path).name)
        start(target, path, *args, **named)

    monkeypatch.setattr(LlamaTarget, "__init__", starts)
    Bench(Plan(**asked, sweep="draft-temp=0,0.5")).measure()
    assert loaded == ["target.gguf", "draft.gguf"]
    loaded.clear()
    Bench(Plan(**asked, sweep="batch=1,2")).measure()
    assert loaded == ["target.gguf", "draft.gguf"] * 2


def test_systems_take_turns_so_that_none_has_a_place_or_a_neighbour_of_its_own() -> None:
    entries = [Entry(Named(name)) for name in "abc"]
    turns = ["".join(entry.name for entry in in_turn(entries, number)) for number in range(6)]
    assert turns == ["abc", "bca", "cab", "cba", "acb", "bac"]


def test_a_batch_is_of_one_category_and_filled_up_with_its_own_items() -> None:
    assert list(together(ITEMS, 1)) == ["a", "b", "c"]
    assert list(together(ITEMS, 2)) == ["a+a", "b+c"]
    assert list(together(ITEMS, 3)) == ["a+a+a", "b+c+b"]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3), batch=st.integers(1, 5))
def test_no_item_is_in_two_batches_and_all_batches_are_full(sizes: list[int], batch: int) -> None:
    items = [Item(f"{kind}.{i}", str(kind)) for kind, size in enumerate(sizes) for i in range(size)]
    batches = together(items, batch).values()
    assert all(len(one) == batch and len({item.category for item in one}) == 1 for one in batches)
    held = [item for one in batches for item in dict.fromkeys(one)]
    assert held == items
    for kind, size in enumerate(sizes):
        distinct = [len(set(one)) for one in batches if one[0].category == str(kind)]
        assert len(distinct) == -(-size // batch)
        assert max(distinct) - min(distinct) <= 1


class Parrot:
    """Says to a prompt what was said to it before, and nothing to another."""

    name = "lookup"
    wants = Want()

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], list[int]] = {}

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> ParrotMemory:
        return ParrotMemory(self, tuple(prompt))

    def propose(self, batch: Sequence[tuple[ParrotMemory, Budget]]) -> list[DraftTree]:
        return [
            chain(self.known.get(memory.prompt, [])[len(memory.said) :][: budget.depth], self.name)
            for memory, budget in batch
        ]

    def learn(self, tokens: Sequence[int]) -> None:
        """Of a text without its prompt there is nothing to learn."""

    def forget(self) -> None:
        self.known.clear()

    def close(self) -> None:
        """Nothing is held."""


class ParrotMemory:
    def __init__(self, parrot: Parrot, prompt: tuple[int, ...]) -> None:
        self.parrot, self.prompt = parrot, prompt
        self.said: list[int] = []

    def observe(self, step: Step, features: Features) -> None:
        self.said += step.tokens

    def close(self) -> None:
        if self.said:
            self.parrot.known[self.prompt] = self.said


TWICE = (*ITEMS, Item("again", "two", prompt="ab ab ab ab", max_tokens=6))


@pytest.fixture
def parroted(target: Models, monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Past the gate, with a drafter that knows every answer it has seen."""
    monkeypatch.setattr(lookup, "make", lambda _: Parrot())
    one = turns(target, TWICE)
    one.ask_plainly(TWICE, 1)
    one.add(parse_all("lookup", {})[1:], None)
    one.check(Sampling(), 0)
    return one


def drafted(groups: Iterable[Group]) -> list[tuple[int, str, int | None]]:
    return [(group.round, group.item, group.measurements["lookup"].accepted) for group in groups]


def test_items_of_a_round_teach_each_other_and_neither_the_gate_nor_a_round_teaches_the_next(
    parroted: Turns,
) -> None:
    assert drafted(parroted.rounds(2, ())) == [
        (round_, item, accepted)
        for round_ in range(2)
        for item, accepted in (("a", 0), ("b", 0), ("c", 0), ("again", 5))
    ]
    assert parroted.entries[1].verdict.said == "identical"


def test_what_the_gate_has_taught_is_there_to_be_forgotten(
    parroted: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Paceline, "forget", lambda _: None)
    assert [accepted for _, _, accepted in drafted(parroted.rounds(1, ()))] == [5, 5, 5, 5]


def test_a_round_that_is_gone_on_with_knows_what_was_answered_in_it_and_no_more(parroted: Turns) -> None:
    done = {(0, "a"), (0, "b"), (0, "c"), (0, "again"), (1, "a"), (1, "b")}
    assert drafted(parroted.rounds(2, done)) == [(1, "c", 0), (1, "again", 5)]


def test_only_what_learns_answers_again_what_is_done(target: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    one = turns(target, ITEMS)
    one.ask_plainly(ITEMS, 1)
    asked: list[str] = []
    answer = Paceline.answer

    def answers(system: Paceline, asks: Sequence[Ask]) -> list[Answer]:
        asked.append(system.name)
        return answer(system, asks)

    monkeypatch.setattr(Paceline, "answer", answers)
    list(one.rounds(1, {(0, "a"), (0, "b")}))
    assert asked == ["plain"]


@pytest.fixture
def streaming(target: Models, monkeypatch: pytest.MonkeyPatch) -> Turns:
    """With a drafter that knows every answer it has seen, before anything but the first plain answer."""
    monkeypatch.setattr(lookup, "make", lambda _: Parrot())
    one = turns(target, TWICE)
    one.ask_first(TWICE)
    one.add(parse_all("lookup", {})[1:], None)
    return one


def test_streamed_items_are_gated_and_measured_at_once_and_teach_each_other(streaming: Turns) -> None:
    groups = list(streaming.streamed(TWICE, (), math.inf))
    assert drafted(groups) == [(0, item, n) for item, n in (("a", 0), ("b", 0), ("c", 0), ("again", 5))]
    assert [set(group.measurements) for group in groups] == [{"plain", "lookup"}] * 4
    assert [entry.verdict.said for entry in streaming.entries] == ["reference", "identical"]


def test_a_streamed_answer_that_is_not_plain_decodings_is_no_speed(
    streaming: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Paceline.answer

    def wrong(system: Paceline, asks: Sequence[Ask]) -> list[Answer]:
        said = answer(system, asks)
        if system.name == "lookup":
            said = [replace(one, tokens=tuple((t + 1) % 50 for t in one.tokens or ())) for one in said]
        return said

    monkeypatch.setattr(Paceline, "answer", wrong)
    list(streaming.streamed(TWICE, (), math.inf))
    assert streaming.entries[1].verdict.said.startswith("NOT LOSSLESS: a from token 0 on")


def test_streaming_goes_on_after_what_is_done(streaming: Turns) -> None:
    assert drafted(streaming.streamed(TWICE, {(0, "a"), (0, "b")}, math.inf)) == [
        (0, "c", 0),
        (0, "again", 5),
    ]


def test_streaming_ends_when_its_time_is_over_but_not_before_the_first_item(streaming: Turns) -> None:
    assert [group.item for group in streaming.streamed(TWICE, (), 0.0)] == ["a"]
    assert streaming.skipped == ["3 of 4 items: their time was over (--minutes)"]


def test_a_streamed_prompt_is_read_once(streaming: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    forward = LlamaTarget.forward

    def forwards(target: LlamaTarget, batch: Any, want: Want) -> Any:
        read.append(sum(part if isinstance(part, int) else 0 for _, part in batch))
        return forward(target, batch, want)

    kept = [entry.system for entry in streaming.entries if isinstance(entry.system, Paceline)]
    for system in kept:
        system._keep_prompts = True
    long = replace(ITEMS[0], id="long", prompt="ab " * 60)
    monkeypatch.setattr(LlamaTarget, "forward", forwards)
    list(streaming.streamed([long], (), math.inf))
    n = len(streaming.asks([long])[0].tokens)
    assert n > 40
    assert 0.8 * n < sum(read) < 1.5 * n


def test_a_bench_that_streams_says_what_one_that_does_not_says(asked: dict[str, Any], tmp_path: Path) -> None:
    plans = [Plan(**asked), Plan(**asked, keep_prompts=True)]
    rows = []
    for plan in plans:
        record = Bench(plan).measure()
        rows.append(
            [(one.system, one.category, one.verdict, one.items, one.n_tokens) for one in record.results]
        )
        assert [one.ttft is None for one in record.results] == [plan.keep_prompts] * len(record.results)
    assert rows[0] == rows[1]
    with History(tmp_path / "bench.sqlite") as history:
        record = Bench(plans[1], history=history).measure()
        assert len(list(record.measurements())) == 9
        history.finish(1, "interrupted", [])
        again = Bench(Plan.read(history.run(1).plan), history=history, run=1).measure()
        assert (again.status, len(again.results)) == ("done", 9)


def test_a_time_that_is_given_chooses_items_which_a_resumed_run_takes_again(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    told: list[Outlook] = []
    with History(tmp_path / "bench.sqlite") as history:
        plan = Plan(**asked, keep_prompts=True, minutes=1e-9)
        record = Bench(plan, history=history, announce=told.append).measure()
        (outlook,) = told
        assert (outlook.items, outlook.of, outlook.systems, outlook.rounds) == (1, 3, 3, 1)
        assert outlook.full is not None
        assert outlook.full > outlook.seconds > 0
        assert {one["item"] for one in record.measurements()} == set(record.plan.only)
        stored = Plan.read(history.run(1).plan)
        assert stored.only == record.plan.only
        history.finish(1, "interrupted", [])
        again = Bench(stored, history=history, run=1).measure()
    assert [one.items for one in again.results] == [1, 1, 1]


def ending(target: Models, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `token` ends a text."""
    vocab = replace(target.plain.target.vocab, eos=frozenset({token}))
    monkeypatch.setattr(target.plain.target, "vocab", vocab)


@pytest.fixture
def target(models: Path) -> Iterator[Models]:
    with Models({"target": models / "target.gguf", "sessions": 2, **EXACT}) as loaded:
        yield loaded


def turns(target: Models, items: Sequence[Item], **settings: Any) -> Turns:
    defaults: dict[str, Any] = {"n": None, "depth": 0, "ignore_eos": True, "sampling": Sampling(), "seed": 0}
    prompts = Prompts(target.plain, items, **defaults | settings)
    return Turns(target, parse_all("plain", {})[0], prompts, unwatched)


def test_requests_at_once_say_what_each_says_alone(target: Models, models: Path) -> None:
    one = turns(target, ITEMS)
    one.ask_plainly(ITEMS, 2)
    one.add(parse_all("lookup,model", {})[1:], models / "draft.gguf")
    one.check(Sampling(), 0)
    assert [entry.said for entry in one.entries[1:]] == [one.plain.said] * 2
    (group,) = [group for group in one.rounds(1, ()) if group.item == "b+c"]
    plain = group.measurements["plain"]
    assert (plain.answers, plain.n_tokens, plain.tokens) == (2, 12, 12)
    assert group.category == "two"
    assert [entry.verdict.said for entry in one.entries] == ["reference", "identical", "identical"]


def test_an_answer_that_ends_is_cut_there_for_every_system(
    target: Models, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = turns(target, ITEMS)
    one.ask_plainly(ITEMS, 1)
    said = one.plain.said["a"]
    assert len(said) == 6
    end = said[3]
    assert end not in said[:3]
    ending(target, end, monkeypatch)
    cut = turns(target, ITEMS)
    cut.ask_plainly(ITEMS, 1)
    assert cut.plain.said["a"] == said[:3]
    cut.add(parse_all("lookup", {})[1:], None)
    cut.check(Sampling(), 0)
    group = next(cut.rounds(1, ()))
    assert {name: m.n_tokens for name, m in group.measurements.items()} == {"plain": 3, "lookup": 3}
    assert cut.entries[1].verdict.said == "identical"


def test_a_session_goes_on_with_what_the_model_said_until_its_end(
    target: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Item("s.1", "one", messages=(("user", "ab"),), max_tokens=6, session="s")
    second = Item(
        "s.2", "one", messages=(("user", "ab"), ("assistant", None), ("user", "c")), max_tokens=6, session="s"
    )
    one = turns(target, [first])
    one.ask_plainly([first], 1)
    said = one.plain.said["s.1"]
    ending(target, said[2], monkeypatch)
    both = turns(target, [first, second])
    both.ask_plainly([first, second], 1)
    answer = b"".join(map(target.plain.target.text.piece, said[:2])).decode(errors="replace")
    assert both._asks["s.2"].prompt == f"User: ab\n\nAssistant: {answer}\n\nUser: c\n\nAssistant:"


def test_rounds_go_on_where_they_were_left(target: Models) -> None:
    one = turns(target, ITEMS)
    one.ask_plainly(ITEMS, 1)
    groups = one.rounds(2, {(0, "a"), (1, "c")})
    assert [(group.round, group.item) for group in groups] == [(0, "b"), (0, "c"), (1, "a"), (1, "b")]


def test_memory_of_a_draft_is_told_apart_from_the_targets(target: Models, models: Path) -> None:
    one = turns(target, ITEMS)
    one.ask_plainly(ITEMS, 1)
    one.add(parse_all("lookup,model", {})[1:], models / "draft.gguf")
    plain, lookup, model = (entry.system.memory() for entry in one.entries)
    assert plain == lookup == target.memory
    assert model == target.memory + target.added[models / "draft.gguf"]
    assert isinstance(one.llm, type(target.plain))
    assert one.llm.draft is not None


def test_an_answer_tells_its_times_and_counts(target: Models, models: Path) -> None:
    method = parse_all("model:n_draft=2:p_min=0", {})[1]
    system = Paceline(method, target, models / "draft.gguf")
    tokens = tuple(target.plain.tokens("ab ab ab ab"))
    (answer,) = system.answer([Ask("ab ab ab ab", tokens, 8)])
    assert (answer.n_tokens, len(answer.tokens or ()), answer.n_prompt) == (8, 8, 11)
    assert answer.drafted is not None
    assert answer.accepted is not None
    assert answer.steps == 8 - answer.accepted
    assert answer.drafted >= answer.accepted
    assert 0 < answer.first < answer.seconds
    assert 0 < answer.decoding < answer.seconds
    assert answer.parts is not None
    assert 0 < answer.parts.forward_seconds < answer.parts.seconds
    # Its prompt is so short that the first step reads it, and is left out.
    assert answer.decoded < 8
    assert answer.parts.steps == answer.steps - 1
    again = system.answer([Ask("", tokens, 8)])[0]
    assert again.tokens == answer.tokens


def test_a_prompt_read_apart_leaves_every_step_to_decoding(target: Models, models: Path) -> None:
    tokens = tuple(target.plain.tokens("ab cd ef gh ij kl " * 8))
    for name, draft in (("none", None), ("model:n_draft=2:p_min=0", models / "draft.gguf")):
        method = parse_all(name, {})[-1]
        (answer,) = Paceline(method, target, draft).answer([Ask("", tokens, 8)])
        assert answer.decoded == answer.n_tokens == 8
        assert answer.parts is not None
        assert answer.parts.steps == answer.steps
        # The draft had read the prompt by then, and nothing is left of it for the first step to read.
        assert 0 < answer.parts.seconds <= answer.decoding < answer.seconds


@pytest.mark.parametrize("keep", [False, True])
def test_prompts_that_are_kept_are_read_once_for_all_methods(
    target: Models, models: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    read: list[int] = []
    plan = LlamaSession.plan_reading

    def noting(self: LlamaSession, n: int, batch: Any) -> None:
        read.append(n)
        plan(self, n, batch)

    monkeypatch.setattr(LlamaSession, "plan_reading", noting)
    tokens = tuple(target.plain.tokens("ab cd ef gh ij kl " * 8))
    said = []
    for name, draft in (("none", None), ("lookup", None), ("model:n_draft=2:p_min=0", models / "draft.gguf")):
        system = Paceline(parse_all(name, {})[-1], target, draft, keep_prompts=keep)
        said += system.answer([Ask("", tokens, 8)])
        assert said[-1].decoded == 8
    assert len({answer.tokens for answer in said}) == 1
    # The target for each of three, and the draft; or each model once.
    assert len(read) == (2 if keep else 4)
