"""Profiles: settings that were found for a model, a machine and a task, as JSON files that one may edit."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from paceline.settings import AUTO, Drafting, EngineOptions, LoadOptions, Quality
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable
from paceline.system.home import Warn, home, write_atomic

FORMAT = 1  # raised when a field changes its meaning or is removed
ANY_TASK = "any"
OFF = "none"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


@dataclass(frozen=True)
class Profile:
    """The settings for a target on a machine.
    name: a task, or any other. target: "name" and "fingerprint". machine: "processor" and "cores".
    settings: keywords of `load`, "draft" and "drafters" among them. task: of the suites it was measured on.
    measured: speedups on held-out prompts, with their intervals. Raises UsageError for invalid settings."""

    name: str
    task: str
    target: Mapping[str, str]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    tuned: str = ""  # the date
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name in (AUTO, OFF):
            raise UsageError(f"profile {self.name!r}: a name is letters, digits, . _ -, and not auto or none")
        if "fingerprint" not in self.target or not isinstance(self.settings, Mapping):
            raise UsageError("its target or its settings are missing")
        LoadOptions.of(**self.settings)

    @property
    def path(self) -> Path:
        """The file: one for each target, machine and name."""
        machine = re.sub(r"\W+", "-", f"{self.machine.get('processor')}-{self.machine.get('cores')}")
        return folder() / f"{self.target['fingerprint'][:12]}-{machine.strip('-').lower()}-{self.name}.json"

    @property
    def command(self) -> str:
        """The settings as options of the command line."""
        return as_options(self.settings)

    def save(self) -> None:
        """Write the file, and replace one of the same name. Raises OSError."""
        write_atomic(self.path, json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n")


def as_options(settings: Mapping[str, Any]) -> str:
    """Return keywords of `load` as options of the command line."""
    names = {"target": "-m", "draft": "-md", "drafters": "--draft", "corpora": "--corpus"}
    names |= {"n_ctx": "-c", "flash_attention": "-fa"}
    texts, words = {"True": "on", "False": "off", "None": "auto"}, list[str]()
    for name, value in settings.items():
        for text in (
            value if name == "corpora" else [",".join(value) if isinstance(value, list) else str(value)]
        ):
            words += [names.get(name, f"--{name.replace('_', '-')}"), texts.get(text, text)]
    return shlex.join(words).replace("--exact-greedy on", "--exact-greedy")


def folder() -> Path:
    return home() / "profiles"


def read(path: Path) -> Profile:
    """Read a profile. Raises UsageError for a file that is none."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data.pop("format") != FORMAT:
            raise UsageError("is of another version")
        return Profile(**data)
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = f"is no profile ({printable(str(error))[:80]})"
    except UsageError as error:
        why = str(error)
    raise UsageError(f"{path}: {why}: tune again (paceline tune), or remove it")


def every(warn: Warn) -> Iterator[Profile]:
    """Yield the stored profiles by name. warn: called about a file that is none."""
    for path in sorted(folder().glob("*.json")):
        try:
            yield read(path)
        except UsageError as error:
            warn(str(error))


def choose(
    name: str, fingerprint: str, machine: Mapping[str, Any], warn: Warn, *, anywhere: bool = False
) -> Profile | None:
    """Return the profile of a target on a machine, or else on another (anywhere). name: AUTO takes that for
    any task, or else the only one. Raises UsageError for a named one that is missing, or not for these."""
    found = [profile for profile in every(warn) if name in (AUTO, profile.name)]
    other = [profile for profile in found if profile.target["fingerprint"] == fingerprint]
    fitting = [profile for profile in other if profile.machine == machine] or (other if anywhere else [])
    if name == AUTO:
        usual = [profile for profile in fitting if profile.name == ANY_TASK]
        return usual[0] if usual else fitting[0] if len(fitting) == 1 else None
    if fitting:
        return fitting[0]
    if not found:
        raise UsageError(
            f"no profile {name!r}: `paceline profile list` lists them, `paceline tune` makes one"
        )
    what = f"machine {other[0].machine.get('processor')}" if other else f"model {found[0].target['name']}"
    message = f"profile {name!r} is for the {what}: tune here (paceline tune --profile {name})"
    raise UsageError(printable(message))


def apply(options: LoadOptions, profile: Profile) -> LoadOptions:
    """Return options with a profile's settings for those that were not given."""
    given, tuned = options.drafting.explicit_settings, dict(profile.settings)
    if options.drafting.drafters != (AUTO,):  # the default of `load`
        given["drafters"] = options.drafting.drafters
    draft, corpora = tuned.pop("draft", None), tuple(tuned.pop("corpora", ()))
    parts = {kind: {n: tuned[n] for n in tuned.keys() & names_of(kind)} for kind in (EngineOptions, Quality)}
    engine, quality = (_replaced(now, parts[type(now)]) for now in (options.engine, options.quality))
    drafting = {n: v for n, v in tuned.items() if n in names_of(Drafting)}
    return replace(
        options, draft=options.draft or draft, drafting=Drafting(**{**drafting, **given}), engine=engine,
        quality=quality, corpora=options.corpora or corpora,
    )  # fmt: skip


def _replaced(now: Any, values: Mapping[str, Any]) -> Any:
    usual = type(now)()
    return replace(now, **{n: v for n, v in values.items() if getattr(now, n) == getattr(usual, n)})


def names_of(kind: Any) -> set[str]:
    return {it.name for it in fields(kind) if it.init}
