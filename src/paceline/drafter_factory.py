"""Factories of drafters and policies, for the composition root (loading.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.backends.interface import (
    Backend,
    ComputesWithTensors,
    MakesProducts,
    ShowsHiddenStates,
    SupportsExits,
)
from paceline.backends.registry import open_engine
from paceline.backends.translated import CrossVocabTarget
from paceline.backends.views import ModelView, SearchesViews, SupportsViews, parse_view
from paceline.config import Drafting
from paceline.drafter_table import DATASTORE, DRAFT, DRAFTERS, HEADS, NGRAMS
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.parts import MODEL_SOURCE, DrafterInputs, Warn
from paceline.heads.confidence import Confidence, read_confidence
from paceline.heads.exit_target import ExitTarget
from paceline.heads.files import head_config, read_head
from paceline.heads.parallel_draft import ParallelDraft
from paceline.heads.target import HeadTarget
from paceline.models.headers.plain_file import is_encodable_path
from paceline.models.names import VIEW_PREFIX, model_path
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.speculative.interfaces import Drafter, Target
from paceline.speculative.loop import Clock
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.vocabulary import Vocab
from paceline.storage.corpora import find_corpus, open_corpus
from paceline.storage.variants import load_view
from paceline.system.home import expand_user
from paceline.vocab.lexicon import TokenizerVocab
from paceline.vocab.sample import SAMPLE_TEXT
from paceline.vocab.shared import check_shared
from paceline.vocab.translation import Translation

PathLike = str | Path
EXIT_KINDS = ("exits", "kangaroo")  # heads on the target's first layers

# From this share of common tokens on, TLI has as many tokens a pass as SLEM or up to 9% more; below it, SLEM
# has up to 3% more (docs/log/vocabularies.md).
MIN_COVERAGE = 0.95


@dataclass(frozen=True)
class Corpora:
    """Indexes to draft from. caches: n-gram caches of llama.cpp; stores: folders of suffix arrays."""

    caches: tuple[Path, ...] = ()
    stores: tuple[Path, ...] = ()

    @property
    def available(self) -> list[str]:
        """The kinds of indexes, as in the table of drafters."""
        return [kind for kind, files in ((NGRAMS, self.caches), (DATASTORE, self.stores)) if files]

    @classmethod
    def find(cls, names: Sequence[PathLike], vocab: Vocab | None = None) -> Corpora:
        """Find corpora by name or folder, and n-gram caches by file.

        Raises UsageError, or VocabError for a corpus of another vocabulary; cache files have none."""
        caches, stores = list[Path](), list[Path]()
        for name in names:
            path = expand_user(name)
            # A bare name is a corpus, even if the current folder has such a file.
            if path.is_file() and (path.suffix or str(path) != path.name):
                caches.append(path)
                continue
            corpus = find_corpus(name) if vocab is None else open_corpus(name, vocab)
            caches += [] if corpus.static is None else [corpus.static]
            stores += [] if corpus.datastore is None else [corpus.datastore]
        return cls(tuple(caches), tuple(stores))


NO_CORPORA = Corpora()
REQUIREMENTS = {
    **{
        source: f"a head of that kind: give one (draft, -md); paceline train {kind} trains one"
        for kind, source in HEADS.items()
    },
    DRAFT: "a draft model: give one (draft, -md), or use the drafter lookup (drafters, --draft)",
    DATASTORE: "a corpus that has a datastore: give its name (corpora, --corpus; paceline corpus list tells "
    "what there is, paceline corpus build makes one)",
}


def check_needs(drafting: Drafting, available: Collection[str]) -> None:
    """Raise UsageError for a drafter that needs something unavailable."""
    for row in drafting.rows:
        if not row.optional and (missing := row.missing(available)):
            raise UsageError(f"the drafter {row.name!r} needs {REQUIREMENTS[missing[0]]}")


def make(name: str, parts: DrafterInputs) -> Drafter:
    """Make a drafter by its name in the table; a draft model with a translation drafts by SLEM."""
    file = "slem" if name == MODEL_SOURCE and parts.translation is not None else name
    drafter: Drafter = import_module(DRAFTERS[name].module or f"paceline.drafters.{file}").make(parts)
    return drafter


def make_drafter(
    drafting: Drafting,
    target: Target,
    draft: Any,
    corpora: Corpora | None = None,
    costs: DecodingCosts | None = None,
    warn: Warn = lambda _: None,
    confidence: Confidence | None = None,
) -> tuple[Drafter, Drafting]:
    """Make the drafters of the settings. Return them with the settings in which "auto" is resolved.

    Models with different vocabularies need a `text`. Raises VocabError if the vocabularies cannot be mapped,
    UsageError for a draft model that is missing or cannot roll back."""
    corpora, translation = corpora or NO_CORPORA, None
    if draft is not None:
        if draft.caps.rollback == "none":
            raise UsageError(
                "the draft model's state cannot be rolled back, so it cannot draft: give another one (draft, "
                "-md), or use the drafter lookup (drafters, --draft)"
            )
        if isinstance(draft, HeadTarget):  # drafts the target's own tokens
            drafting = replace(drafting, cross_vocab="off")
        else:
            drafting, translation = make_cross_vocab(drafting, target, draft)
        if drafting.cross_vocab == "tli" and translation is not None:
            draft, translation = CrossVocabTarget(draft, translation), None
    available = [
        *corpora.available,
        *([] if draft is None else [HEADS.get(getattr(draft, "kind", ""), DRAFT)]),
    ]
    check_needs(drafting, available)
    if confidence is not None and translation is None and confidence.model != draft.identity()["model"]:
        raise ModelError(
            f"{draft.origin}: is not the draft that the confidence was trained for; train it again"
        )
    parts = DrafterInputs(
        drafting, target, draft, translation, corpora.caches, corpora.stores, costs, confidence, warn
    )
    if drafting.plain:
        return make("none", parts), drafting
    auto = drafting.drafters == ("auto",)
    usable = [row for row in DRAFTERS.values() if row.in_auto and not row.missing(available)]
    drafters = [make(row.name, parts) for row in (usable if auto else drafting.rows)]
    if auto or drafting.policy == "rate":
        return PortfolioDrafter(drafters), drafting
    return ComposedDrafter(drafters, drafting.min_draft_tokens), drafting


def resolve_view(reference: PathLike, target: Backend, warn: Warn = lambda _: None) -> Backend:
    """Return a part of `target` (backends/views.py), by default the stored view. Raises UsageError."""
    if not isinstance(target, SupportsViews):
        raise UsageError(
            f"{reference}: views are for GGUF and transformers models, and {target.path} is neither"
        )
    view = parse_view(reference, target.layers)
    if view is None:
        cached = load_view(target.identity()["model"], warn)
        if cached is None and isinstance(target, SearchesViews) and target.caps.rollback == "free":
            raise UsageError(
                f"{reference}: no view of {target.path} is stored: paceline views search -m MODEL finds one"
            )
        words = "" if cached is None else cached.words
        view = parse_view(f"{VIEW_PREFIX}{words}", target.layers) or ModelView()
    return target.view(view)


def open_confidence(reference: PathLike | None) -> tuple[PathLike | None, Confidence | None]:
    """Return the draft that a confidence scores, and the confidence; other drafts unchanged.
    Raises ModelError for a damaged file."""
    found = None if reference is None else read_confidence(Path(reference))
    return (reference, None) if found is None else (found.draft, found)


def draft_source(reference: PathLike) -> str:
    """Return what a draft reference is, as in the table of drafters. Raises ModelError for a damaged head."""
    config = head_config(model_path(Path(reference)))
    return DRAFT if config is None else HEADS[config.kind]


def open_parallel_draft(
    reference: PathLike, target: Backend, settings: Mapping[str, Any]
) -> ParallelDraft | None:
    """Open a parallel draft; None for another draft. Raises ModelError if it is another target's.
    settings: those of the target's engine."""
    folder = model_path(Path(reference))
    config = head_config(folder)
    if config is None or config.kind != ParallelDraft.kind:
        return None
    if config.target.vocab != target.vocab.size:
        raise ModelError(
            f"{folder}: is a draft for {config.target.name}, which has {config.target.vocab:,} tokens, and "
            f"{target.origin} has {target.vocab.size:,}"
        )
    if not is_encodable_path(draft := config.extra["draft"]):
        raise ModelError(
            f"{folder}: its config.json names the draft {draft!r}, which is no file: train it again"
        )
    inner = open_engine(folder / draft, n_ctx=target.caps.n_ctx, **settings)
    return ParallelDraft(folder, inner, config.mask_token, config.depth)


def open_head(reference: PathLike, target: Backend) -> HeadTarget:
    """Open a draft head beside its target; close it before the target. Raises UsageError or ModelError."""
    if not isinstance(target, ShowsHiddenStates):
        raise UsageError(
            f"{reference}: is a draft head, which reads hidden states, and {target.origin} shows none"
        )
    files, products = read_head(model_path(Path(reference))), tuple[Any, ...]()
    if isinstance(target, MakesProducts):
        products = target.make_linear, target.product_engine
    elif isinstance(target, ComputesWithTensors) and target.tensor_like is not None:
        products = None, f"torch, {target.tensor_like.device}", target.tensor_like
    if files.config.kind not in EXIT_KINDS:
        return HeadTarget(files, target, *products)
    if not isinstance(target, SupportsExits):
        raise UsageError(
            f"{reference}: drafts by the first layers of its target, and {target.origin} is whole"
        )
    return ExitTarget(files, target, *products)


def make_policy(drafting: Drafting, costs: DecodingCosts | None, clock: Clock = perf_counter) -> DraftPolicy:
    """Make the policy. costs: those of passes, which the policy `rate` needs and updates."""
    if drafting.policy != "rate" or drafting.plain:
        return FixedPolicy(drafting.budget)
    assert costs is not None  # measured for this policy
    it = drafting.budget
    return GoodputPolicy(
        costs, depth=it.depth, nodes=it.nodes, width=it.width, p_split=it.p_split, clock=clock
    )


def make_cross_vocab(drafting: Drafting, target: Any, draft: Any) -> tuple[Drafting, Translation | None]:
    """Return the settings in which "auto" is resolved, and the translation, None for a shared vocabulary.

    Raises VocabError if the vocabularies differ and cross_vocab is off, or if they have no common token."""
    if drafting.cross_vocab in ("off", "auto"):
        try:
            check_shared(target.vocab, draft.vocab)
            return replace(drafting, cross_vocab="off"), None
        except VocabError as error:
            if drafting.cross_vocab == "off":
                raise VocabError(
                    f"{error}, cross_vocab auto (--cross-vocab auto) to translate, or the drafter lookup "
                    "(drafters, --draft), which needs no draft model"
                ) from error
    ours = TokenizerVocab(target.vocab, lambda text: target.text.encode_continuation(text))
    theirs = TokenizerVocab(draft.vocab, lambda text: draft.text.encode_continuation(text))
    translation = Translation(ours, theirs)
    text_suffices = drafting.draft_temp == 0 and not any(row.token_ids for row in drafting.rows)
    if drafting.cross_vocab == "auto":
        trees = drafting.width > 1 and drafting.policy != "rate"  # "rate" accepts chains, too
        sample = ours.encode(SAMPLE_TEXT.encode())
        if trees or not text_suffices or translation.coverage(sample) >= MIN_COVERAGE:
            drafting = replace(drafting, cross_vocab="tli")
        else:
            drafting = replace(drafting, cross_vocab="slem", width=1)
    if drafting.cross_vocab == "tli" and len(translation.common) == 0:
        raise VocabError(
            "the draft's vocabulary has no token in common with the target's: use cross_vocab slem "
            "(--cross-vocab), or the drafter lookup (drafters, --draft), which needs no draft model"
        )
    return drafting, translation
