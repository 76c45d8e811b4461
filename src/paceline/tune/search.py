"""The candidates of a tune: the best of thousands of settings in a replay, and the usual ones of a draft."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.method import Method
from paceline.bench.replay.replay import MethodReplay, ReplayContext
from paceline.drafter_table import DRAFT
from paceline.drafts import kind_of
from paceline.fits import drafters_of
from paceline.settings import AUTO, Drafting, make_settings
from paceline.speculative.errors import MissingExtraError, UsageError

MAX_TRIALS = 400
COPIERS = ("lookup", "suffix", "suffix+lookup", "ngram", AUTO)
DRAFT_LENGTHS = (4, 8, 12, 16, 24)  # of a draft model
HEAD_LENGTHS = (1, 2, 3, 5, 7)
SURE = (0.3, 0.7)  # p_min, beside the default


def method_of(settings: Mapping[str, Any], draft: Path | None = None) -> Method:
    """Return the method of these fields of Drafting, with a name that `paceline bench --methods` reads.
    Raises UsageError."""
    drafting = make_settings(Drafting, settings)
    names = "+".join(drafting.drafters)
    if drafting.plain:
        return Method("plain", drafting)
    changes = [f"{name}={value}" for name, value in drafting.explicit_settings.items()]
    return Method(":".join([names, *changes]), drafting, draft)


def settings_of(method: Method) -> dict[str, Any]:
    """Return the fields of Drafting that make a method, as JSON."""
    return {"drafters": list(method.drafting.drafters), **method.drafting.explicit_settings}


def search_copiers(
    recordings: Sequence[Recording], context: ReplayContext, base: Mapping[str, Any], *,
    seconds: float, seed: int, n: int,
) -> list[tuple[float, Method]]:  # fmt: skip
    """Return the n best methods without a draft by their predicted speedup in replays of recorded answers.
    base: fields of Drafting for all. Raises MissingExtraError without Optuna."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("searching needs Optuna: pip install 'paceline[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = dict[str, tuple[float, Method]]()

    def replayed(method: Method) -> float:
        play = MethodReplay(method, recordings, context)
        try:
            return sum(play.play(recording).seconds for recording in recordings)
        finally:
            play.close()

    plain = replayed(method_of({"drafters": ("none",)}))

    def objective(trial: optuna.Trial) -> float:
        names = trial.suggest_categorical("drafters", COPIERS)
        policy = trial.suggest_categorical("policy", ("goodput", "p_min", "fixed"))
        settings: dict[str, Any] = {"drafters": tuple(names.split("+")), "policy": policy}
        settings["n_draft"] = trial.suggest_int("n_draft", 2, 32, log=True)
        if policy == "p_min":
            settings["p_min"] = trial.suggest_float("p_min", 0.1, 0.9, step=0.1)
        if "lookup" in names:
            settings["ngram_min"] = trial.suggest_int("ngram_min", 1, 4)
        try:
            method = method_of({**settings, **base})
        except UsageError as error:
            raise optuna.TrialPruned from error
        if method.name not in found:
            found[method.name] = plain / replayed(method), method
        return found[method.name][0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for names in COPIERS:  # the defaults first
        drafting = Drafting(drafters=tuple(names.split("+")))
        usual = {"drafters": names, "ngram_min": 3}
        usual |= {name: getattr(drafting, name) for name in ("policy", "n_draft", "p_min")}
        study.enqueue_trial(usual)
    study.optimize(objective, n_trials=MAX_TRIALS, timeout=seconds)
    return sorted(found.values(), key=lambda pair: -pair[0])[:n]


def draft_methods(draft: Path, base: Mapping[str, Any]) -> list[Method]:
    """Return methods with a draft, the most promising first."""
    kind = kind_of(draft)
    drafter = drafters_of(kind)[0]
    lengths = DRAFT_LENGTHS if kind == DRAFT else HEAD_LENGTHS
    varied: list[dict[str, Any]] = [{}]
    varied += [{"policy": "fixed", "n_draft": n} for n in lengths]
    varied += [{"p_min": p} for p in SURE] if kind == DRAFT else []
    settings: list[dict[str, Any]] = [{"drafters": (AUTO,)}]
    settings += [{"drafters": (drafter,), **one} for one in varied]
    settings += [{"drafters": (copier, drafter)} for copier in ("lookup", "suffix")]
    return [method_of({**base, **one}, draft) for one in settings]
