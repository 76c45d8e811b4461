"""Models that are nowhere, for advice about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.doctor.drafts import Measured, MeasuredFacts
from paceline.models.compatibility.known_pairs import KnownPair
from paceline.models.headers.facts import ModelFacts
from paceline.speculative.policy.costs import DecodingCosts, PassCosts

PAIR = KnownPair(
    ("kin*",), (), 0, "hf.co/maker/kin-0.5B-GGUF:Q8_0", 500_000_000, "of its kin", "mind the gap", "https://x.y",
)  # fmt: skip


def facts(name: str = "target", family: str = "kin-1", billions: float = 8.0, **more: Any) -> ModelFacts:
    """At Q8_0, if nothing else is said."""
    parameters = round(billions * 1e9)
    values: dict[str, Any] = {
        "files": (Path(f"/models/{name}.gguf"),),
        "format": "gguf",
        "name": name,
        "arch": "llama",
        "family": family,
        "parameters": parameters,
        "quantisation": "Q8_0",
        "size": round(parameters * 8.5 / 8),
        "n_ctx": 8192,
        "kv_bytes": 1000,
    }
    return ModelFacts(**values | more)


def gained(speedup: float, source: str = "bench 12", **more: Any) -> Measured:
    values: dict[str, Any] = {"low": speedup - 0.1, "high": speedup + 0.1, "acceptance": 0.5} | more
    return Measured(speedup, source=source, **values)


def known(
    per_row: float | None = 0.1,
    drafts: dict[str, float] | None = None,
    past: dict[str | None, Measured] | None = None,
    available: int = 10**12,
) -> MeasuredFacts:
    """per_row: seconds of each row of the target beyond the first, which takes one; None where it was never
    measured. drafts: seconds of a token, by name; a hundredth where not named. past: by the draft's name, or
    None for what copies."""

    def costs(draft: ModelFacts | None) -> DecodingCosts | None:
        if per_row is None:
            return None
        token = None if draft is None else PassCosts.flat((drafts or {}).get(draft.name, 0.01))
        return DecodingCosts(PassCosts.flat(1.0, per_row), token, 0.0)

    return MeasuredFacts(
        costs, lambda draft: (past or {}).get(None if draft is None else draft.name), available
    )
