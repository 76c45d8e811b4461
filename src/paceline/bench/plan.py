"""The plan of a bench: everything it is configured with, so that a stored bench can continue."""

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
    """The configuration of a bench.

    models: arguments of `load`: files and engine settings. drafting: fields of Drafting, for every method.
    methods: comma-separated (method.py). peers: other programs, KIND[=WHERE].
    suite: name, comma-separated names or file; "" chooses by the model, as does size "".
    items, n: maximum number of items and of tokens per answer; 0 is unlimited.
    rounds: measurements of each item.
    keep_prompts: prompts stay in the cache across methods, so that times to the first token mean nothing.
    minutes: time limit; 0 is unlimited."""

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
        """Return the plan with absolute paths, since it may be read in another folder."""
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
        names = {f.name for f in fields(cls)}
        sampling = dict(stored["sampling"])
        # JSON keys are strings.
        sampling["logit_bias"] = {int(k): float(v) for k, v in sampling.get("logit_bias", {}).items()}
        plan = {name: value for name, value in stored.items() if name in names}
        plan |= {"sampling": validate_drafting(Sampling, sampling), "peers": tuple(stored["peers"])}
        return cls(**plan)


def suite_for(target: Path) -> str:
    """Return the default suite: real requests for a model with a chat template, otherwise texts to
    complete."""
    try:
        return "real" if read_model_facts(model_path(target), tokens=False).chat_template else "toy"
    except (PacelineError, OSError):  # the toy model, or a file that loading will report
        return "toy"


def _whole(text: str) -> str:
    """Return the absolute path if the text names a file, and otherwise the text."""
    return str(Path(text).resolve()) if text and Path(text).is_file() else text
