"""The class that vLLM calls, driven as vLLM's model runner does."""

from __future__ import annotations

import logging
import random
import re
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.registry import open_tokenizer
from paceline.integrations.vllm import Portfolio
from paceline.integrations.vllm.portfolio import best_chain
from paceline.models import zoo
from paceline.prepare.corpus import Sources, build
from paceline.speculative.errors import UsageError
from paceline.speculative.tree import DraftTree
from vllm_runner import Runner, Served, vllm_config

SOURCE = "def total(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n"
PHRASE = [11, 12, 13, 14, 15, 16, 17, 18]


def repeating(n: int) -> Served:
    """A text that says the same again and again, at a length of its own."""
    phrase = [token + 100 * n for token in PHRASE]
    return Served(phrase * 2 + phrase[:n], (phrase[n:] + phrase * 8)[:48])


def noise(seed: int, n: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1000, 60000) for _ in range(n)]


def test_where_vllm_is_the_class_needs_none_of_our_other_dependencies() -> None:
    # vLLM 0.33 wants another llguidance than we do: there Paceline is installed without what it depends on.
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = {re.split("[<>=]", line)[0].replace("-", "_") for line in project["dependencies"]} - {"numpy"}
    assert len(names) > 5
    code = f"""if True:
        import sys
        for name in {sorted(names | {"pynvml"})}:
            sys.modules[name] = None
        from vllm_runner import *
        from paceline.integrations.vllm import Portfolio
        runner = Runner(Portfolio(vllm_config()))
        request = runner.add(Served([1, 2, 3, 4] * 4, [1, 2, 3, 4] * 4))
        runner.run()
        print(request.accepted > 10)
    """
    folder = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"True\n", b"")


def test_rows_that_move_join_leave_and_are_replaced_draft_as_each_would_alone() -> None:
    # A drafter that learns nothing, and a rule that leaves nothing out: drafts depend on no other request.
    settings = vllm_config(paceline={"drafters": ["lookup"], "p_min": 0.0})
    drafts: dict[Served, list[list[int]]] = {}

    def step(runner: Runner) -> None:
        for request, draft in zip(runner.batch, runner.step(), strict=True):
            if request.said:
                drafts.setdefault(request, []).append(draft)

    alone = [repeating(n) for n in range(1, 9)]
    for request in alone:
        runner = Runner(Portfolio(settings))
        runner.add(request)
        while not request.ended:
            step(runner)
    together, draw = [repeating(n) for n in range(1, 9)], random.Random(0)
    runner, waiting = Runner(Portfolio(settings)), list(together)
    while waiting or runner.batch:
        if waiting and len(runner.batch) < 4 and draw.random() < 0.4:
            runner.add(waiting.pop()).pending_tokens = draw.randrange(3)
        if len(runner.batch) > 1:
            runner.swap(*draw.sample(range(len(runner.batch)), 2))
        step(runner)
        runner.leave()
    assert [drafts[request] for request in together] == [drafts[request] for request in alone]
    assert min(request.accepted for request in together) > 30


@pytest.mark.parametrize(("stages", "opened"), [(2, 2), (1, 12)])
def test_with_stages_in_a_pipeline_a_request_may_be_missing_for_a_step(
    stages: int, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portfolio = Portfolio(vllm_config(stages=stages))
    opening = portfolio._drafter.open
    seen: list[int] = []

    def counting(prompt: list[int], seed: int) -> Any:
        seen.append(len(prompt))
        return opening(prompt, seed)

    monkeypatch.setattr(portfolio._drafter, "open", counting)
    runner = Runner(portfolio)
    batches = [[repeating(1)], [repeating(2)]]
    for n in range(12):  # two batches take turns, each of them whole
        runner.batch = batches[n % 2]
        runner.step()
    assert len(seen) == opened


@pytest.mark.parametrize("learn", [True, False])
def test_what_an_ended_request_said_is_drafted_for_the_next_one_unless_they_are_apart(learn: bool) -> None:
    runner = Runner(Portfolio(vllm_config(n_draft=8, paceline={"learn": learn})))
    answer = noise(1, 60)
    runner.add(Served(noise(2, 8), answer))
    runner.run()
    second = runner.add(Served(noise(3, 8), answer))
    runner.run()
    assert second.accepted > 40 if learn else second.drafted == 0


def test_requests_that_ended_are_forgotten() -> None:
    portfolio = Portfolio(vllm_config())
    runner = Runner(portfolio)
    for n in range(20):
        runner.add(repeating(n))
        runner.step()
        runner.batch[-1].said = len(runner.batch[-1].answer)
        runner.leave()
    runner.step()
    assert len(portfolio._requests._by_ending) == len(runner.batch) == 0


def test_no_draft_is_longer_than_asked_or_than_the_context_has_room() -> None:
    portfolio = Portfolio(vllm_config(n_draft=5, n_ctx=40))
    request = repeating(1)
    request.answer = request.answer[: 40 - len(request.prompt)]
    runner = Runner(portfolio, n_ctx=40)
    runner.add(request)
    longest = 0
    while not request.ended:
        (draft,) = runner.step()
        longest = max(longest, len(draft))
        assert len(draft) <= max(0, min(5, 40 - len(request.text) - 1))
    assert longest == 5
    assert len(request.text) == 40
    assert draft == []


def test_an_error_in_one_row_costs_that_row_its_draft(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    portfolio = Portfolio(vllm_config())
    runner = Runner(portfolio)
    bad, good = runner.add(repeating(1)), runner.add(repeating(2))
    propose = portfolio._drafter.propose

    def failing(batch: Any) -> Any:
        if any(PHRASE[0] + 100 in memory.parts[0].text.ring.tolist() for memory, _ in batch):
            raise RuntimeError("one row is broken")
        return propose(batch)

    monkeypatch.setattr(portfolio._drafter, "propose", failing)
    with caplog.at_level(logging.ERROR, "paceline.integrations.vllm"):
        runner.run()
    assert bad.drafted == 0
    assert good.accepted > 30
    assert [record.exc_info is not None for record in caplog.records] == [True]  # said once


def test_all_rows_together_draft_no_more_than_asked_the_likeliest_tokens() -> None:
    runner = Runner(Portfolio(vllm_config(n_draft=8, paceline={"rows": 10})))
    requests = [runner.add(repeating(n)) for n in (1, 2, 3, 4)]
    most = 0
    while not all(request.ended for request in requests):
        most = max(most, sum(map(len, runner.step())))
    assert most == 10
    assert all(request.accepted > 0 for request in requests)


def test_the_chain_is_the_path_that_gains_most_and_ends_where_a_token_costs_more_than_it_gains() -> None:
    def tree(*nodes: tuple[int, int]) -> DraftTree:
        parents, tokens = zip(*nodes, strict=True)
        return DraftTree(tokens, parents, (1.0,) * len(nodes), ("suffix",) * len(nodes))

    # The likelier first token leads to the shorter path.
    fork = tree((-1, 1), (-1, 2), (1, 3), (2, 4))
    assert best_chain(fork, [0.5, 0.45, 0.4, 0.3], 0.1) == [1, 2, 3]
    assert best_chain(fork, [0.5, 0.45, 0.4, 0.3], 0.42) == [0]
    assert best_chain(fork, [0.5, 0.2, 0.1, 0.05], 0.1) == [0]
    assert best_chain(tree((-1, 1)), [0.05], 0.1) == []
    assert best_chain(DraftTree(), [], 0.1) == []


def test_a_corpus_is_drafted_from_with_its_tokenizer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    (tmp_path / "a.py").write_text(SOURCE)
    with closing(open_tokenizer(zoo.target_path())) as tokenizer:
        folder = build("mine", Sources([tmp_path / "a.py"], []), tokenizer)[0].folder
        settings = {"corpora": [str(folder)]}
        path, size = str(tokenizer.path), tokenizer.vocab.size
        runner = Runner(Portfolio(vllm_config(8, n_vocab=size, paceline=settings, tokenizer=path)))
        tokens = tokenizer.text.encode(SOURCE)
    request = runner.add(Served(tokens[:10], tokens[10:]))
    runner.run()
    assert request.accepted > len(request.answer) // 2


ALONE = "does not draft from texts alone: in vLLM choose from auto, suffix"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"drafters": [name]}, ALONE) for name in ("model", "lookahead")),
        *(({"drafters": ["datastore"]}, "needs a corpus"), ({"p_min": 1.5}, "between 0 and 1")),
        ({"rows": 0}, "at least 1"),
        ({"depth": 3}, "unknown setting 'depth': choose from corpora, drafters"),
        ("suffix", "must hold settings"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Portfolio(vllm_config(paceline=settings))
