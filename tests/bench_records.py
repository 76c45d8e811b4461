"""Bench records made by hand, with the names that a real one has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paceline.bench.summary import BenchResult, Interval


def plain(speed: float = 40.0, category: str = "") -> BenchResult:
    return BenchResult(
        "plain", category, True, "identical", 8, 5, 2560, speed, 0.25,
        ttft=0.1234, tpot=1 / speed, memory=812 * 2**20,
    )  # fmt: skip


def drafted(system: str, gain: tuple[float, float, float], category: str = "", **more: Any) -> BenchResult:
    """gain: the speedup over a plain system of 40 tokens/s, and its interval."""
    told: dict[str, Any] = {
        "speed": 40 * gain[0],
        "speed_sd": 0.5,
        "speedup": Interval(*gain),
        "acceptance_rate": 0.6,
        "acceptance_length": 3.4,
        "ttft": 0.13,
        "tpot": 0.025 / gain[0],
        "draft_share": 0.125,
        "memory": int(1.5 * 2**30),
        "clear": gain[1] > 1 or gain[2] < 1,
    }
    return BenchResult(system, category, True, "1 near-tie", 8, 5, 2560, **(told | more))


def failed(system: str, category: str = "") -> BenchResult:
    verdict = "NOT LOSSLESS: code/3 from token 17 on"
    return BenchResult(system, category, False, verdict, 8, 5, 2560, acceptance_rate=0.5)


def record(results: Sequence[BenchResult], **more: Any) -> dict[str, Any]:
    target = {
        "name": "Tiny",
        "file": "tiny.gguf",
        "size": 2**30,
        "fingerprint": "0123456789abcdef" * 4,
        "description": "llama 1B Q4_0",
    }
    known = {
        "paceline": "0.4.0",
        "engine": "llama-cpp-python 0.3.36",
        "target": target,
        "draft": None,
        "machine": {"system": "Linux x86_64", "processor": "A processor"},
        "threads": 2,
        "flash_attention": False,
        "suite": "code",
        "request": {"temperature": 0.0},
    }
    return {
        "file": "run.jsonl",
        "status": "done",
        "provenance": known,
        "results": [asdict(result) for result in results],
    } | more
