"""Settings of the drafters in vLLM.

`--speculative-config` refuses unknown keys; the settings are in `--additional-config`, under "paceline"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from paceline.drafter_factory import check_needs, make
from paceline.drafter_table import DATASTORE, DRAFTERS, NGRAMS
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.parts import DrafterInputs
from paceline.models.headers.header import read_model_facts
from paceline.models.headers.vocabulary import make_vocab
from paceline.models.resolve import file_of
from paceline.settings import Drafting, make_settings
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import Target
from paceline.speculative.validation import setting, validate_fields
from paceline.speculative.vocabulary import Vocab
from paceline.storage.corpora import NO_CORPORA, Corpora

SECTION = "paceline"
AUTO = "auto"
# The drafters of `auto`. The whole batch waits while a prompt is indexed: of 8,000 tokens lookup takes 10 ms,
# ngram 13 and suffix 1, which finds as much (benchmarks/opening.py).
CHEAP = ("suffix", "datastore")


@dataclass(frozen=True)
class Options:
    """Settings of the drafters in vLLM.
    drafters: names of drafters that copy, in the order they are called.
    corpora: names or folders of corpora, or n-gram caches.
    rows: on an H100 a dense 16-bit model is compute-bound from about 300 rows
    (989 TFLOP/s over 3.35 TB/s, two operations a weight of two bytes).
    learn: draft from the texts of ended requests. The speed of a draft can reveal that another client got the
    same text, which is a timing side channel.
    ngram_min, ngram_max: see Drafting."""

    drafters: tuple[str, ...] = (AUTO,)
    corpora: tuple[str, ...] = ()
    p_min: float = setting(0.1, "Smallest probability of acceptance of a drafted token.", 0, 1)
    rows: int = setting(256, "Most drafted tokens of a batch.", 1)
    learn: bool = True
    ngram_min: int = Drafting.ngram_min
    ngram_max: int = Drafting.ngram_max

    def __post_init__(self) -> None:
        validate_fields(self)
        # vLLM gives a drafter tokens, and nothing of the model or of what the request predicts.
        named = [row for row in DRAFTERS.values() if row.name != "prediction"]
        rows = [row for row in named if not row.alone and not row.window]
        known = [AUTO, *(row.name for row in rows if set(row.uses) <= {NGRAMS, DATASTORE})]
        for name in self.drafters:
            if name not in known:
                raise UsageError(
                    f"the drafter {name!r} does not draft from texts alone: in vLLM choose from "
                    f"{', '.join(known)}; a draft model is vLLM's own method draft_model"
                )

    @classmethod
    def of(cls, vllm_config: Any) -> Options:
        """Read the options of a vLLM configuration. Raises UsageError."""
        section = (getattr(vllm_config, "additional_config", None) or {}).get(SECTION, {})
        if not isinstance(section, Mapping):
            raise UsageError(f'--additional-config: "{SECTION}" must hold settings, as {{"p_min": 0.2}}')
        return make_settings(cls, section)


def make_drafter(options: Options, model: Any, n_draft: int) -> PortfolioDrafter:
    """Make the drafters. model: vLLM's ModelConfig. Raises UsageError, VocabError or ModelError."""
    n_vocab, corpora = int(model.get_vocab_size()), NO_CORPORA
    digits = b"%d".__mod__
    vocab = Vocab(n_vocab, "", None, frozenset(), False, False, text=digits, piece=digits)
    if options.corpora:
        path = Path(name := str(model.tokenizer or model.model))
        facts = read_model_facts(path if path.exists() else file_of(f"hf:{name}"))
        if facts.tokenizer is None:
            raise ModelError(f"{name}: has no tokenizer that corpora can be compared with: leave them out")
        vocab = make_vocab(facts.tokenizer)
        corpora = Corpora.find(options.corpora, vocab)
    names = options.drafters
    if names == (AUTO,):
        names = tuple(name for name in CHEAP if not DRAFTERS[name].missing(corpora.available))
    drafting = Drafting(
        names, n_draft=n_draft, width=1, ngram_min=options.ngram_min, ngram_max=options.ngram_max
    )
    check_needs(drafting, corpora.available)
    target = cast("Target", SimpleNamespace(vocab=vocab))  # drafters that copy need no more
    parts = DrafterInputs(drafting, target, caches=corpora.caches, stores=corpora.stores)
    return PortfolioDrafter([make(name, parts) for name in names])
