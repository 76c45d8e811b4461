"""What a reference to a draft names, and how it is opened: a model, a view of the target, or a draft head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.backends.interface import (
    Backend,
    ComputesWithTensors,
    MakesProducts,
    OffloadsHeads,
    PredictsFurtherTokens,
    ShowsHiddenStates,
    SupportsExits,
)
from paceline.backends.registry import backend_name, open_engine
from paceline.backends.views import ModelView, SupportsViews, parse_view
from paceline.drafter_table import DRAFT, HEADS
from paceline.fits import ABSENT, EXITS, EXPERT_VIEW, LAYER_VIEW, MTP, NO_GRAPH, TOY, TargetTraits, why_not
from paceline.heads.confidence import Confidence, read_confidence
from paceline.heads.exit_target import ExitTarget
from paceline.heads.files import head_config, read_head
from paceline.heads.parallel_draft import ParallelDraft
from paceline.heads.target import HeadTarget
from paceline.models.headers.header import is_assistant, read_model_facts
from paceline.models.headers.plain_file import is_encodable_path
from paceline.models.names import MTP_VIEW, VIEW_PREFIX, is_view, model_path
from paceline.speculative.errors import ModelError, UsageError
from paceline.storage.costs import load_view
from paceline.system.home import to_stderr

PARALLEL = HEADS[ParallelDraft.kind]


def kind_of(reference: Path) -> str:
    """Return the kind of draft, as in fits.py. Raises ModelError for a damaged head."""
    if str(reference) == MTP_VIEW:
        return MTP
    if is_view(reference):
        parts = str(reference).removeprefix(VIEW_PREFIX).split(",")
        return EXPERT_VIEW if all(part.startswith("experts=") for part in parts) else LAYER_VIEW
    if is_assistant(model_path(reference)):
        return MTP
    config = head_config(model_path(reference))
    return DRAFT if config is None else HEADS[config.kind]


def open_confidence(reference: Path | None) -> tuple[Path | None, Confidence | None]:
    """Return the draft that a confidence scores, and the confidence; other drafts unchanged.
    Raises ModelError for a damaged file."""
    found = None if reference is None else read_confidence(reference)
    return (reference, None) if found is None else (Path(found.draft), found)


def header_traits(target: Path) -> TargetTraits:
    """Return what a target's header shows. Raises ModelError or UsageError for an unreadable file."""
    backend = backend_name(target)
    if backend == TOY:
        return TargetTraits(TOY, "free", is_mixture=False, is_windowed=False, mtp=ABSENT)
    traits = read_model_facts(model_path(target), tokens=False).traits
    return traits if traits.backend == backend else replace(traits, backend=backend, mtp=NO_GRAPH)


def loaded_traits(target: Backend) -> TargetTraits:
    """Return what a loaded target shows by itself; its header is not read again."""
    return TargetTraits(backend_name(target.path), target.caps.rollback)


def traits_of(target: Backend) -> TargetTraits:
    """Return the traits of a loaded target, with those of its header."""
    return replace(header_traits(target.path), rollback=target.caps.rollback)


def require_fit(what: str, kind: str, target: TargetTraits) -> None:
    """Raise UsageError, with the reason, if a kind of draft or a choice does not fit the target."""
    if reason := why_not(kind, target):
        raise UsageError(f"{what}: {reason}")


def open_draft(reference: Path, target: Backend, settings: Mapping[str, Any]) -> Backend:
    """Open a draft for a target. Close it before the target.
    settings: of the draft, for `open_engine`. Raises UsageError, ModelError or MissingExtraError."""
    kind = kind_of(reference)
    require_fit(str(reference), kind, loaded_traits(target))
    if kind == MTP:
        if not is_view(reference) and (other := backend_name(reference)) != backend_name(target.path):
            raise UsageError(f"{reference}: is an assistant (MTP) for targets in {other}: give one (-m)")
        assert isinstance(target, PredictsFurtherTokens)  # see fits.py
        return target.open_mtp() if is_view(reference) else target.open_mtp(reference)
    if kind in (LAYER_VIEW, EXPERT_VIEW):
        return open_view(reference, target)
    if kind == PARALLEL:
        return open_parallel_draft(reference, target, settings)
    if kind == DRAFT:
        return open_engine(reference, n_ctx=target.caps.n_ctx, **settings)
    return offloaded(open_head(reference, target), target)


def open_view(reference: Path, target: Backend) -> Backend:
    """Return a part of the target (backends/views.py), by default the stored view. Raises UsageError."""
    assert isinstance(target, SupportsViews)  # see fits.py
    view = parse_view(reference, target.layers)
    if view is None:
        cached = load_view(target.identity()["model"], to_stderr)
        if cached is None:  # other backends have no such views (fits.py)
            raise UsageError(
                f"{reference}: no view of {target.path} is stored: paceline views search -m MODEL finds one"
            )
        view = parse_view(f"{VIEW_PREFIX}{cached.words}", target.layers) or ModelView()
    return target.view(view)


def open_parallel_draft(reference: Path, target: Backend, settings: Mapping[str, Any]) -> ParallelDraft:
    """Open the model of a parallel draft. Raises ModelError if it is another target's."""
    folder = model_path(reference)
    config = head_config(folder)
    assert config is not None
    if config.target.vocab != target.vocab.size:
        raise ModelError(
            f"{folder}: is a draft for {config.target.name}, which has {config.target.vocab:,} tokens, and "
            f"{target.origin} has {target.vocab.size:,}"
        )
    if not is_encodable_path(draft := config.draft):
        raise ModelError(
            f"{folder}: its config.json names the draft {draft!r}, which is no file: train it again"
        )
    inner = open_engine(folder / draft, n_ctx=target.caps.n_ctx, **settings)
    return ParallelDraft(folder, inner, config.mask_token, config.depth)


def open_head(reference: Path, target: Backend) -> HeadTarget:
    """Open a head that reads the target's hidden states. Raises ModelError if it is another target's."""
    assert isinstance(target, ShowsHiddenStates)
    files, products = read_head(model_path(reference)), tuple[Any, ...]()
    if isinstance(target, MakesProducts):
        products = target.make_linear, target.product_engine
    elif isinstance(target, ComputesWithTensors) and target.tensor_like is not None:
        products = None, f"torch, {target.tensor_like.device}", target.tensor_like
    if HEADS[files.config.kind] not in EXITS:
        return HeadTarget(files, target, *products)
    assert isinstance(target, SupportsExits)
    return ExitTarget(files, target, *products)


def offloaded(head: HeadTarget, target: Backend) -> Backend:
    """Return a head as the target's engine computes it, or unchanged where that is no better."""
    try:
        found = target.offload_head(head) if isinstance(target, OffloadsHeads) else None
    except ModelError as error:
        to_stderr(f"{error}: the head is computed on the processor instead")
        found = None
    return found or head
