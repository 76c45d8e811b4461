"""The settings of another engine's command: the checks that all engines share, methods and model names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.drafter_table import DRAFT
from paceline.settings import Drafting, make_settings
from paceline.speculative.errors import UsageError
from paceline.system.strict_json import parse_json

COPIES = "copies"  # any drafter that copies from texts
DRAFT_MODEL, MTP = "draft_model", "mtp"
VERSION = re.compile(r"[bv]?(\d{1,9}(?:\.\d{1,9}){0,2})(?:\.?(?:rc|post|dev|a|b)\d{0,9})?", re.ASCII)
# Default lengths: copies are cheap, and every token of a draft model costs a pass.
N_DRAFT = {COPIES: 8, DRAFT_MODEL: 4, MTP: 2, "eagle": 3, "eagle3": 3}
HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?")
# vLLM takes the kind of a draft from its name, in this order (config/speculative.py).
NAMES = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
# Settings that other engines have anyway.
ENGINE_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "width": (1,),
    "draft_temp": (0.0,),
    "verify": ("auto", "token"),
    "policy": ("fixed", "p_min"),
    "cross_vocab": ("off",),
    "corpora": ("",),
}


@dataclass(frozen=True)
class EngineRequest:
    """The settings of a command for another engine. "" and 0 leave a setting to the engine.
    model, draft: a folder, a GGUF file, or USER/REPO on the hub. name: the model's name in requests.
    drafters: Paceline's names. n_draft: the longest draft. drafting_settings: other fields of Drafting.
    corpora: names or folders of Paceline's corpora. engine_options: fields of EngineOptions.
    extra_args: further arguments of the engine ("--tensor-parallel-size", "2").
    version: the engine's, such as "0.9.2" or "b8955"; "": the newest that is known here."""

    model: str
    draft: str = ""
    drafters: tuple[str, ...] = ("auto",)
    n_draft: int = 0
    n_ctx: int = 0
    host: str = ""
    port: int = 0
    name: str = ""
    api_key: str = ""
    corpora: tuple[str, ...] = ()
    drafting_settings: Mapping[str, Any] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""

    def __post_init__(self) -> None:
        if self.drafting.plain and (self.drafting_settings or self.draft or self.corpora):
            raise UsageError("nothing is drafted (none): leave out draft model, corpora and draft settings")

    @cached_property
    def drafting(self) -> Drafting:
        """The settings as Drafting. Raises UsageError."""
        n_draft = {"n_draft": self.n_draft} if self.n_draft else {}
        return make_settings(Drafting, {**self.drafting_settings, **n_draft, "drafters": self.drafters})

    def older_than(self, version: str) -> bool:
        return bool(self.version) and version_numbers(self.version) < version_numbers(version)

    def require_version(self, engine: str, what: str, since: Mapping[str, str]) -> None:
        """Raise UsageError if the engine's version is older than the first one known to have something."""
        if self.older_than(first := since.get(what, "0")):
            raise UsageError(f"{engine} {self.version} is not known to have {what}: {first} has it")

    def require_supported_settings(self, engine: str, translated: Collection[str]) -> None:
        """Raise UsageError for a setting that is neither translated nor the engine's default."""
        given = {name: getattr(self.drafting, name) for name in self.drafting_settings}
        for name, value in {**given, "corpora": ",".join(self.corpora)}.items():
            if name not in translated and value not in ENGINE_DEFAULTS.get(name, ()):
                raise UsageError(f"{engine} has no counterpart of {name} {value}: leave it out")

    def server_args(
        self, context: str, taken: Collection[str], name: str = "--served-model-name"
    ) -> list[str]:
        """Return the arguments that engines have in common, and the extra arguments.
        context, name: the engine's flags for the context length and the model's name. taken: prefixes of
        further flags that Paceline sets. Raises UsageError for an extra argument that Paceline sets."""
        flags = {
            "--model": "",  # set elsewhere in the command
            "--model-path": "",
            context: self.n_ctx,
            "--host": self.host,
            "--port": self.port,
            name: self.name,
            "--api-key": self.api_key,
        }
        for argument in self.extra_args:
            flag = argument.partition("=")[0].replace("_", "-")
            if flag in flags or flag.startswith(tuple(taken)):
                why = "which checks it, and not passed on: use its option"
                raise UsageError(f"{flag} is made by Paceline, {why}")
        words = (word for flag, value in flags.items() if value for word in (flag, str(value)))
        return [*words, *self.extra_args]


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without a release candidate's. Raises UsageError."""
    if match := VERSION.fullmatch(text):
        return tuple(map(int, match[1].split(".")))
    raise UsageError(f"version {text[:40]!r}: write numbers, such as 0.9.2 or b8955")


def method_for(engine: str, request: EngineRequest) -> str:
    """Return the method of the drafters: "" for plain decoding, COPIES, or the draft model's kind.
    Raises UsageError for drafters that the engine does not have or cannot combine."""
    if request.drafting.plain:
        return ""
    names = ",".join(request.drafters)
    if any(row.window for row in request.drafting.rows):
        why = f"no rows of the target, which {names} needs: use --draft auto"
        raise UsageError(f"{engine} shows a drafter {why}")
    if not request.draft:
        if names == MTP:
            return MTP
        if names != "auto" and any(DRAFT in row.uses for row in request.drafting.rows):
            raise UsageError(f"--draft {names} needs a draft model: give one (-md)")
        return COPIES
    kind = draft_kind(strip_prefix(request.draft))
    if names not in ("auto", MTP if kind == MTP else "model"):
        raise UsageError(
            f"{engine} drafts by one method at a time, and {names} with a draft model is another: use "
            "--draft model, or leave out -md"
        )
    return kind


def strip_prefix(text: str) -> str:
    """Return a model's folder, file or USER/REPO[:QUANT], without Paceline's prefixes.
    Raises UsageError for a name that only Paceline knows, and for a missing file."""
    name = text.removeprefix("hf:").removeprefix("hf.co/")
    path = Path(name).expanduser()
    if path.exists():
        return str(path)
    if HUB.fullmatch(name.partition(":")[0]):
        return name
    advice = "give its file, its folder, or USER/REPO of the hub"
    raise UsageError(f"{text}: other engines do not know this model: {advice}")


def pair(engine: str, request: EngineRequest) -> tuple[str, str]:
    """Return the names of the model and the draft, or "". Raises UsageError for a GGUF file, too."""
    names = tuple(strip_prefix(name) if name else "" for name in (request.model, request.draft))
    if gguf := [name for name in names if name and is_gguf(name)]:
        raise UsageError(f"{gguf[0]}: {engine} reads no GGUF files: give the model in safetensors")
    return names[0], names[1]


def is_gguf(name: str) -> bool:
    """Return True if a name from `strip_prefix` is a GGUF file."""
    path = Path(name)
    if path.is_file():
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    # USER/REPO:QUANT, USER/REPO/FILE.gguf
    return not path.exists() and (":" in name or name.lower().endswith(".gguf"))


def draft_kind(draft: str) -> str:
    """Return draft_model, eagle, eagle3, dflash or dspark, by config.json or, as vLLM, by the name.
    Raises UsageError for a damaged config.json."""
    if "mtp-gemma" in Path(draft).name.lower():
        return MTP
    path = Path(draft) / "config.json"
    if path.is_file():
        try:
            config = parse_json(path.read_bytes())
            known = f"{config.get('speculators_model_type')} {config.get('architectures')}".lower()
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{path}: is damaged: give the draft anew") from error
        for kind in ("eagle3", "dflash", "dspark", "eagle"):
            if kind in known:
                return kind
    return next((kind for word, kind in NAMES if word in draft.lower()), DRAFT_MODEL)
