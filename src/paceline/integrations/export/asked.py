"""The request for another engine's command, and the checks that all engines share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paceline.config import MOST, Drafting, checked
from paceline.speculative.errors import UsageError

NAMED = ("drafters", "n_draft")  # which have arguments of their own
# What engines do whether or not it is asked for, and why they do nothing else.
ANYWAY: dict[str, tuple[Any, ...]] = {
    "width": (1,),
    "temperature": (0.0,),
    "verify": ("auto", "token"),
    "policy": ("fixed", "p_min"),
    "cross_vocab": ("off",),
}
WHY = {
    "width": " here, where drafts are chains",
    "temperature": ", the draft model's own",
    "policy": ", where drafts have a fixed length",
    "cross_vocab": ", where a draft has the target's vocabulary",
}


@dataclass(frozen=True)
class Asked:
    """Everything that a command for another engine is made from.

    model, draft: a folder, a GGUF file, or USER/REPO on the hub; "" for no draft.
    drafters: Paceline's names.
    method: the engine's own name of a method ("eagle3", "mtp"), in place of drafters.
    n_draft: the longest draft; 0 leaves it to the engine.
    n_ctx: the context length; 0 is the model's own.
    host, port, name: the address and the model's name there; "" and 0 leave them to the engine.
    api_key: what clients must show.
    corpora: names or folders of Paceline's corpora.
    settings: other fields of Drafting, as they were tuned; refused where they have no meaning there.
    own: the engine's speculative settings by the engine's names, refused where they change the output.
    extra: the engine's other arguments, passed on unchanged ("--tensor-parallel-size", "2").
    """

    model: str
    draft: str = ""
    drafters: tuple[str, ...] = ("auto",)
    method: str = ""
    n_draft: int = 0
    n_ctx: int = 0
    host: str = ""
    port: int = 0
    name: str = ""
    api_key: str = ""
    corpora: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageError("no model is named: give one (-m)")
        for what, value, most in (("n_draft", self.n_draft, MOST), ("port", self.port, 65535)):
            if not 0 <= value <= most:
                raise UsageError(f"{what} {value}: must be from 0 to {most:,}")
        if self.n_ctx < 0:
            raise UsageError(
                f"a context of {self.n_ctx} tokens: must be at least 1, or 0 for the model's own"
            )
        if named := sorted(set(self.settings) & set(NAMED)):
            raise UsageError(f"{named[0]} stands among the settings: it has an argument of its own")
        if self.method and self.drafters != ("auto",):
            names = ",".join(self.drafters)
            raise UsageError(f"the method {self.method} and the drafters {names}: name one of the two")
        if self.drafting.plain and (self.settings or self.own or self.draft):
            raise UsageError(
                "nothing is drafted (none): leave out the draft model and the settings of drafts"
            )

    @cached_property
    def drafting(self) -> Drafting:
        """Return the settings as Drafting. Raises UsageError."""
        n_draft = {"n_draft": self.n_draft} if self.n_draft else {}
        return checked(Drafting, {**self.settings, **n_draft, "drafters": self.drafters})

    def require_settled(self, engine: str, translated: Collection[str]) -> None:
        """Raise UsageError for a setting without a counterpart, unless the engine does just that anyway.

        translated: names of the settings that have a counterpart.
        """
        for name in self.settings:
            value = getattr(self.drafting, name)
            if name not in translated and value not in ANYWAY.get(name, ()):
                raise UsageError(
                    f"{engine} has no counterpart of {name} {value}{WHY.get(name, '')}: leave it out"
                )

    def serving(self, context: str) -> list[str]:
        """Return the arguments that engines have in common. context: the engine's flag for the context."""
        flags = {
            context: self.n_ctx,
            "--host": self.host,
            "--port": self.port,
            "--served-model-name": self.name,
            "--api-key": self.api_key,
        }
        return [word for flag, value in flags.items() if value for word in (flag, str(value))]


def merged(engine: str, tuned: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings as one. Raises UsageError for a setting that is in both."""
    if twice := sorted(set(own) & set(tuned)):
        raise UsageError(f"{engine}: {twice[0]} is set twice, by Paceline's name for it and by its own")
    return {**tuned, **own}


def require_free(engine: str, extra: Collection[str], taken: Collection[str]) -> None:
    """Raise UsageError for an extra argument that Paceline makes itself. taken: flags; `--x*` is a prefix."""
    for argument in extra:
        flag = argument.partition("=")[0].replace("_", "-")
        if any(flag == one or (one.endswith("*") and flag.startswith(one[:-1])) for one in taken):
            raise UsageError(
                f"{engine}: {flag} is made by Paceline, which checks it, and not passed on: use its option"
            )
