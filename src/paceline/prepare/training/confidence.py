"""Training of a confidence (heads/confidence.py) for a draft model or head, on the target's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import __version__
from paceline.api import LLM
from paceline.heads.arrays import sigmoid
from paceline.heads.confidence import KIND, NAMES, Confidence, row_features
from paceline.heads.target import HeadTarget
from paceline.prepare.training.answers import FEATURES, Note, Report
from paceline.prepare.training.evaluate import draft_along, walk
from paceline.prepare.training.features import Recorded, Sequences, TrainingFeatures, TrainingSequence
from paceline.prepare.training.generation import gather_answers
from paceline.prepare.training.options import TrainingOptions
from paceline.prepare.training.prompts import TrainingPrompts
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.tree import chain
from paceline.vocab.translation import check_shared

RIDGE, STEPS = 1.0, 25
MIN_TOKENS = 250  # of the answers to learn from, and of the held-out ones
LINE = [NAMES.index(name) for name in ("bias", "logit p1")]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Examples:
    """Drafted tokens: what the confidence sees of each [n, features], and whether it was accepted."""

    features: Floats
    accepted: Floats


def collect(
    draft: Target, sequences: Recorded, n_draft: int, tick: Callable[[], object] = lambda: None
) -> Examples:
    """Draft along the answers as greedy decoding does, and note every drafted token."""
    rows, labels = list[Floats](), list[float]()

    def right_of(sequence: TrainingSequence) -> Callable[[int], int]:
        tick()
        session, score = draft.open(), 1.0

        def is_right(drafted: list[int], token: int) -> bool:
            nonlocal score
            (out,) = draft.forward([(session, chain(drafted, "draft"))], RequiredOutputs())
            logits = out.logits(len(drafted))
            p = np.exp(logits - logits.max())
            p /= p.sum()
            best = int(logits.argmax())
            rows.append(row_features(p, len(drafted), score if drafted else 1.0))
            labels.append(float(best == token))
            score = float(p[best])
            return best == token

        return draft_along(sequence, session, n_draft, is_right)

    drafts = ((sequence, right_of(sequence)) for sequence in sequences)
    walk(drafts, n_draft, reads_target=isinstance(draft, HeadTarget))
    if not rows:
        raise UsageError("no token was drafted along the answers: let them be longer (-n)")
    return Examples(np.stack(rows), np.array(labels))


def train_confidence(
    llm: LLM,
    prompts: TrainingPrompts,
    options: TrainingOptions,
    report: Report = lambda _stage, _progress: None,
    note: Note = lambda _line: None,
) -> dict[str, Any]:
    """Train a confidence for the draft of `llm`, write it, and return its card.
    Raises UsageError without a draft, and VocabError for one of another vocabulary."""
    draft: Any = llm.draft
    if draft is None:
        raise UsageError("a confidence is trained for a draft: give one (-md)")
    check_shared(llm.target.vocab, draft.vocab)
    answers = gather_answers(llm, prompts, options, report, note, MIN_TOKENS)
    layers = sorted(set(draft.config.layer_ids)) if isinstance(draft, HeadTarget) else ()
    source = TrainingFeatures(llm.target, answers, layers)
    training, held_out = Sequences(source, False), Sequences(source, True)
    total, done = len(training) + len(held_out), count(1)

    def tick() -> None:
        report(FEATURES, (next(done), total))

    seen, unseen = (collect(draft, some, options.n_draft, tick) for some in (training, held_out))
    weights = fit(seen)
    # The score alone, as the policy calibrates it: by a line of its logit.
    line = fit(Examples(seen.features[:, LINE], seen.accepted))
    record = {
        "examples": len(seen.accepted),
        "accepted": float(unseen.accepted.mean()),
        "confidence": quality(sigmoid(unseen.features @ weights), unseen.accepted),
        "score": quality(sigmoid(unseen.features[:, LINE] @ line), unseen.accepted),
    }
    card = {"kind": KIND, "paceline": __version__, "acceptance": record, "path": str(options.folder)}
    found = Confidence(str(draft.path), draft.identity()["model"], tuple(weights.tolist()))
    found.write(options.folder, card)
    return card


def fit(examples: Examples) -> Floats:
    """Return the weights of a logistic regression, by Newton's method."""
    x, y = examples.features, examples.accepted
    scale = np.maximum(np.abs(x).max(0), 1e-6)
    x = x / scale
    weights = np.zeros(x.shape[1])
    ridge = RIDGE * np.eye(x.shape[1])  # as of one example
    for _ in range(STEPS):
        p = sigmoid(x @ weights)
        gradient = x.T @ (p - y) + ridge @ weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x + ridge
        step = np.linalg.solve(hessian, gradient)
        weights -= step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(weights / scale)


def quality(probability: Floats, accepted: Floats) -> dict[str, Any]:
    """Return log loss, the probability that an accepted token scores above a refused one (AUC), and for ten
    ranges of the probability its mean, the share of accepted tokens, and their number (reliability)."""
    p = np.clip(probability, 1e-6, 1 - 1e-6)
    loss = float(-(accepted * np.log(p) + (1 - accepted) * np.log(1 - p)).mean())
    groups = [chosen for k in range(10) if (chosen := np.minimum(p * 10, 9).astype(int) == k).any()]
    bins = [[float(p[group].mean()), float(accepted[group].mean()), int(group.sum())] for group in groups]
    order = np.argsort(p, kind="stable")
    ranks = np.empty(len(p))
    ranks[order] = np.arange(1, len(p) + 1)
    positive = accepted.sum()
    negative = len(p) - positive
    auc = 1.0
    if positive and negative:
        auc = (ranks[accepted > 0].sum() - positive * (positive + 1) / 2) / (positive * negative)
    return {"log_loss": loss, "auc": float(auc), "reliability": bins}
