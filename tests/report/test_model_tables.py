"""The table of a machine's models."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from paceline.report import pairs as report

PLAIN = {
    "model": "ollama:llama3.2:3b",
    "family": "llama-3.2",
    "parameters": 3_212_749_888,
    "quantisation": "Q4_K_M",
    "size": 2_019_377_376,
    "context": 131_072,
    "experts": 0,
    "experts_used": 0,
    "memory": "attention",
    "sliding_window": 0,
    "format": "gguf",
}
MIXED = PLAIN | {
    "model": "bartowski/Qwen_Qwen3-Next-80B-A3B-Instruct-GGUF:Q4_K_M",
    "family": "qwen3-next",
    "parameters": 79_674_391_296,
    "experts": 512,
    "experts_used": 10,
    "memory": "hybrid",
    "sliding_window": 4096,
}


def shown(models: list[dict[str, Any]], file: io.StringIO) -> list[str]:
    report.write_models(models, file)
    return re.sub(r"\x1b\[\d*m", "", file.getvalue()).splitlines()  # which bold is made of


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (None, "-"),
        (1_543_168, "1.5M"),
        (134_515_008, "135M"),
        (596_049_920, "0.6B"),
        (671_026_419_200, "671B"),
    ],
)
def test_parameters_are_said_as_makers_do(n: int | None, text: str) -> None:
    assert report.parameters(n) == text


def test_what_is_piped_is_whole() -> None:
    lines = shown([PLAIN, MIXED], io.StringIO())
    assert lines[0].split() == ["model", "family", "params", "quant", "size", "context", "notes"]
    assert lines[1].split() == ["ollama:llama3.2:3b", "llama-3.2", "3.2B", "Q4_K_M", "2.0", "GB", "128K"]
    assert lines[2].endswith("MoE 10 of 512, hybrid, window 4K")


def test_no_name_reaches_the_terminal_as_it_is() -> None:
    bad = PLAIN | {"model": "/m\x1b[31m\n\udcff.gguf", "family": "x\x07", "quantisation": "[red]Q8"}
    (line,) = shown([bad], io.StringIO())[1:]
    assert line.isprintable()
    assert "/m\\x1b[31m\\n\\udcff.gguf" in line
    assert "[red]Q8" in line
