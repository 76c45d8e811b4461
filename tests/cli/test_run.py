"""`paceline run` on a tiny random model: the text, the record, the comparison and the sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from command_line import command, run
from gguf_files import write_llama
from paceline.bench import text_comparison as judge
from paceline.bench.text_comparison import Difference
from paceline.speculative.interfaces import ForwardOutput
from paceline.speculative.sampling import Rng, Sampling
from paceline.speculative.tree import DraftTree
from paceline.speculative.verify import Verdict, verify

Capture = pytest.CaptureFixture[str]
CLASSIC = ["--draft", "lookup,model"]  # drafters that draft whatever passes cost
PROMPT = ("ab ab ab ab", "-n", "24", "--ignore-eos")


@pytest.fixture(scope="module")
def draft(models: Path) -> Path:
    return models / "draft.gguf"


def test_text_goes_to_stdout_and_one_line_of_figures_to_stderr(capsys: Capture, target: Path) -> None:
    text = run(capsys, target, *PROMPT, "--json").json["text"]
    done = run(capsys, target, *PROMPT)
    assert (done.code, done.out) == (0, text + ("" if text.endswith("\n") else "\n"))
    assert done.err.startswith("24 tokens, ")
    assert done.err.count("\n") == 1


def test_json_is_one_object_with_text_tokens_figures_and_provenance(
    capsys: Capture, target: Path, draft: Path
) -> None:
    done = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, "--json", "--seed", "5")
    record = done.json
    assert (done.code, done.err) == (0, "")
    assert list(record) == [
        "text",
        "tokens",
        "stop_reason",
        "n_prompt",
        "n_read",
        "n_tokens",
        "prompt_seconds",
        "prompt_tokens_per_second",
        "seconds",
        "tokens_per_second",
        "stats",
        "provenance",
    ]
    assert (record["stop_reason"], record["n_prompt"], record["n_tokens"]) == ("length", 11, 24)
    assert len(record["tokens"]) == 24
    assert record["tokens_per_second"] == 24 / record["seconds"]
    stats = record["stats"]
    assert list(stats) == [
        "steps",
        "drafted",
        "accepted",
        "rejected",
        "acceptance_rate",
        "acceptance_length",
        "by_source",
        "time",
    ]
    assert stats["drafted"] == sum(source["drafted"] for source in stats["by_source"].values()) > 0
    assert stats["acceptance_rate"] == stats["accepted"] / stats["drafted"]
    assert stats["acceptance_length"] == 1 + stats["accepted"] / stats["steps"]
    assert list(stats["time"]) == ["draft", "forward", "verify", "keep", "other"]
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
    assert record["provenance"]["drafting"]["policy"] == "rate"
    assert list(record["stats"]["by_source"]) == ["suffix", "lookup", "model"]
    policy = record["policy"]
    assert 0 <= policy["silent"] + policy["declined"] <= policy["steps"] == record["stats"]["steps"]


@pytest.mark.parametrize(
    ("names", "sources"),
    [("none", set()), ("lookup", {"lookup"}), ("model", {"model"}), ("model,lookup", {"model"})],
)
def test_draft_names_who_drafts(
    capsys: Capture, target: Path, draft: Path, names: str, sources: set[str]
) -> None:
    files = ["-md", str(draft)] if "model" in names else []
    record = run(capsys, target, *files, "--draft", names, *PROMPT, "--json").json
    stats = record["stats"]["by_source"]
    assert {name for name, source in stats.items() if source["drafted"]} == sources
    assert set(stats) == set(names.split(",")) - {"none"}  # the others were tried
    assert record["provenance"]["drafting"]["drafters"] == names.split(",")


def test_every_way_to_give_the_prompt_gives_the_same_text(
    capsys: Capture, target: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("héllo\n")
    rest = ("-n", "6", "--json")
    tokens = run(capsys, target, "héllo\n", *rest).json["tokens"]
    assert run(capsys, target, "-p", "héllo\n", *rest).json["tokens"] == tokens
    assert run(capsys, target, "-f", file, *rest).json["tokens"] == tokens
    piped = "héllo\n".encode()
    assert run(capsys, target, *rest, stdin=piped).json["tokens"] == tokens
    assert run(capsys, target, "-", *rest, stdin=piped).json["tokens"] == tokens
    assert run(capsys, target, "-f", "-", *rest, stdin=piped).json["tokens"] == tokens
    file.write_text("\ufeffhéllo\n")  # as Windows' editors save it
    assert run(capsys, target, "-f", file, *rest).json["tokens"] == tokens
    assert run(capsys, target, *rest, stdin=file.read_bytes()).json["tokens"] == tokens


def test_generation_stops_before_a_stop_string_and_at_the_end_of_the_context(
    capsys: Capture, target: Path
) -> None:
    text = run(capsys, target, *PROMPT, "--json").json["text"]
    stop = text[5:7]
    record = run(capsys, target, *PROMPT, "--json", "--stop", "never said", "--stop", stop).json
    assert (record["stop_reason"], record["text"]) == ("stop", text[: text.index(stop)])
    full = run(capsys, target, *PROMPT, "-c", "16")
    assert full.code == 0
    assert "the context is full (-c)" in full.err


def test_chat_puts_the_prompt_through_the_models_template(capsys: Capture, tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    model = write_llama(tmp_path / "chat.gguf", chat_template=template)
    said = run(capsys, model, "--chat", "hi", "-n", "5", "--json").json
    spelled = run(capsys, model, "--no-chat", "[user]hi[assistant]", "-n", "5", "--json").json
    assert said["tokens"] == spelled["tokens"]
    assert (said["provenance"]["request"]["chat"], spelled["provenance"]["request"]["chat"]) == (True, False)


def test_the_same_seed_draws_the_same_text_and_another_seed_another(capsys: Capture, target: Path) -> None:
    first, again, other = (
        run(capsys, target, *PROMPT, "--temp", "0.8", "--seed", seed, "--json").json["text"]
        for seed in ("3", "3", "4")
    )
    assert first == again != other


def test_without_a_seed_chance_draws_and_tells_how_to_draw_the_same_again(
    capsys: Capture, target: Path
) -> None:
    drawn = ("ab ab", "-n", "24", "--ignore-eos", "--temp", "1.5")
    first, second = run(capsys, target, *drawn, "--json"), run(capsys, target, *drawn, "--json")
    assert first.json["text"] != second.json["text"]
    seed = first.json["provenance"]["request"]["seed"]
    assert run(capsys, target, *drawn, "--json", "--seed", str(seed)).json["text"] == first.json["text"]
    done = run(capsys, target, *drawn)
    told = re.match(r"seed (\d+) \(by chance; --seed \1 draws the same again\)\n24 tokens", done.err)
    assert told
    assert run(capsys, target, *drawn, "--seed", told[1]).out == done.out


@pytest.mark.parametrize(
    "sampling",
    [
        ["--temp", "0"],
        ["--temp", "0.8", "--seed", "3"],
        ["--temp", "1.3", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.02", "--seed", "9"],
        ["--temp", "0", "--repeat-penalty", "1.3", "--logit-bias", "65=2"],
    ],
)
@pytest.mark.parametrize("tree", [[], ["--width", "3", "--n-draft", "4"]])
def test_greedy_drafts_leave_the_text_of_a_seed_as_it_is(
    capsys: Capture, target: Path, draft: Path, sampling: list[str], tree: list[str]
) -> None:
    done = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, *sampling, *tree, "--compare", "--json")
    record = done.json
    assert (done.code, record["identical"], record["verdict"]) == (0, True, "yes")
    assert record["plain"]["tokens"] == record["drafted"]["tokens"]
    assert record["plain"]["stats"]["drafted"] == 0
    assert record["drafted"]["stats"]["drafted"] > 0


def test_compare_prints_both_texts_then_a_table_of_80_columns(capsys: Capture, target: Path) -> None:
    text = run(capsys, target, *PROMPT, "--json").json["text"]
    done = run(capsys, target, "-md", target, *CLASSIC, *PROMPT, "--compare")
    assert done.code == 0
    assert done.err == "--- plain ---\n--- drafted (lookup,model) ---\n\n"
    assert done.out.startswith(f"{text}\n{text}\n")
    lines = done.out.removeprefix(f"{text}\n{text}\n").splitlines()
    header, plain, drafted, sources, lookup, model, verdict = lines
    assert sources.split() == ["drafter", "tried", "proposed", "right", "drafted", "accepted"]
    assert (lookup.split()[0], model.split()[0]) == ("lookup", "model")
    assert header.split() == ["tokens", "tokens/s", "speedup", "acceptance", "rate", "acceptance", "length"]
    assert plain.split()[::3] == ["plain", "1.00x"]
    assert drafted.split()[:2] == ["drafted", "24"]
    assert verdict == "output identical: yes"
    assert max(map(len, (header, plain, drafted))) <= 80


def test_compare_as_json_prints_one_object_with_both_runs(capsys: Capture, target: Path) -> None:
    done = run(capsys, target, "-md", target, *CLASSIC, *PROMPT, "--compare", "--json")
    record = done.json
    assert (done.code, done.err) == (0, "")
    assert list(record) == [
        "plain",
        "drafted",
        "speedup",
        "identical",
        "n_read",
        "prompt_tokens_per_second",
        "verdict",
        "provenance",
    ]
    plain, drafted = record["plain"], record["drafted"]
    assert record["speedup"] == drafted["tokens_per_second"] / plain["tokens_per_second"]
    # The draft is the target: what it proposes is right, but for what lookup proposed before it.
    assert (
        drafted["stats"]["by_source"]["model"]["drafted"]
        == drafted["stats"]["by_source"]["model"]["accepted"]
    )


def test_sampled_drafts_are_said_to_draw_another_text(capsys: Capture, target: Path, draft: Path) -> None:
    done = run(
        capsys,
        target,
        "-md",
        draft,
        *PROMPT,
        "--temp",
        "1",
        "--draft-temp",
        "1",
        "--seed",
        "0",
        "--compare",
        "--json",
    )
    assert (done.code, done.json["identical"]) == (0, False)
    assert "difference" not in done.json
    assert done.json["verdict"] == "no: sampled drafts draw another text from the same distribution"


def accept_everything(
    tree: DraftTree, out: ForwardOutput, sampling: Sampling, history: list[int], rng: Rng, *how: Any
) -> Verdict:
    """What verification must never do."""
    right = verify(tree, out, sampling, history, rng, *how)
    return Verdict(tuple(range(len(tree))), right.token)


def test_output_that_differs_beyond_noise_fails_with_code_3(
    capsys: Capture, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.speculative.loop.verify", accept_everything)
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
    monkeypatch.setattr("paceline.speculative.loop.verify", accept_everything)
    monkeypatch.setattr(judge, "explain", lambda *_: Difference(0, 1e-6, 1e-5))
    done = run(capsys, target, "-md", draft, *CLASSIC, *PROMPT, "--compare")
    assert done.code == 0
    assert "output identical: up to token 0, a near-tie: the two tokens' logits are 1e-06 apart" in done.out


def test_sources_are_bracketed_where_there_are_no_colours_and_explained(
    capsys: Capture, target: Path
) -> None:
    text = run(capsys, target, *PROMPT, "--json").json["text"]
    done = run(capsys, target, "-md", target, "--draft", "model", *PROMPT, "--show-sources")
    assert done.code == 0
    assert done.err.startswith("sources: target, [model:text]\n24 tokens, ")
    assert done.out.count("[model:") >= 2
    plain = run(capsys, target, "--draft", "none", *PROMPT, "--show-sources")
    assert plain.out == f"{text}\n"


def test_sources_in_json_are_one_a_token(capsys: Capture, target: Path) -> None:
    record = run(capsys, target, "-md", target, "--draft", "model", *PROMPT, "--show-sources", "--json").json
    assert len(record["sources"]) == record["n_tokens"]
    assert record["sources"].count("model") == record["stats"]["accepted"] > 0
    assert set(record["sources"]) == {"model", "target"}


def test_a_bias_of_minus_infinity_forbids_a_token_and_is_valid_json(capsys: Capture, target: Path) -> None:
    first = run(capsys, target, *PROMPT, "--json").json["tokens"][0]
    done = run(capsys, target, *PROMPT, "--json", "--logit-bias", f"{first}=-inf")
    assert first not in done.json["tokens"]
    assert done.json["provenance"]["request"]["logit_bias"] == {str(first): "-inf"}
