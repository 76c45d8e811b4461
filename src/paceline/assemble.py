"""Settings to target, drafters and policy: the only place where the parts meet."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline import zoo
from paceline.core.errors import UsageError, VocabError
from paceline.core.intersection import Intersection
from paceline.core.lexicon import Lexicon
from paceline.core.ports import Drafter, Learner, Target
from paceline.core.sample import TEXT
from paceline.core.settings import DRAFTERS, LEARNERS, Drafting, checked
from paceline.core.translation import Translation
from paceline.core.vocab import Vocab, check_shared
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.slem import SlemDrafter
from paceline.engines.translated import TranslatedTarget
from paceline.llm import LLM
from paceline.machine.corpora import find_corpus, open_corpus
from paceline.machine.remembered import Remembered, project_of
from paceline.machine.threads import choose_threads

PathLike = str | Path

# The share of the target's usual tokens that a draft must have for TLI to be chosen. Measured in tokens per
# pass of the target, with the embedded pair, one of the two reduced to so many merges: from 0.95 on TLI is
# equal or ahead, by up to 9%; below it SLEM is, by up to 3% (docs/log.md).
ENOUGH = 0.95


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
        files = [path for path in map(Path, names) if path.is_file()]
        named = [name for name in names if not Path(name).is_file()]
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


def make_lookup(parts: Parts) -> Drafter:
    return LookupDrafter(parts.drafting.ngram_min, parts.drafting.ngram_max)


def make_suffix(_: Parts) -> Drafter:
    from paceline.drafters.suffix import SuffixDrafter

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


def make_model(parts: Parts) -> Drafter:
    assert parts.draft is not None  # load() asks for one
    draft: Target = parts.draft
    size, drafting = parts.target.vocab.size, parts.drafting
    if parts.translation is not None:
        if drafting.cross_vocab == "slem":
            return SlemDrafter(draft, parts.translation)
        draft = TranslatedTarget(draft, parts.translation)
    return ModelDrafter(
        draft,
        size,
        temperature=drafting.temperature,
        top_k=drafting.top_k,
        independent=drafting.independent,
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
    "stack": make_stack,
}


def make_drafter(
    drafting: Drafting, target: Target, draft: Any, corpora: Corpora = NO_CORPORA
) -> tuple[Drafter, Drafting]:
    """What `drafting` names, asked in that order; and `drafting` with what "auto" came to. The models need a
    `text` where their vocabularies differ. Raises VocabError where those cannot be brought together."""
    translation = None
    if draft is not None:
        drafting, translation = translated(drafting, target, draft)
    parts = Parts(drafting, target, draft, translation, corpora)
    if drafting.drafters == ("none",):
        return NoDrafter(), drafting
    return ComposedDrafter([MAKERS[name](parts) for name in drafting.drafters], drafting.least), drafting


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
        only_tli = drafting.temperature > 0 or drafting.width > 1
        tli = only_tli or translation.coverage(ours.spell(TEXT.encode())) >= ENOUGH
        drafting = replace(drafting, cross_vocab="tli" if tli else "slem")
    if drafting.cross_vocab == "tli" and len(translation.common) == 0:
        greedy_chain = drafting.temperature == 0 and drafting.width == 1
        raise VocabError(
            "the draft's vocabulary has no token in common with the target's: use "
            f"{'--cross-vocab slem, or ' * greedy_chain}--draft lookup, which needs no draft model"
        )
    return drafting, translation


def load(
    target: PathLike | None = None,
    draft: PathLike | None = None,
    drafters: Sequence[str] | str | None = None,
    *,
    n_ctx: int = 0,
    threads: int | None = None,
    gpu_layers: int = 0,
    flash_attention: bool | None = None,
    cache_type: str = "f16",
    exact_greedy: bool = False,
    sessions: int = 1,
    corpora: Sequence[PathLike] = (),
    remember: bool | PathLike = False,
    **settings: Any,
) -> LLM:
    """A model ready to generate.

    target: a GGUF file; the embedded model if None. draft: a smaller GGUF with the same vocabulary, or with
    another one and cross_vocab="auto"; beside the embedded target the embedded draft. drafters: names in the
    order they are asked ("lookup", "model"; "none" decodes plainly); by default lookup, and model where there
    is a draft.
    n_ctx: 0 is what the model was trained for, at most 4,096. threads: None is one a physical core.
    flash_attention: None leaves it to llama.cpp. cache_type: f32, f16, bf16 or q8_0.
    exact_greedy: plain and drafted passes have one shape, n_draft + 1 rows, so that greedy output is plain
    output to the last bit; plain decoding then costs what a drafted pass does.
    corpora: names or folders of what `paceline corpus build` made, or files of n-gram caches in llama.cpp's
    format, for the drafters datastore and ngram.
    remember: keep what is generated on disk for this project (a folder; True: the one we are in), and let
    the drafters that learn draft from what was kept before.
    sessions: requests that may be decoded at the same time; each has a context of its own.
    settings: the fields of Drafting (n_draft, width, p_min, ..., the draft's own temperature and top_k).
    Raises UsageError, VocabError, ModelError or MissingExtraError.
    """
    from paceline.engines.llama import LlamaTarget

    if isinstance(drafters, str):
        drafters = [name.strip() for name in drafters.split(",")]
    known = Corpora.find(corpora).drafters  # what is wrong with a name is said before a model is loaded
    target, draft, names = choose(target, draft, drafters, known, bool(remember))
    drafting = checked(Drafting, {"drafters": names, **settings})
    if "model" in names and draft is None:
        raise UsageError("the drafter 'model' needs a draft model: give one (-md), or use --draft lookup")
    if not {"model", "stack"} & set(names) and draft is not None:
        raise UsageError(f"a draft model is given, but --draft {','.join(names)} does not name 'model'")
    if remember and not LEARNERS & set(names):
        raise UsageError(f"nothing learns from what is remembered: name one of {', '.join(sorted(LEARNERS))}")
    if n_ctx < 0:
        raise UsageError(f"a context of {n_ctx} tokens: must be at least 1, or 0 for the model's own")
    if exact_greedy and drafting.budget.width > 1:
        raise UsageError("exact greedy output needs drafts that are chains: use width 1, and not lookahead")
    engine_settings: dict[str, Any] = {
        "threads": choose_threads(threads),
        "gpu_layers": gpu_layers,
        "flash_attention": flash_attention,
        "cache_type": cache_type,
        "sessions": sessions,
    }
    with contextlib.ExitStack() as undo:
        rows = 1 + drafting.n_draft if exact_greedy else 0
        engine = LlamaTarget(Path(target), n_ctx=n_ctx, exact_rows=rows, **engine_settings)
        undo.callback(engine.close)
        if not engine.caps.rewind and names != ("none",):
            raise UsageError(
                f"{target}: a recurrent model's state cannot be rolled back yet, so nothing can be drafted "
                "for it; use --draft none"
            )
        small = None
        if draft is not None:
            small = LlamaTarget(Path(draft), n_ctx=engine.caps.n_ctx, **engine_settings)
            undo.callback(small.close)
        found = Corpora.find(corpora, engine.vocab)
        drafter, drafting = make_drafter(drafting, engine, small, found)
        remembered = recall(engine.vocab, drafter, remember) if remember else None
        undo.pop_all()
    return LLM(engine, drafter, drafting, small, remembered)


def recall(vocab: Vocab, drafter: Drafter, project: bool | PathLike) -> Remembered:
    """The project's past outputs, which `drafter` has learned."""
    assert isinstance(drafter, Learner)  # load() asks for one
    folder = project_of(Path.cwd()) if isinstance(project, bool) else Path(project)
    remembered = Remembered.open(vocab, folder, warn=lambda said: print(f"paceline: {said}", file=sys.stderr))
    for tokens in remembered.outputs():
        drafter.learn(tokens)
    return remembered


def choose(
    target: PathLike | None,
    draft: PathLike | None,
    drafters: Sequence[str] | None,
    known: Collection[str] = (),
    remember: bool = False,
) -> tuple[PathLike, PathLike | None, tuple[str, ...]]:
    """Fill in what was left open: the embedded models, and every drafter there is a model, a memory or a
    corpus for. known: the drafters that corpora were given for."""
    if target is None:
        target = zoo.target_path()
        if draft is None and (drafters is None or "model" in drafters):
            draft = zoo.draft_path()
    if drafters is None:
        # What copies from this text, from earlier ones, from a corpus; then what computes.
        there = {"lookup": True, "suffix": remember, "model": draft is not None}
        drafters = [name for name in DRAFTERS if there.get(name) or name in known]
    return target, draft, tuple(drafters)
