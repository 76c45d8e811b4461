"""The plan of a bench: all that it is asked to do, so that a stored one can go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from paceline.bench.suites.workload import is_file, split_format, suite_names
from paceline.config import validate_drafting
from paceline.models.headers.header import read_model_facts
from paceline.models.names import model_path
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.sampling import Sampling

FULL_ROUNDS = 5


@dataclass(frozen=True)
class BenchPlan:
    """What a bench is asked to do.

    models: what `load` takes of files and engine settings. drafting: fields of Drafting, for every method.
    methods: a comma list (method.py). peers: other programs, KIND[=WHERE]. suite: a name, a comma list or a
    file; "" is what fits the model, and so is size "". items, n: most items, most tokens of an answer; 0 is
    all, 0 is the item's. rounds: times that each is measured. keep_prompts: a prompt stays in the cache for
    the methods that come next; their times to the first token then say nothing. minutes: as many items are
    taken as fit into so many; 0 takes all.
    """

    models: Mapping[str, Any] = field(default_factory=dict)
    drafting: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    methods: str = "plain"
    peers: tuple[str, ...] = ()
    suite: str = ""
    size: str = ""
    items: int = 0
    rounds: int = FULL_ROUNDS
    n: int = 0
    seed: int = 0
    ignore_eos: bool = True
    keep_prompts: bool = False
    minutes: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("rounds", 1), ("items", 0), ("n", 0), ("seed", 0)):
            if getattr(self, name) < low:
                raise UsageError(f"{name} {getattr(self, name)}: must be at least {low}")
        if not 0 <= self.minutes < 1e6:
            raise UsageError(f"--minutes {self.minutes:g}: must be at least 0")
        if self.keep_prompts and self.peers:
            raise UsageError(
                "--keep-prompts: other programs (--peer) read every prompt; leave out one option"
            )
        if self.n == 1:
            raise UsageError("1 token an answer: the speed of decoding shows from the second on")

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, with whole paths: it may be read again in another folder."""
        models = {
            name: _whole(str(value)) if name in ("target", "draft") and value else value
            for name, value in self.models.items()
        }
        peers = [
            f"{kind}{equals}{_whole(where)}" for kind, equals, where in (p.partition("=") for p in self.peers)
        ]
        suite = self.suite
        if is_file(suite):
            forms = [split_format(part) for part in suite_names(suite)]
            suite = ",".join(f"{form}:{_whole(path)}" if form else _whole(path) for form, path in forms)
        changed = {"models": models, "drafting": dict(self.drafting), "peers": peers, "suite": suite}
        return asdict(self) | changed

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> BenchPlan:
        known = {f.name for f in fields(cls)}
        sampling = dict(stored["sampling"])
        # JSON's keys are text.
        sampling["logit_bias"] = {int(k): float(v) for k, v in sampling.get("logit_bias", {}).items()}
        selected = {name: value for name, value in stored.items() if name in known}
        return cls(
            **selected | {"sampling": validate_drafting(Sampling, sampling), "peers": tuple(stored["peers"])}
        )


def suite_for(target: Path) -> str:
    """Return what a model is asked by default: with a chat template what people ask, else to go on with
    texts."""
    try:
        return "real" if read_model_facts(model_path(target), tokens=False).chat_template else "toy"
    except (PacelineError, OSError):  # the toy model, or one that loading will say more about
        return "toy"


def _whole(text: str) -> str:
    """Return a path from the root where the text names a file, and the text itself elsewhere."""
    return str(Path(text).resolve()) if text and Path(text).is_file() else text
