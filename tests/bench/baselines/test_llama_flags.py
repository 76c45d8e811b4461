"""Command lines of llama.cpp's programs, checked against their --help (tests/data/llama_cpp)."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.baselines.llama_flags import (
    model_arguments,
    needs_draft,
    output_of,
    require_types,
    sampling_arguments,
    spec_types,
    speculation_arguments,
)
from paceline.speculative.errors import PeerError
from paceline.speculative.sampling import Sampling

HELP = Path(__file__).parents[2] / "data" / "llama_cpp" / "0.3.36"


def test_the_server_knows_every_flag_that_it_may_be_given() -> None:
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
    known = (HELP / "llama-server-help.out.txt").read_text().replace(",", " ").split()
    assert [flag for flag in [*model, *spec] if flag[:1] == "-" and flag not in known] == []


def test_the_programs_know_every_flag_of_sampling() -> None:
    every = Sampling(
        temperature=0.7, top_k=9, typical_p=0.9, xtc_probability=0.5, repeat_penalty=1.1, logit_bias={5: -1.5}
    )
    given = sampling_arguments(every)
    assert " ".join(given) == (
        "--temp 0.7 --top-k 9 --top-p 1 --min-p 0 --typical 0.9 --xtc-probability 0.5 --xtc-threshold 0.1 "
        "--repeat-last-n 64 --repeat-penalty 1.1 --presence-penalty 0 --frequency-penalty 0 -l 5-1.5"
    )
    known = (HELP / "llama-lookup-help.out.txt").read_text().replace(",", " ").split()
    assert [flag for flag in given if flag[:1] == "-" and flag not in known] == []
    assert sampling_arguments(Sampling()) == ["--temp", "0"]


def test_what_is_left_open_is_left_to_the_program() -> None:
    assert speculation_arguments(("draft-mtp",), None, None) == ["--spec-type", "draft-mtp"]
    assert speculation_arguments(("ngram-mod",), 4, 0.5) == ["--spec-type", "ngram-mod"]
    assert speculation_arguments(spec_types("plain"), 4, 0.5) == []
    methods = ("plain", "lookup", "draft-mtp", "lookup,draft-eagle3")
    assert [needs_draft(spec_types(method)) for method in methods] == [False, False, False, True]


def test_what_a_program_cannot_do_or_say_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho --spec-type ngram-simple\n")
    program.chmod(0o755)
    require_types([str(program)], ["ngram-simple"])
    with pytest.raises(PeerError, match="llama-server does not draft by ngram: see --spec-type"):
        require_types([str(program)], ["ngram"])
    program.write_text("#!/bin/sh\necho libggml.so is missing >&2; exit 127\n")
    with pytest.raises(PeerError, match=r"--help ended with exit status 127; .*libggml.so is missing"):
        output_of([str(program)], "--help")
