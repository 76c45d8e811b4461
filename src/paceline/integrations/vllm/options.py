"""What the operator of a vLLM server may set. `--speculative-config` refuses keys that vLLM does not know, so
they stand in `--additional-config`, under "paceline", which vLLM hands on as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config import Drafting, checked
from paceline.drafter_table import DATASTORE, DRAFT, DRAFTERS, NGRAMS, DrafterEntry
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import settle

SECTION = "paceline"
AUTO = "auto"
# `auto`, where there is what they use. Not lookup and not ngram: to index a prompt of 8,000 tokens takes them
# 10 and 13 ms (benchmarks/opening.py), for which the whole batch waits; suffix takes 1, and finds as much.
CHEAP = ("suffix", "datastore")


@dataclass(frozen=True)
class Options:
    """drafters: names, in the order they are called; of those that copy. corpora: names or folders of what
    `paceline corpus build` made, or n-gram caches. p_min: a token is drafted while its chance to be accepted
    is at least this. rows: the most drafted tokens of all requests together, the likeliest of them. A pass of
    a dense model in 16 bits takes longer by the row from about 300 rows on (an H100: 989 TFLOP/s over 3.35
    TB/s, two operations a weight of two bytes). learn: whether what a request has said is drafted from for
    others; how fast they get it tells them that somebody was told the same. ngram_min, ngram_max: see
    Drafting."""

    drafters: tuple[str, ...] = (AUTO,)
    corpora: tuple[str, ...] = ()
    p_min: float = 0.1
    rows: int = 256
    learn: bool = True
    ngram_min: int = Drafting.ngram_min
    ngram_max: int = Drafting.ngram_max

    def __post_init__(self) -> None:
        settle(self)
        if not 0.0 <= self.p_min < 1.0:
            raise UsageError(f"p_min {self.p_min}: must be from 0 to less than 1")
        if self.rows < 1:
            raise typed.refusal("rows", self.rows, "at least 1")
        for name in self.drafters:
            check(name)

    @classmethod
    def of(cls, vllm_config: Any) -> Options:
        """As a vLLM configuration has them. Raises UsageError."""
        additional = getattr(vllm_config, "additional_config", None)
        section = additional.get(SECTION, {}) if isinstance(additional, Mapping) else {}
        if not isinstance(section, Mapping):
            raise UsageError(f'--additional-config: "{SECTION}" must hold settings, as {{"p_min": 0.2}}')
        return checked(cls, section)

    def rows_of(self, available: list[str]) -> list[DrafterEntry]:
        """The drafters, of what is available to draft from. Raises UsageError."""
        if self.drafters == (AUTO,):
            return [DRAFTERS[name] for name in CHEAP if not DRAFTERS[name].missing(available)]
        rows = [DRAFTERS[name] for name in self.drafters]
        for row in rows:
            if row.missing(available) and not row.optional:
                raise UsageError(
                    f'the drafter {row.name!r} needs a corpus that has a datastore: "corpora": ["NAME"] '
                    "(paceline corpus build makes one)"
                )
        return rows

    def drafting(self, rows: list[DrafterEntry], n_draft: int) -> Drafting:
        """The settings that these drafters are made with. Raises UsageError."""
        return Drafting(
            drafters=tuple(row.name for row in rows),
            n_draft=n_draft,
            width=1,
            ngram_min=self.ngram_min,
            ngram_max=self.ngram_max,
        )


def check(name: str) -> None:
    """Whether vLLM can use the drafter. Raises UsageError."""
    row = DRAFTERS.get(name)
    copying = [one.name for one in DRAFTERS.values() if copies(one)]
    if row is None or not (copies(row) or name == AUTO):
        why = "is not known"
        if row is not None and DRAFT in row.uses:
            why = 'needs a draft model, which vLLM runs itself: {"method": "draft_model", "model": DRAFT}'
        elif row is not None:
            why = "does not draft from texts"
        raise UsageError(f"the drafter {name!r} {why}; in vLLM choose from {', '.join([AUTO, *copying])}")


def copies(row: DrafterEntry) -> bool:
    """Whether it drafts from texts alone: vLLM shows a drafter's class tokens, and nothing of the model."""
    return not row.alone and not row.window and set(row.uses) <= {NGRAMS, DATASTORE}
