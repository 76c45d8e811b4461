"""What is tuned, whose settings the command line reads: nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from paceline.hardware.threads import memory_nodes
from paceline.settings import PLACEMENTS, EngineOptions, LoadOptions, make_settings
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import read_number, setting, validate_fields

ADAPTIVE = "k"  # a sweep of n_draft that chooses its values
QUANTISATION = "quantisation"  # of the draft model
# Each value loads the model again.
ENGINE_SETTINGS = {"threads": int, "placement": str, "cache_type": str, "kernels": str}
# Profiles with a task and settings of their own. What a role may change is bounded by the commands that
# recommend it (`paceline experts`, `paceline prefill`).
PRESETS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "architect": ("any", {"role": "quality"}),
    "coder": ("code", {}),
    "frontdoor": ("chat", {"role": "speed"}),
}


@dataclass(frozen=True)
class Sweep:
    """The values of one setting, in order; none for an adaptive sweep."""

    name: str
    values: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Parse NAME=VALUE,VALUE, "k", or "placement" for those of this machine. Raises UsageError."""
        from paceline.bench.method import read_change

        name, _, values = text.partition("=")
        if text == ADAPTIVE:
            return cls(ADAPTIVE)
        if text == "placement":
            return cls(text, PLACEMENTS if len(memory_nodes()) > 1 else PLACEMENTS[:-1])
        place, name = f"--sweep {text}", "n_draft" if name == ADAPTIVE else name
        parts = [one.strip() for one in values.split(",") if one.strip()]
        if name in ENGINE_SETTINGS or name == QUANTISATION:
            kind = ENGINE_SETTINGS.get(name, str)
            try:
                made = tuple(one if kind is str else read_number(kind, one) for one in parts)
            except ValueError:
                raise UsageError(f"{place}: must be whole numbers") from None
            for value in made if name in ENGINE_SETTINGS else ():
                make_settings(EngineOptions, {name: value})  # raises
        else:
            made = tuple(read_change(place, f"{name}={one}")[1] for one in parts or [""])
        if len(set(made)) < max(1, len(made)):
            raise UsageError(f"{place}: a value is missing or given twice: write NAME=4,8,12, or k")
        return cls(name, made)


@dataclass(frozen=True)
class TunePlan:
    """The configuration of a tune.
    models: target and engine. drafts: files of draft models and heads. drafting: fields of Drafting for all
    candidates. drafters: of the points of a sweep. sweeps: see Sweep.parse; without any, settings are
    searched. profile: the name to save under; by default the task, and for sweeps none. save: False saves
    no profile. role: settings of the profile's preset."""

    models: LoadOptions = field(default_factory=LoadOptions)
    drafts: tuple[str, ...] = ()
    drafting: Mapping[str, Any] = field(default_factory=dict)
    drafters: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()
    profile: str = setting(
        "", "Name of the profile: a task, or architect, coder, frontdoor. Default: the task."
    )
    task: str = setting("", "What for: code, edit, json, agent, math, summary, chat, quote, prose or any.")
    suite: str = setting("", "Items of these suites or files instead, as for `paceline bench`.")
    minutes: float = setting(5.0, "Time to measure, after loading.", 0.01, 1e4)
    n: int = setting(96, "Most tokens of each answer.", 8)
    temperature: float = setting(0.0, "Temperature of the answers.", 0, 100)
    seed: int = setting(0, "The same seed searches in the same order.", 0)
    save: bool = True
    role: Mapping[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        validate_fields(self)
        for sweep in self.sweeps:
            Sweep.parse(sweep)
        preset, role = PRESETS.get(self.profile, (self.task or "any", {}))
        if self.task and self.task != preset:
            raise UsageError(f"--profile {self.profile}: is for the task {preset}: leave out --task")
        object.__setattr__(self, "task", preset)
        object.__setattr__(self, "role", role)

    def as_dict(self) -> dict[str, Any]:
        values = {it.name: getattr(self, it.name) for it in fields(self) if it.init}
        return values | {"models": self.models.models_as_dict(), "task": self.task}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> TunePlan:
        lists = {name: tuple(stored[name]) for name in ("drafts", "drafters", "sweeps")}
        task = "" if stored["profile"] in PRESETS else stored["task"]
        models = LoadOptions.of(**stored["models"])
        known = {it.name: stored[it.name] for it in fields(cls) if it.init}
        return cls(**known | lists | {"models": models, "task": task})


def engine_changes(options: EngineOptions) -> dict[str, Any]:
    """Return the engine settings that differ from their defaults and belong to a profile."""
    usual = asdict(EngineOptions())
    names = (*ENGINE_SETTINGS, "flash_attention", "gpu_layers")
    return {name: getattr(options, name) for name in names if getattr(options, name) != usual[name]}
