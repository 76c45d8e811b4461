"""The best of hundreds of settings in replays of recorded answers (Optuna)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.method import Method
from paceline.bench.replay.replay import MethodReplay, ReplayContext
from paceline.settings import AUTO, Drafting
from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.tune.candidates import PLAIN_DECODING, method_of

MAX_TRIALS = 400
COPIERS: tuple[str, ...] = ("lookup", "suffix", "suffix+lookup", "ngram", AUTO)
WITH_DRAFT: tuple[str, ...] = ("model", "lookup+model", "suffix+model", AUTO)


def search_replays(
    recordings: Sequence[Recording], context: ReplayContext, drafters: Sequence[str],
    base: Mapping[str, Any], *, draft: Path | None, seconds: float, seed: int, n: int,
) -> list[tuple[float, Method]]:  # fmt: skip
    """Return the n best methods by their predicted speedup in replays of recorded answers.
    drafters: what is chosen from. base: fields of Drafting for all. draft: the file of the context's draft.
    Raises MissingExtraError without Optuna."""
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

    plain = replayed(PLAIN_DECODING.method)

    def objective(trial: optuna.Trial) -> float:
        names = trial.suggest_categorical("drafters", drafters)
        policy = trial.suggest_categorical("policy", ("goodput", "p_min", "fixed"))
        settings: dict[str, Any] = {"drafters": tuple(names.split("+")), "policy": policy}
        settings["n_draft"] = trial.suggest_int("n_draft", 2, 32, log=True)
        if policy == "p_min":
            settings["p_min"] = trial.suggest_float("p_min", 0.1, 0.9, step=0.1)
        if "lookup" in names:
            settings["ngram_min"] = trial.suggest_int("ngram_min", 1, 4)
        try:
            method = method_of({**settings, **base}, draft)
            if method.name not in found:
                found[method.name] = plain / replayed(method), method
        except UsageError as error:
            raise optuna.TrialPruned from error
        return found[method.name][0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for names in drafters:  # the defaults first
        drafting = Drafting(drafters=tuple(names.split("+")))
        usual = {"drafters": names, "ngram_min": 3}
        usual |= {name: getattr(drafting, name) for name in ("policy", "n_draft", "p_min")}
        study.enqueue_trial(usual)
    study.optimize(objective, n_trials=MAX_TRIALS, timeout=seconds)
    return sorted(found.values(), key=lambda pair: -pair[0])[:n]
