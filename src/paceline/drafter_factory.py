"""From settings to a drafter: what each is made of. Half of the composition root (loading.py)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.backends.interface import Backend
from paceline.backends.translated import CrossVocabTarget
from paceline.backends.views import ModelView, SupportsViews, parse_view
from paceline.config import Drafting
from paceline.drafter_table import DATASTORE, DRAFT, DRAFTERS, NGRAMS
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.parts import MODEL_SOURCE, DrafterInputs, Warn
from paceline.models.names import VIEW_PREFIX
from paceline.speculative.errors import UsageError, VocabError
from paceline.speculative.interfaces import Drafter, Target
from paceline.speculative.loop import Clock
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.vocabulary import Vocab
from paceline.storage import views
from paceline.storage.corpora import find_corpus, open_corpus
from paceline.system.home import expand_user
from paceline.vocab.intersection import Intersection
from paceline.vocab.lexicon import Lexicon
from paceline.vocab.sample import SAMPLE_TEXT
from paceline.vocab.shared import check_shared
from paceline.vocab.translation import Translation

PathLike = str | Path

# The share of the target's usual tokens that a draft must have for TLI to be chosen. Measured in tokens per
# pass of the target, with the embedded pair, one of the two reduced to so many merges: from 0.95 on TLI is
# equal or ahead, by up to 9%; below it SLEM is, by up to 3% (docs/log/vocabularies.md).
MIN_COVERAGE = 0.95


@dataclass(frozen=True)
class Corpora:
    """caches: static n-gram caches in llama.cpp's format. stores: folders of suffix arrays."""

    caches: tuple[Path, ...] = ()
    stores: tuple[Path, ...] = ()

    @property
    def available(self) -> list[str]:
        """What drafters can use of them."""
        return [what for what, files in ((NGRAMS, self.caches), (DATASTORE, self.stores)) if files]

    @classmethod
    def find(cls, names: Sequence[PathLike], vocab: Vocab | None = None) -> Corpora:
        """Of corpora by name or folder, and of cache files, which do not tell whose tokens they hold. With
        `vocab` they must be that vocabulary's: VocabError."""
        caches, stores = list[Path](), list[Path]()
        for name in names:
            path = expand_user(name)
            # What is a bare name is a corpus's, whatever lies in the folder we are in.
            if path.is_file() and (path.suffix or str(path) != path.name):
                caches.append(path)
                continue
            found = find_corpus(name) if vocab is None else open_corpus(name, vocab)
            caches += [] if found.static is None else [found.static]
            stores += [] if found.datastore is None else [found.datastore]
        return cls(tuple(caches), tuple(stores))


NO_CORPORA = Corpora()
REQUIREMENTS = {
    DRAFT: "a draft model: give one (draft, -md), or use the drafter lookup (drafters, --draft)",
    DATASTORE: "a corpus that has a datastore: give its name (corpora, --corpus; paceline corpus list tells "
    "what there is, paceline corpus build makes one)",
}


def check_needs(drafting: Drafting, available: Collection[str]) -> None:
    """available: of what drafters use. Raises UsageError for a drafter that needs something else."""
    for row in drafting.rows:
        if not row.optional and (missing := row.missing(available)):
            raise UsageError(f"the drafter {row.name!r} needs {REQUIREMENTS[missing[0]]}")


def make(name: str, parts: DrafterInputs) -> Drafter:
    # A draft model whose text is translated drafts in a way of its own.
    module = "slem" if name == MODEL_SOURCE and parts.translation is not None else name
    made: Drafter = import_module(f"paceline.drafters.{module}").make(parts)
    return made


def make_drafter(
    drafting: Drafting,
    target: Target,
    draft: Any,
    corpora: Corpora | None = None,
    costs: DecodingCosts | None = None,
    warn: Warn = lambda _: None,
) -> tuple[Drafter, Drafting]:
    """What `drafting` names, called in that order; and `drafting` with what "auto" came to. The models need a
    `text` where their vocabularies differ. Raises VocabError where those cannot be brought together, and
    UsageError for a draft model that is missing, or cannot take back what the target rejects."""
    corpora, translation = corpora or NO_CORPORA, None
    if draft is not None:
        if draft.caps.rollback == "none":
            raise UsageError(
                "the draft model is recurrent, and its state cannot be rolled back yet, so it cannot draft: "
                "give another one (draft, -md), or use the drafter lookup (drafters, --draft)"
            )
        drafting, translation = make_cross_vocab(drafting, target, draft)
        if drafting.cross_vocab == "tli" and translation is not None:
            draft, translation = CrossVocabTarget(draft, translation), None
    available = [*corpora.available, *([] if draft is None else [DRAFT])]
    check_needs(drafting, available)
    parts = DrafterInputs(drafting, target, draft, translation, corpora.caches, corpora.stores, costs, warn)
    if drafting.plain:
        return make("none", parts), drafting
    auto = drafting.drafters == ("auto",)
    usable = [row for row in DRAFTERS.values() if row.in_auto and not row.missing(available)]
    rows = usable if auto else drafting.rows
    made = [make(row.name, parts) for row in rows]
    if auto or drafting.policy == "rate":
        return PortfolioDrafter(made), drafting
    return ComposedDrafter(made, drafting.least), drafting


def resolve_view(reference: PathLike, target: Backend, warn: Warn = lambda _: None) -> Backend:
    """Return the part of `target` that is meant (backends/views.py): the one that was searched for, where
    the reference names none. Raises UsageError."""
    if not isinstance(target, SupportsViews):
        raise UsageError(
            f"{reference}: no part of {target.path} can draft for it as it is loaded: views are for "
            "transformers models (hf:FILE reads a GGUF file with transformers); or write the part to a file "
            "of its own (paceline views materialise)"
        )
    view = parse_view(reference, target.layers)
    if view is None:
        cached = views.load_view(target.identity()["model"], warn)
        if cached is None:
            raise UsageError(
                f"{reference}: no view of {target.path} is kept: paceline views search -m MODEL finds one"
            )
        view = parse_view(f"{VIEW_PREFIX}{cached.words}", target.layers) or ModelView()
    return target.view(view)


def make_policy(drafting: Drafting, costs: DecodingCosts | None, clock: Clock = perf_counter) -> DraftPolicy:
    """Who decides. costs: what passes take here, which the policy `rate` needs and keeps up to date."""
    if drafting.policy != "rate" or drafting.plain:
        return FixedPolicy(drafting.budget)
    assert costs is not None  # who wants the rate measures first
    budget = drafting.budget
    return GoodputPolicy(
        costs,
        depth=budget.depth,
        nodes=budget.nodes,
        width=budget.width,
        p_split=budget.p_split,
        clock=clock,
    )


def make_cross_vocab(drafting: Drafting, target: Any, draft: Any) -> tuple[Drafting, Translation | None]:
    """How the draft's tokens become the target's: `drafting` with what "auto" comes to, and the translation,
    None where ids mean the same to both. Raises VocabError where they do not, or have nothing in common."""
    if drafting.cross_vocab in ("off", "auto"):
        try:
            check_shared(target.vocab, draft.vocab)
            return replace(drafting, cross_vocab="off"), None
        except VocabError:
            if drafting.cross_vocab == "off":
                raise
    ours = Lexicon(target.vocab, lambda text: target.text.encode_continuation(text))
    theirs = Lexicon(draft.vocab, lambda text: draft.text.encode_continuation(text))
    translation = Translation(ours, theirs, Intersection.of(ours, theirs))
    text_will_do = drafting.temperature == 0 and not any(row.token_ids for row in drafting.rows)
    if drafting.cross_vocab == "auto":
        trees = drafting.width > 1 and drafting.policy != "rate"  # which takes chains as they come
        tli = (
            not text_will_do
            or trees
            or translation.coverage(ours.encode(SAMPLE_TEXT.encode())) >= MIN_COVERAGE
        )
        chosen: dict[str, Any] = {"cross_vocab": "tli"} if tli else {"cross_vocab": "slem", "width": 1}
        drafting = replace(drafting, **chosen)
    if drafting.cross_vocab == "tli" and len(translation.common) == 0:
        raise VocabError(
            "the draft's vocabulary has no token in common with the target's: use cross_vocab slem "
            "(--cross-vocab), or the drafter lookup (drafters, --draft), which needs no draft model"
        )
    return drafting, translation
