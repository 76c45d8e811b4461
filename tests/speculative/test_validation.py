"""Type checks of settings, and their messages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.settings import MAX_TOKENS, Drafting, make_settings
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import count, format_bytes, printable, truncated
from paceline.speculative.sampling import Sampling, probabilities
from paceline.speculative.validation import (
    MAX_LOGIT,
    did_you_mean,
    read_number,
    read_numbers,
    setting,
    settings_of,
    validate_fields,
)

# Of numbers, what is no whole one or none at all.
NO_INTS: tuple[Any, ...] = (1.5, 2.0, "5", True, np.bool_(True), None, [1], np.float32(3), Decimal(3), b"1")
NO_FLOATS: tuple[Any, ...] = ("0.5", True, np.bool_(False), None, [0.5], 1j, b"1", np.array([0.5, 1.0]))
ROW = np.array([3.0, -1.0, 0.5, -np.inf, 2.0], dtype=np.float32)
HOT: dict[str, Any] = {"temperature": 1.0}  # what some settings need


def fields_of(kind: Any, annotation: str) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.type == annotation]


NO_BIASES: tuple[Any, ...] = (5, [(5, 1.0)], {"5": 1}, {1.5: 1.0}, {5: "1"}, {True: 1.0}, {5: None})
WRONG: dict[str, tuple[Any, ...]] = {
    "int": NO_INTS,
    "float": NO_FLOATS,
    "str": (5, None, b"rate", ["auto"]),
    "tuple[str, ...]": (5, None, b"model", {"model": 1}, [1], ("lookup", 2)),
    "Mapping[int, float]": NO_BIASES,
}
CASES = [
    (kind, name, value)
    for kind in (Sampling, Drafting)
    for annotation, values in WRONG.items()
    for name in fields_of(kind, annotation)
    for value in values
    if value is not None or getattr(kind, name, "") is not None  # None may be the default
]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_setting_of_the_wrong_type_is_refused_by_its_name(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name}.*must be "):
        make_settings(kind, {name: value})
    with pytest.raises(UsageError, match=f"^{name}.*must be "):
        kind(**{name: value})


def test_what_is_refused_says_what_came_and_what_is_wanted() -> None:
    said: dict[Callable[[], Any], str] = {
        lambda: Sampling(top_k=1.5): "top_k 1.5: must be a whole number",  # type: ignore[arg-type]
        lambda: Sampling(temperature="0.5"): "temperature '0.5': must be a number",  # type: ignore[arg-type]
        lambda: Sampling(logit_bias={"5": 1}): "logit_bias: token '5': must be a whole number",  # type: ignore[dict-item]
        lambda: Drafting(drafters=5): "drafters 5: must be text, or a list of texts",  # type: ignore[arg-type]
        lambda: typed.boolean("plain", "no"): "plain 'no': must be True or False",
        lambda: typed.integer("seed", "a\n" * 99): "seed 'a\\\\na",
        lambda: typed.number("x", 10**400): r"x 10{17}\.\.\.0{19}: must be a number that fits into 64 bits",
        lambda: typed.number("x", 10**9999): "x of thousands of digits: must be",
        lambda: typed.text("the prompt", "ab\ud800"): r"the prompt is not UTF-8 text \(character 2\)",
    }
    for make, words in said.items():
        with pytest.raises(UsageError, match=f"^{words}"):
            make()


@dataclasses.dataclass(frozen=True)
class Options:
    tokens: int = setting(7, "Most tokens.", 1, 4096)
    share: float = setting(1.0, "Of a prompt.", high=1.0)
    seed: int | None = setting(None, "Of the sampler.", 0)
    rule: str = setting("auto", "Of verification.", choices=("auto", "token"))
    names: tuple[str, ...] = setting(tuple, "Of drafters.")
    other: object = None

    def __post_init__(self) -> None:
        validate_fields(self)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("tokens", 0, "tokens 0: must be between 1 and 4,096"),
        ("tokens", 4097, "tokens 4097: must be between 1 and 4,096"),
        ("tokens", None, "tokens None: must be a whole number"),
        ("share", 1.5, "share 1.5: must be at most 1"),
        ("share", math.nan, "share nan: must be at most 1"),
        ("seed", -1, "seed -1: must be at least 0"),
        ("rule", "tokens", "unknown rule 'tokens' (did you mean token?): choose from auto, token"),
    ],
)
def test_setting_out_of_its_range_is_refused(name: str, value: Any, error: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Options(**{name: value})
    assert str(refusal.value) == error


def test_settings_have_defaults_and_help() -> None:
    assert Options(tokens=np.int64(4096)) == Options(4096, 1.0, None, "auto", (), None)  # type: ignore[arg-type]
    assert Options(seed=0, share=-1.0, other=1).other == 1
    about = settings_of(Options)
    assert list(about) == ["tokens", "share", "seed", "rule", "names"]
    assert about["tokens"].help == "Most tokens."


def test_numbers_of_numpy_become_pythons() -> None:
    given = Sampling(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        min_p=Fraction(1, 4),  # type: ignore[arg-type]
        logit_bias={np.int32(5): np.float64(-1)},  # type: ignore[dict-item]
    )
    assert given == Sampling(temperature=0.5, top_k=3, min_p=0.25, logit_bias={5: -1.0})
    plain = (given.temperature, given.top_k, given.min_p, *given.logit_bias, *given.logit_bias.values())
    assert [type(value) for value in plain] == [float, int, float, int, float]
    drafting = Drafting(drafters=["lookup"], n_draft=np.int64(3), p_min=1)  # type: ignore[arg-type]
    assert drafting == Drafting(drafters=("lookup",), n_draft=3, p_min=1.0)
    assert Drafting(drafters="lookup") == Drafting(drafters=("lookup",))  # type: ignore[arg-type]


EXTREMES = [0, -0.0, 5e-324, 1e-40, 1e-15, 1.0, 1e15, 1e39, 1.7e308, 1 << 70, 10**400, np.inf, np.nan]
EXTREMES += [-np.inf]


@pytest.mark.parametrize("value", EXTREMES, ids=lambda value: f"{float(value) if value < 1e300 else 'huge'}")
@pytest.mark.parametrize("name", [*fields_of(Sampling, "float"), "logit_bias"])
def test_any_number_is_refused_or_leaves_a_distribution(name: str, value: Any) -> None:
    """On float32 rows, alone and with extreme values of all other settings. Warnings are errors."""
    most = {
        "repeat_penalty": MAX_LOGIT,
        "presence_penalty": MAX_LOGIT,
        "frequency_penalty": MAX_LOGIT,
        "logit_bias": {2: MAX_LOGIT},
    }
    for others in (HOT, HOT | most, HOT | most | {"repeat_penalty": 1 / MAX_LOGIT}):
        given = {2: value} if name == "logit_bias" else value
        try:
            sampling = Sampling(**others | {name: given})
        except UsageError:
            continue
        p = probabilities(ROW, sampling, [0, 1, 2, 2] * 500)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert p[3] == 0.0


@pytest.mark.parametrize(
    ("setting", "bounds"),
    [
        ({"temperature": 1e39}, "temperature 1e+39: must be between 0 and 1e+15"),
        ({"repeat_penalty": 1e39}, "repeat_penalty 1e+39: must be between 1e-15 and 1e+15"),
        ({"repeat_penalty": 1e-40}, "repeat_penalty 1e-40: must be between 1e-15 and 1e+15"),
        ({"presence_penalty": -1e39}, "presence_penalty -1e+39: must be between -1e+15 and 1e+15"),
        ({"frequency_penalty": 1e39}, "frequency_penalty 1e+39: must be between -1e+15 and 1e+15"),
        (
            {"logit_bias": {5: 1e39}},
            "logit_bias 5=1e+39: needs a token id, and a number between -1e+15 and 1e+15",
        ),
        ({"logit_bias": {5: -1e39}}, "logit_bias 5=-1e+39: needs a token id, and a number between"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias -1=1.0: needs a token id"),
    ],
)
def test_what_a_32_bit_logit_cannot_hold_is_refused_with_the_bounds(
    setting: dict[str, Any], bounds: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        Sampling(**setting)
    assert bounds in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["n_draft", "width", "lookahead_window", "lookahead_ngram", "lookahead_guesses", "ngram_max"]
)
def test_what_room_is_made_for_has_a_bound(name: str) -> None:
    values: dict[str, Any] = {"ngram_max": 5} | {name: MAX_TOKENS}
    assert Drafting(drafters=("lookup",), **values)
    for more in (MAX_TOKENS + 1, 1 << 70):
        with pytest.raises(UsageError, match=f"{name} {more}: must be between . and 4,096"):
            make_settings(Drafting, {"drafters": ("lookup",), name: more})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sufix", " (did you mean suffix?)"),
        ("LOOKUP", " (did you mean lookup?)"),
        ("lookahea", " (did you mean lookahead?)"),
        ("guess", ""),
        ("lookup", ""),  # the name is right, something else is wrong
        ("x" * 1_000_000, ""),
    ],
)
def test_a_misspelt_name_is_met_with_the_nearest(name: str, hint: str) -> None:
    assert did_you_mean(name, ["suffix", "lookup", "lookahead"]) == hint


@given(st.text())
def test_it_is_one_line_of_what_can_be_printed_and_leaves_the_rest(text: str) -> None:
    said = printable(text)
    assert said.isprintable()
    assert printable(said) == said
    if text.isprintable():
        assert said == text


def test_a_quotation_is_cut_where_it_is_long() -> None:
    assert truncated("a\nb") == "a\\nb"
    assert truncated("x" * 300) == "x" * 300
    assert truncated("x" * 301) == "x" * 300 + "..."
    assert truncated("abc", 2) == "ab..."


def test_amounts_are_read_at_a_glance() -> None:
    assert [format_bytes(n) for n in (0, 999, 1000, 4_700_000, 4_683_073_952)] == [
        "0 bytes", "999 bytes", "1.00 kB", "4.70 MB", "4.68 GB"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "x", "٢", "1_0", "1e999", "nan", "1" * 25])
def test_a_text_that_is_no_finite_ascii_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        read_number(float, text)
    with pytest.raises(UsageError, match="--list"):
        read_numbers(int, "--list", f"1,{text or 'x'}")


def test_numbers_and_lists_of_numbers_are_read() -> None:
    assert (read_number(int, " -5 "), read_number(float, "1e-3")) == (-5, 0.001)
    assert (read_numbers(int, "--list", "2,4"), read_numbers(float, "--list", "")) == ((2, 4), ())


def test_one_thing_is_not_counted_as_many() -> None:
    assert [count(n, "token") for n in (0, 1, 2_000)] == ["0 tokens", "1 token", "2,000 tokens"]
