"""Real files whose logits are not numbers: as a target one line and exit code 1, as a draft model a word and
plain output."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import run
from damaged import DAMAGES, write_damaged

Capture = pytest.CaptureFixture[str]
PROMPT = ("def f(x):", "-n", "12", "--ignore-eos")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("damaged")
    return {name: write_damaged(folder / f"{i}.gguf", name) for i, name in enumerate(DAMAGES)}


WAYS: dict[str, tuple[str, ...]] = {
    "plain": ("--draft", "none"),
    "lookahead": ("--draft", "lookahead"),
    "all filters": ("--temp", "1", "--top-k", "9", "--typical", "0.9", "--top-p", "0.9", "--min-p", "0.1"),
    "json": ("--json", "--logprobs", "3"),
    "compare": ("--compare", "--draft", "lookup"),
}


ONE = "NaN in one token's row"


@pytest.mark.parametrize(
    ("damage", "way"),
    [*((ONE, way) for way in WAYS), *((damage, "plain") for damage in DAMAGES if damage != ONE)],
)
def test_a_damaged_target_is_refused_in_one_line_that_names_it(
    capsys: Capture, damaged: dict[str, Path], damage: str, way: str
) -> None:
    done = run(capsys, damaged[damage], *PROMPT, *WAYS[way])
    assert (done.code, done.out) == (1, "")
    said = done.err.splitlines()[-1]  # --compare has a heading before
    assert said.startswith(f"paceline: {damaged[damage]}: its logits are not numbers (NaN) at position ")
    assert "the file is damaged (download it again)" in said


DRAFTERS: dict[str, tuple[str, ...]] = {
    "auto": (),
    "model": ("--draft", "model"),
    "cascade": ("--draft", "cascade"),
    "stack": ("--draft", "lookup,suffix,model", "--min-draft-tokens", "3"),
}


@pytest.mark.parametrize("sampling", [(), ("--temp", "0.8", "--seed", "3")], ids=["greedy", "sampled"])
def test_a_damaged_draft_model_costs_its_drafts_alone(
    capsys: Capture, damaged: dict[str, Path], unrounded: Path, sampling: tuple[str, ...]
) -> None:
    exact = ("--cache-type", "f32", "-fa", "off", "--json", *PROMPT, *sampling)
    plain = run(capsys, unrounded, "--draft", "none", *exact).json
    said = f"paceline: {damaged[ONE]}: the draft model's logits are not numbers (NaN): nothing is drafted"
    for name, drafters in DRAFTERS.items():
        done = run(capsys, unrounded, "-md", damaged[ONE], *exact, *drafters)
        assert (done.code, done.json["text"]) == (0, plain["text"]), name
        assert done.json["stats"]["by_source"]["model"]["drafted"] == 0, name
        assert done.json["stats"]["by_source"]["model"]["tried"] > 0, name
        assert done.err.startswith(said), name
        assert done.err.count("not numbers") == 1, name
