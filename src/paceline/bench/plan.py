"""The plan of a bench, whose settings the command line reads: nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from paceline.bench.suites.workload import is_file, split_format, suite_names
from paceline.settings import LoadOptions, make_settings
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling_settings import Sampling
from paceline.speculative.validation import setting, validate_fields

FULL_ROUNDS = 5


@dataclass(frozen=True)
class BenchPlan:
    """The configuration of a bench.
    models: files and engine of `load`. drafting: fields of Drafting, for every method.
    methods: comma-separated (method.py). peers: other programs, KIND[=WHERE].
    keep_prompts: prompts stay in the cache across methods, so that times to the first token mean nothing."""

    models: LoadOptions = field(default_factory=LoadOptions)
    drafting: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    methods: str = "plain"
    peers: tuple[str, ...] = ()
    suite: str = setting(
        "",
        "Suites of `bench suites`, or a file. FILE.jsonl, specbench:FILE, sessions:FILE. Default: real for a "
        "model with a chat template, else toy.",
    )
    size: str = setting("", "tiny or full. Default: by the model.", choices=("", "tiny", "full"))
    items: int = setting(0, "Number of items; 0: by time.", 0)
    rounds: int = setting(FULL_ROUNDS, "Rounds of an item. Default: 1; with --full 5.", 1)
    n: int = setting(0, "Tokens of each answer; 0: the suite's.", 0)
    seed: int = setting(0, "The same seed draws the same texts.", 0)
    ignore_eos: bool = True
    keep_prompts: bool = False
    minutes: float = setting(0.0, "Time for all items. Takes as many as fit; 0: all.", 0, 1e6)

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.peers and (self.keep_prompts or not self.sampling.greedy):
            why = "other programs read every prompt, and their sampled output cannot be checked"
            raise UsageError(f"--peer: {why}: leave out --keep-prompts and --temp")
        if self.n == 1:
            raise UsageError("1 token an answer: the speed of decoding shows from the second on")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan with absolute paths, since it may be read in another folder."""
        models = self.models.models_as_dict()
        models |= {role: models[role] and _absolute(models[role]) for role in ("target", "draft")}
        peers = ["".join([*one[:2], _absolute(one[2])]) for one in (p.partition("=") for p in self.peers)]
        suite = self.suite
        if is_file(suite):
            forms = [split_format(part) for part in suite_names(suite)]
            paths = [(form, _absolute(path)) for form, path in forms]
            suite = ",".join(f"{form}:{path}" if form else path for form, path in paths)
        changed = {"models": models, "drafting": dict(self.drafting), "peers": peers, "suite": suite}
        return vars(self) | changed | {"sampling": asdict(self.sampling)}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> BenchPlan:
        plan = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        # JSON keys are strings.
        bias = {int(k): float(v) for k, v in stored["sampling"].get("logit_bias", {}).items()}
        sampling = make_settings(Sampling, {**stored["sampling"], "logit_bias": bias})
        changed = {"sampling": sampling, "peers": tuple(stored["peers"])}
        return cls(**plan | changed | {"models": LoadOptions.of(**stored["models"])})


def _absolute(text: str) -> str:
    """Return the absolute path if the text names a file, and otherwise the text."""
    return str(Path(text).resolve()) if text and Path(text).is_file() else text
