"""The command line's defaults are the library's: it spells them out only so that `--help` imports nothing."""

import inspect

from paceline.cli.run import run
from paceline.config import Drafting
from paceline.speculative.sampling import Sampling


def test_the_defaults_of_the_command_line_are_those_of_the_library() -> None:
    options = {name: p.default for name, p in inspect.signature(run).parameters.items()}
    drafting, sampling = Drafting(), Sampling()
    for name in ("p_min", "ngram_min", "ngram_max", "cross_vocab", "verify", "least"):
        assert options[name] == getattr(drafting, name), name
    for left_open in ("draft", "policy", "n_draft", "width", "p_split"):
        assert options[left_open] is None
    assert options["draft_temp"] == drafting.temperature
    assert options["temperature"] == sampling.temperature
    for name in set(vars(sampling)) - {"temperature", "logit_bias"}:
        assert options[name] == getattr(sampling, name), name
