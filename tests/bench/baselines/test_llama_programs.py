"""Command lines of llama.cpp's programs, checked against their --help (tests/data/llama_cpp)."""

from __future__ import annotations

from pathlib import Path

from paceline.bench.baselines.llama_programs import (
    greedy_arguments,
    model_arguments,
    needs_draft,
    spec_types,
    speculation_arguments,
)
from paceline.speculative.sampling import Sampling

DATA = Path(__file__).parents[2] / "data" / "llama_cpp" / "0.3.36"


def unknown(program: str, *arguments: str) -> list[str]:
    """Return the flags that are not in the program's --help."""
    known = (DATA / f"{program}-help.out.txt").read_text().replace(",", " ").split()
    return [word for word in arguments if word[:1] == "-" and word not in known]


def test_flags_of_the_server_are_in_its_help() -> None:
    target, draft = Path("t.gguf"), Path("d.gguf")
    model = model_arguments(target, draft, n_ctx=512, threads=2, flash_attention=False, cache_type="q8_0")
    assert " ".join(model) == (
        "-m t.gguf -c 512 -t 2 -tb 2 -ngl 0 -ctk q8_0 -ctv q8_0 -fa off -md d.gguf --spec-draft-ngl 0 "
        "-ctkd q8_0 -ctvd q8_0 --fit off"
    )
    spec = speculation_arguments(spec_types("model, lookup,ngram-map-k"), 4, 0.5)
    assert " ".join(spec) == (
        "--spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0.5 --spec-ngram-simple-size-m 4 "
        "--spec-ngram-map-k-size-m 4 --spec-type draft-simple,ngram-simple,ngram-map-k"
    )
    assert unknown("llama-server", *model, *spec) == []


def test_flags_of_penalties_are_in_the_help() -> None:
    given = greedy_arguments(Sampling(repeat_penalty=1.1, logit_bias={5: -1.5}))
    assert " ".join(given) == (
        "--temp 0 --repeat-last-n 64 --repeat-penalty 1.1 --presence-penalty 0 --frequency-penalty 0 -l 5-1.5"
    )
    assert unknown("llama-lookup", *given) == []
    assert greedy_arguments(Sampling()) == ["--temp", "0"]


def test_settings_left_open_have_no_flags() -> None:
    assert speculation_arguments(("draft-mtp",), None, None) == ["--spec-type", "draft-mtp"]
    assert speculation_arguments(("ngram-mod",), 4, 0.5) == ["--spec-type", "ngram-mod"]
    assert speculation_arguments(spec_types("plain"), 4, 0.5) == []
    methods = ("plain", "lookup", "draft-mtp", "lookup,draft-eagle3")
    assert [needs_draft(spec_types(method)) for method in methods] == [False, False, False, True]
