"""From settings to a drafter: what each is made of. Half of the composition root (assemble.py)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline.core.cost import Costs
from paceline.core.decode import Clock
from paceline.core.errors import UsageError, VocabError
from paceline.core.policy import Fixed, Policy
from paceline.core.ports import Drafter, Target
from paceline.core.rate import Rate
from paceline.core.settings import Drafting
from paceline.core.vocab import Vocab
from paceline.drafters.compose import ComposedDrafter, Portfolio
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter, Warn
from paceline.drafters.none import NoDrafter
from paceline.drafters.slem import SlemDrafter
from paceline.engines.translated import TranslatedTarget
from paceline.machine.corpora import find_corpus, open_corpus
from paceline.machine.home import expanded
from paceline.vocab.intersection import Intersection
from paceline.vocab.lexicon import Lexicon
from paceline.vocab.sample import TEXT
from paceline.vocab.shared import check_shared
from paceline.vocab.translation import Translation

if TYPE_CHECKING:
    from paceline.drafters.suffix import SuffixDrafter

PathLike = str | Path

# The share of the target's usual tokens that a draft must have for TLI to be chosen. Measured in tokens per
# pass of the target, with the embedded pair, one of the two reduced to so many merges: from 0.95 on TLI is
# equal or ahead, by up to 9%; below it SLEM is, by up to 3% (docs/log/vocabularies.md).
ENOUGH = 0.95


@contextlib.contextmanager
def slowly(what: str, after: float = 2.0) -> Iterator[None]:
    """Say in a terminal what takes so long, where it takes longer than a moment."""
    timer = Timer(after, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Corpora:
    """caches: static n-gram caches in llama.cpp's format. stores: folders of suffix arrays."""

    caches: tuple[Path, ...] = ()
    stores: tuple[Path, ...] = ()

    @property
    def drafters(self) -> set[str]:
        """That there is something for."""
        there = {"ngram": self.caches, "datastore": self.stores}
        return {name for name, files in there.items() if files}

    @classmethod
    def find(cls, names: Sequence[PathLike], vocab: Vocab | None = None) -> Corpora:
        """Of corpora by name or folder, and of cache files, which do not tell whose tokens they hold. With
        `vocab` they must be that vocabulary's: VocabError."""
        paths = {name: expanded(name) for name in names}
        # What is a bare name is a corpus's, whatever lies in the folder we are in.
        files = [
            path for name, path in paths.items() if path.is_file() and (path.suffix or str(path) != path.name)
        ]
        named = [name for name, path in paths.items() if path not in files]
        found = [find_corpus(name) if vocab is None else open_corpus(name, vocab) for name in named]
        caches = [*files, *(one.static for one in found if one.static is not None)]
        return cls(tuple(caches), tuple(one.datastore for one in found if one.datastore is not None))


NO_CORPORA = Corpora()


@dataclass(frozen=True)
class Parts:
    """What a drafter can be made from."""

    drafting: Drafting
    target: Target
    draft: Target | None
    translation: Translation | None = None  # where their vocabularies differ
    corpora: Corpora = NO_CORPORA
    costs: Costs | None = None  # what passes take here, where that is known
    warn: Warn = lambda _: None  # told of a draft model that cannot be used as it is


def make_lookup(parts: Parts) -> Drafter:
    return LookupDrafter(parts.drafting.ngram_min, parts.drafting.ngram_max)


def make_suffix(_: Parts) -> SuffixDrafter:
    from paceline.drafters.suffix import SuffixDrafter

    with slowly("compiling the suffix drafter, this once"):
        return SuffixDrafter()


def make_ngram(parts: Parts) -> Drafter:
    from paceline.drafters.ngram import NgramDrafter
    from paceline.drafters.ngram_cache import NgramCache

    static = [NgramCache.read(path) for path in parts.corpora.caches]
    merged = static[0].merge(*static[1:]) if len(static) > 1 else next(iter(static), None)
    return NgramDrafter(merged, n_vocab=parts.target.vocab.size)


def make_datastore(parts: Parts) -> Drafter:
    from paceline.drafters.datastore import DatastoreDrafter
    from paceline.drafters.suffix_array import SuffixArray

    if not parts.corpora.stores:
        raise UsageError(
            "the drafter 'datastore' needs a corpus that has one: give --corpus NAME "
            "(paceline corpus list; paceline corpus build makes one)"
        )
    return DatastoreDrafter([SuffixArray(folder) for folder in parts.corpora.stores])


def make_recycle(parts: Parts) -> Drafter:
    from paceline.drafters.recycle import RecycleDrafter

    return RecycleDrafter(parts.target.vocab.size)


def make_lookahead(parts: Parts) -> Drafter:
    from paceline.drafters.lookahead import LookaheadDrafter

    drafting = parts.drafting
    return LookaheadDrafter(drafting.window, drafting.level, drafting.guesses)


def make_stack(parts: Parts) -> Drafter:
    """The classic order: what copies, what counts, what computes; the first with three tokens drafts."""
    makers = [make_lookup, make_suffix] + [make_model] * (parts.draft is not None)
    return ComposedDrafter([make(parts) for make in makers], least=3)


def make_auto(parts: Parts) -> Drafter:
    """All there is something for, the cheapest first."""
    there = {"ngram": bool(parts.corpora.caches), "datastore": bool(parts.corpora.stores)}
    there["model"] = parts.draft is not None
    names = [name for name in ("suffix", "lookup", "ngram", "datastore", "model") if there.get(name, True)]
    return Portfolio([MAKERS[name](parts) for name in names])


def make_model(parts: Parts) -> Drafter:
    assert parts.draft is not None  # load() asks for one
    draft: Target = parts.draft
    size, drafting = parts.target.vocab.size, parts.drafting
    if parts.translation is not None:
        if drafting.cross_vocab == "slem":
            return SlemDrafter(draft, parts.translation, parts.warn)
        draft = TranslatedTarget(draft, parts.translation)
    return ModelDrafter(
        draft,
        size,
        temperature=drafting.temperature,
        top_k=drafting.top_k,
        independent=drafting.independent,
        warn=parts.warn,
    )


def make_cascade(parts: Parts) -> Drafter:
    """The draft model, with the drafter that guesses best for nothing before and behind it."""
    from paceline.drafters.cascade import CascadeDrafter

    if parts.draft is None:
        raise UsageError("the drafter 'cascade' needs a draft model: give one (-md), or use --draft suffix")
    draft: Target = parts.draft
    if parts.translation is not None:
        draft = TranslatedTarget(draft, parts.translation)
    drafting = parts.drafting
    cost = None if parts.costs is None else parts.costs.draft
    return CascadeDrafter(
        draft,
        parts.target.vocab.size,
        make_suffix(parts),
        temperature=drafting.temperature,
        top_k=drafting.top_k,
        cost=cost,
        warn=parts.warn,
    )


# Name = file = command-line word = settings value.
MAKERS: dict[str, Callable[[Parts], Drafter]] = {
    "lookup": make_lookup,
    "suffix": make_suffix,
    "datastore": make_datastore,
    "ngram": make_ngram,
    "recycle": make_recycle,
    "lookahead": make_lookahead,
    "model": make_model,
    "cascade": make_cascade,
    "stack": make_stack,
    "auto": make_auto,
}


def make_drafter(
    drafting: Drafting,
    target: Target,
    draft: Any,
    corpora: Corpora | None = None,
    costs: Costs | None = None,
    warn: Warn = lambda _: None,
) -> tuple[Drafter, Drafting]:
    """What `drafting` names, asked in that order; and `drafting` with what "auto" came to. The models need a
    `text` where their vocabularies differ. Raises VocabError where those cannot be brought together, and
    UsageError for a draft model that cannot take back what the target rejects."""
    translation = None
    if draft is not None:
        if draft.caps.rollback == "none":
            raise UsageError(
                "the draft model is recurrent, and its state cannot be rolled back yet, so it cannot draft: "
                "give another one (-md), or use --draft lookup"
            )
        drafting, translation = translated(drafting, target, draft)
    parts = Parts(drafting, target, draft, translation, corpora or NO_CORPORA, costs, warn)
    if drafting.drafters == ("none",):
        return NoDrafter(), drafting
    if drafting.drafters == ("auto",):
        return make_auto(parts), drafting
    made = [MAKERS[name](parts) for name in drafting.drafters]
    if drafting.policy == "rate":
        return Portfolio(made), drafting
    return ComposedDrafter(made, drafting.least), drafting


def make_policy(drafting: Drafting, costs: Costs | None, clock: Clock = perf_counter) -> Policy:
    """Who decides. costs: what passes take here, which the policy `rate` needs and keeps up to date."""
    if drafting.policy != "rate" or drafting.drafters == ("none",):
        return Fixed(drafting.budget)
    assert costs is not None  # who wants the rate measures first
    budget = drafting.budget
    return Rate(
        costs,
        depth=budget.depth,
        nodes=budget.nodes,
        width=budget.width,
        p_split=budget.p_split,
        clock=clock,
    )


def translated(drafting: Drafting, target: Any, draft: Any) -> tuple[Drafting, Translation | None]:
    """How the draft's tokens become the target's: `drafting` with what "auto" comes to, and the translation,
    None where ids mean the same to both. Raises VocabError where they do not, or have nothing in common."""
    if drafting.cross_vocab in ("off", "auto"):
        try:
            check_shared(target.vocab, draft.vocab)
            return replace(drafting, cross_vocab="off"), None
        except VocabError:
            if drafting.cross_vocab == "off":
                raise
    ours = Lexicon(target.vocab, lambda text: target.text.encode_within(text))
    theirs = Lexicon(draft.vocab, lambda text: draft.text.encode_within(text))
    translation = Translation(ours, theirs, Intersection.of(ours, theirs))
    if drafting.cross_vocab == "auto":
        trees = drafting.width > 1 and drafting.policy != "rate"  # which takes chains as they come
        only_tli = drafting.temperature > 0 or trees or "cascade" in drafting.drafters
        tli = only_tli or translation.coverage(ours.encode(TEXT.encode())) >= ENOUGH
        drafting = (
            replace(drafting, cross_vocab="tli") if tli else replace(drafting, cross_vocab="slem", width=1)
        )
    if drafting.cross_vocab == "tli" and len(translation.common) == 0:
        slem = drafting.temperature == 0 and drafting.width == 1 and "cascade" not in drafting.drafters
        raise VocabError(
            "the draft's vocabulary has no token in common with the target's: use "
            f"{'--cross-vocab slem, or ' * slem}--draft lookup, which needs no draft model"
        )
    return drafting, translation
