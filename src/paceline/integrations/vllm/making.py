"""The drafters that vLLM's configuration asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from paceline.drafter_factory import NO_CORPORA, Corpora, make
from paceline.drafter_table import DATASTORE, NGRAMS
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.parts import DrafterInputs
from paceline.integrations.vllm.options import Options
from paceline.models.headers.header import read
from paceline.models.headers.vocabulary import vocabulary
from paceline.models.resolve import file_of
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Target
from paceline.speculative.vocabulary import Vocab


@dataclass(frozen=True)
class VocabOnlyTarget:
    """What is known here of the target, which vLLM runs."""

    vocab: Vocab


def drafter_of(options: Options, model: Any, n_draft: int) -> PortfolioDrafter:
    """model: vLLM's ModelConfig. Raises UsageError, VocabError or ModelError."""
    n_vocab = int(model.get_vocab_size())
    vocab, corpora = Vocab(n_vocab, "", None, frozenset(), False, False, spelled, spelled), NO_CORPORA
    if options.corpora:
        vocab = vocabulary_of(model)
        corpora = Corpora.find(options.corpora, vocab)
    rows = options.rows_of([what for what in corpora.available if what in (NGRAMS, DATASTORE)])
    target = cast("Target", VocabOnlyTarget(vocab))  # drafters that copy read nothing else of it
    parts = DrafterInputs(
        options.drafting(rows, n_draft), target, caches=corpora.caches, stores=corpora.stores
    )
    return PortfolioDrafter([make(row.name, parts) for row in rows])


def vocabulary_of(model: Any) -> Vocab:
    """Of the target's files: a folder, a file, or a model in the hub's cache. Raises UsageError where it is
    none of these, ModelError where its tokenizer cannot be read."""
    name = str(model.tokenizer or model.model)
    path = Path(name)
    facts = read(path if path.exists() else file_of(f"hf:{name}"))
    if facts.tokenizer is None:
        raise ModelError(f"{name}: has no tokenizer that corpora can be compared with: leave them out")
    return vocabulary(facts.tokenizer)


def spelled(token: int) -> bytes:
    return b"%d" % token
