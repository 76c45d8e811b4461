"""`paceline run` on a tiny random model: the text, the record, the comparison and the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import broken
from command_line import command, run
from paceline.bench import text_comparison as judge
from paceline.bench.text_comparison import Difference

Capture = pytest.CaptureFixture[str]
ACCEPTING = broken.judged_by(broken.everything)
CLASSIC = ["--draft", "lookup,model"]  # drafters that draft whatever passes cost
PROMPT = ("ab ab ab ab", "-n", "24", "--ignore-eos")


@pytest.fixture(scope="module")
def draft(models: Path) -> Path:
    return models / "draft.gguf"


def test_json_has_text_tokens_figures_and_provenance(capsys: Capture, target: Path, draft: Path) -> None:
    done = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, "--json", "--seed", "5")
    record = done.json
    assert (done.code, done.err) == (0, "")
    assert (record["stop_reason"], record["n_prompt"], record["n_tokens"]) == ("length", 11, 24)
    assert len(record["tokens"]) == 24
    assert record["tokens_per_second"] == 24 / record["seconds"]
    stats = record["stats"]
    assert stats["drafted"] == sum(source["drafted"] for source in stats["by_source"].values()) > 0
    assert stats["acceptance_rate"] == stats["accepted"] / stats["drafted"]
    assert stats["acceptance_length"] == 1 + stats["accepted"] / stats["steps"]
    judged, accepted = map(sum, zip(*stats["by_position"], strict=True))
    assert (accepted, judged - accepted <= stats["rejected"]) == (stats["accepted"], True)
    assert list(stats["time"]) == ["draft", "forward", "verify", "commit", "other"]
    provenance = record["provenance"]
    assert provenance["target"]["file"] == "target.gguf"
    assert provenance["draft"]["file"] == "draft.gguf"
    assert provenance["threads"] == 1
    assert provenance["request"]["seed"] == 5
    assert provenance["drafting"]["drafters"] == ["lookup", "model"]


def test_the_default_model_is_the_embedded_one_with_its_draft(capsys: Capture) -> None:
    record = command(capsys, "run", "-t", "1", "-n", "8", "--json", "def add(a, b):").json
    assert record["provenance"]["target"]["file"] == "paceline-target.gguf"
    assert record["provenance"]["draft"]["file"] == "paceline-draft.gguf"
    assert record["provenance"]["drafting"]["drafters"] == ["auto"]
    assert record["provenance"]["drafting"]["policy"] == "goodput"
    assert list(record["stats"]["by_source"]) == ["suffix", "lookup", "model"]
    policy = record["policy"]
    assert 0 <= policy["silent"] + policy["declined"] <= policy["steps"] == record["stats"]["steps"]


def test_every_prompt_source_gives_the_same_text(capsys: Capture, target: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("\ufeffhéllo\n")  # as Windows' editors save it
    rest = ("-n", "6", "--json")
    tokens = run(capsys, target, "héllo\n", *rest).json["tokens"]
    piped = "héllo\n".encode()
    for given in (("-p", "héllo\n"), ("-f", file), (), ("-",)):
        assert run(capsys, target, *given, *rest, stdin=piped).json["tokens"] == tokens, given


def test_random_seed_is_printed_and_reproduces_the_text(capsys: Capture, target: Path) -> None:
    drawn = ("ab ab", "-n", "24", "--ignore-eos", "--temp", "1.5")
    first, second = run(capsys, target, *drawn, "--json"), run(capsys, target, *drawn, "--json")
    assert first.json["text"] != second.json["text"]
    seed = first.json["provenance"]["request"]["seed"]
    assert run(capsys, target, *drawn, "--json", "--seed", str(seed)).json["text"] == first.json["text"]
    done = run(capsys, target, *drawn)
    told = re.match(r"seed (\d+) \(by chance; --seed \1 draws the same again\)\n[\d.]+ tokens/s", done.err)
    assert told
    assert run(capsys, target, *drawn, "--seed", told[1]).out == done.out


@pytest.mark.parametrize(
    ("sampling", "tree"),
    [
        (["--temp", "0"], []),
        (["--temp", "1.3", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.02", "--seed", "9"], []),
        (["--temp", "0.8", "--seed", "3"], ["--width", "3", "--n-draft", "4"]),
        (["--repeat-penalty", "1.3", "--logit-bias", "65=2"], ["--width", "3", "--n-draft", "4"]),
    ],
)
def test_greedy_drafts_leave_the_text_of_a_seed_as_it_is(
    capsys: Capture, target: Path, draft: Path, sampling: list[str], tree: list[str]
) -> None:
    done = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, *sampling, *tree, "--compare", "--json")
    record, plain, drafted = done.json, done.json["plain"], done.json["drafted"]
    assert (done.code, done.err, record["identical"], record["verdict"]) == (0, "", True, "yes")
    assert plain["tokens"] == drafted["tokens"]
    assert record["speedup"] == drafted["tokens_per_second"] / plain["tokens_per_second"]
    assert plain["stats"]["drafted"] == 0 < drafted["stats"]["drafted"]


def test_compare_prints_both_texts_then_a_table_of_80_columns(capsys: Capture, target: Path) -> None:
    text = run(capsys, target, *PROMPT, "--json").json["text"]
    done = run(capsys, target, "-md", target, *CLASSIC, *PROMPT, "--compare")
    assert done.code == 0
    assert done.err == "--- plain ---\n--- drafted (lookup,model) ---\n\n"
    assert done.out.startswith(f"{text}\n{text}\n")
    lines = done.out.removeprefix(f"{text}\n{text}\n").splitlines()
    plain, drafted = (line.split() for line in lines[2:4])
    assert (plain[0], drafted[0], drafted[2]) == ("plain", "drafted", "24")
    assert lines[-1] == "output identical: yes"
    assert max(map(len, lines)) <= 80


def test_output_that_differs_beyond_noise_fails_with_code_3(
    capsys: Capture, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.speculative.loop.verify", ACCEPTING)
    done = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, "--compare")
    assert done.code == 3
    assert "output identical: NO: not from token " in done.out
    assert done.err.splitlines()[-1].startswith(
        "paceline: drafted output differs from plain output from token"
    )
    as_json = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, "--compare", "--json")
    difference = as_json.json["difference"]
    assert (as_json.code, as_json.json["identical"]) == (3, False)
    assert difference["near_tie"] is False
    assert difference["gap"] > difference["noise"]
    assert as_json.err.count("\n") == 1


def test_output_that_differs_at_a_near_tie_passes_and_says_so(
    capsys: Capture, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.speculative.loop.verify", ACCEPTING)
    monkeypatch.setattr(judge, "explain", lambda *_: Difference(0, 1e-6, 1e-5))
    done = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, "--compare")
    assert done.code == 0
    assert "output identical: up to token 0, a near-tie: the two tokens' logits are 1e-06 apart" in done.out


def test_sources_are_bracketed_without_colours_and_explained(capsys: Capture, target: Path) -> None:
    text = run(capsys, target, *PROMPT, "--json").json["text"]
    done = run(capsys, target, "-md", target, "--draft", "model", *PROMPT, "--show-sources")
    assert done.code == 0
    assert done.err.startswith("sources: target, [model:text]\n")
    assert done.out.count("[model:") >= 2
    plain = run(capsys, target, "--draft", "none", *PROMPT, "--show-sources")
    assert plain.out == f"{text}\n"
    record = run(capsys, target, "-md", target, "--draft", "model", *PROMPT, "--show-sources", "--json").json
    assert record["sources"].count("model") == record["stats"]["accepted"] > 0
    assert "".join(text for text, _ in record["parts"]) == record["text"]
    assert record["sources"].count("target") + record["sources"].count("model") == record["n_tokens"]


def test_the_closing_line_compares_a_drafted_answer_with_plain_decoding(
    capsys: Capture, target: Path
) -> None:
    drafted = ("-md", target, "--draft", "model", "ab ab", "--ignore-eos")
    assert re.search(
        r"about [\d.]+x plain decoding \(model \d+%\)", run(capsys, target, *drafted, "-n", "40").err
    )
    assert "x plain" not in run(capsys, target, *drafted, "-n", "8").err  # too short to compare
    whole = run(capsys, target, *drafted, "-n", "40", "-c", "46").err  # no room for more tokens
    assert "drafted (model" in whole
