"""The plan of a bench, whose settings the command line reads: nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from paceline.settings import LoadOptions, make_settings
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling_settings import Sampling
from paceline.speculative.validation import setting, validate_fields

FULL_ROUNDS = 5


@dataclass(frozen=True)
class BenchPlan:
    """The configuration of a bench.
    models: files and engine of `load`. drafting: fields of Drafting, for every method.
    methods: comma-separated (method.py). baselines: other programs, KIND[=WHERE].
    keep_prompts: prompts stay in the cache across methods, so that times to the first token mean nothing."""

    models: LoadOptions = field(default_factory=LoadOptions)
    drafting: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    methods: str = "plain"
    baselines: tuple[str, ...] = ()
    suite: str = setting(
        "",
        "Suites: real, toy, single ones (real-code, json, ...), or a file. FILE.jsonl, specbench:FILE, "
        "sessions:FILE. Default: real for a model with a chat template, else toy.",
    )
    size: str = setting("", "tiny or full. Default: by the model.", choices=("", "tiny", "full"))
    items: int = setting(0, "Number of items; 0: by time.", 0)
    rounds: int = setting(FULL_ROUNDS, "Rounds of an item. Default: 1; with --full 5.", 1)
    n: int = setting(0, "Tokens of each answer; 0: the suite's.", 0)
    seed: int = setting(0, "The same seed draws the same texts.", 0)
    keep_prompts: bool = False
    minutes: float = setting(0.0, "Time for all items. Takes as many as fit; 0: all.", 0, 1e6)

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.baselines and self.keep_prompts:
            raise UsageError("--baseline: other programs read every prompt: leave out --keep-prompts")
        others = {baseline.partition("=")[0] for baseline in self.baselines} - {"llama-server"}
        drawn = not self.sampling.greedy and (others or self.sampling.filtered)
        if self.baselines and (drawn or self.sampling.dry):
            why = "only llama-server is compared with --temp, and without top-k, top-p, min-p or DRY"
            raise UsageError(f"--baseline: {why}")
        if self.n == 1:
            raise UsageError("1 token an answer: the speed of decoding shows from the second on")

    def as_dict(self) -> dict[str, Any]:
        models, sampling = self.models.models_as_dict(), asdict(self.sampling)
        return vars(self) | {"models": models, "sampling": sampling}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> BenchPlan:
        plan = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        # JSON keys are strings.
        bias = {int(k): float(v) for k, v in stored["sampling"].get("logit_bias", {}).items()}
        sampling = make_settings(Sampling, {**stored["sampling"], "logit_bias": bias})
        changed = {"sampling": sampling, "baselines": tuple(stored["baselines"])}
        return cls(**plan | changed | {"models": LoadOptions.of(**stored["models"])})
