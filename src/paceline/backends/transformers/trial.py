"""What a model of transformers can do as this backend runs it, found by trying.

An architecture may keep its state elsewhere, ignore a cache or a mask, or count places of the cache where it
should count positions. So a few tokens are decoded in every way that the backend would use, and compared
with passes over the whole text. What differs is not done with this model. The outcome is kept on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from paceline.backends.transformers.cache import CacheSlots
from paceline.backends.transformers.kind import ArchitectureTraits
from paceline.backends.transformers.loading import first_line, is_out_of_memory
from paceline.backends.transformers.session import HfSession
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from paceline.system import home

FOLDER, VERSION = "transformers", 2  # another number where a trial would find something else
PROMPT, LENGTH = 3, 7  # tokens of a text that is tried
PARENTS = (ROOT, ROOT, 1, ROOT)  # all nodes but the first have others before them that they must not see

Pairs = list[tuple[Any, Any]]  # a row of logits, and what it should be


@dataclass(frozen=True)
class ProbedTraits:
    """What holds of a model.

    rewinds: what was drafted and rejected can be dropped. several: passes of several tokens.
    masks: branches, and sessions in one pass, are kept apart. company: several sessions may be open.
    refused: why it cannot be decoded at all, or ""."""

    rewinds: bool
    multi_token_passes: bool
    masks: bool
    multiple_sessions: bool
    rejection_reason: str = ""

    def limit(self, kind: ArchitectureTraits) -> None:
        kind.supports_rollback &= self.rewinds
        kind.supports_custom_masks &= self.masks
        if not self.multi_token_passes:
            kind.max_prefill_chunk = 1


def probe_traits(target: Any, model: Any, kind: ArchitectureTraits, key: Mapping[str, Any]) -> ProbedTraits:
    """Return what is kept by `key`, or try it. target: the HfTarget of the model, without open sessions."""
    if model.training:  # it says something else each time
        return ProbedTraits(kind.supports_rollback, True, kind.supports_custom_masks, True)
    key = {**key, "trial": VERSION}
    found = home.load_record(FOLDER, key, lambda value: ProbedTraits(**value["abilities"]))
    if found is None:
        found = TraitProbe(target, model, kind).run()
        home.write_record(
            FOLDER, key, {"abilities": asdict(found)}, lambda _: None, ""
        )  # or it is tried again
    return found


class TraitProbe:
    """kind: as the configuration has it; what does not hold is taken from it on the way."""

    def __init__(self, target: Any, model: Any, kind: ArchitectureTraits) -> None:
        self._target, self._model, self._kind = target, model, kind
        size = target.vocab.size
        self._texts = [[(7919 * (at + n) + 11) % size for n in range(LENGTH)] for at in (1, 40)]
        self._drafted = [(7919 * n + 11) % size for n in range(80, 80 + len(PARENTS))]
        # In 16 bits a pass of another shape is rounded visibly otherwise.
        self._tolerance = max(1e-3, 12.0 * torch.finfo(model.dtype).eps)
        self._fault = ""
        self._known: dict[tuple[int, ...], Any] = {}

    def run(self) -> ProbedTraits:
        kind = self._kind
        try:
            logits = self._expected(self._texts[0])
        except ModelError:
            raise
        except Exception as error:  # transformers raises whatever its parts raise
            return self._refused(first_line(error))
        if not torch.isfinite(logits).all():  # nothing can be told of it, and each row will say so
            return ProbedTraits(kind.supports_rollback, True, kind.supports_custom_masks, True)
        kind.supports_custom_masks = kind.supports_custom_masks and self._matches_reference(self._branches)
        several = self._matches_reference(self._several)
        kind.supports_rollback, kind.supports_custom_masks = (
            kind.supports_rollback and several,
            kind.supports_custom_masks and several,
        )
        kind.max_prefill_chunk = kind.max_prefill_chunk if several else 1
        both, one = self._texts, self._texts[:1]
        company = self._matches_reference(lambda: self._check_decoding(both, drafts=kind.supports_rollback))
        if not company:  # what of it is at fault?
            if not self._matches_reference(lambda: self._check_decoding(one)):
                return self._refused(self._fault or "token by token it says something else than in one pass")
            kind.supports_rollback = kind.supports_rollback and self._matches_reference(
                lambda: self._check_decoding(one, drafts=True)
            )
            kind.supports_custom_masks = (
                kind.supports_custom_masks
                and kind.supports_rollback
                and self._matches_reference(lambda: self._check_decoding(both))
            )
            company = self._matches_reference(lambda: self._check_decoding(both))
        return ProbedTraits(kind.supports_rollback, several, kind.supports_custom_masks, company)

    def _refused(self, reason: str) -> ProbedTraits:
        import transformers

        what = f"{self._model.config.model_type} of transformers {transformers.__version__}"
        return ProbedTraits(
            False, False, False, False, f"{what} cannot be decoded ({reason}): use a GGUF file of it"
        )

    def _matches_reference(self, way: Callable[[], Pairs]) -> bool:
        """Return whether rows are those of whole passes. Fewer than half may differ: rounding sends a token
        to other experts."""
        self._fault, self._slots = "", CacheSlots(2, self._target.make_cache, self._kind.supports_rollback)
        try:
            apart = sorted(float((a - b).norm() / (b - b.mean()).norm()) for a, b in way())
        except ModelError:  # too little memory
            raise
        except Exception as error:  # what it cannot take is not given to it
            self._fault = first_line(error)
            return False
        return bool(apart[len(apart) // 2] <= self._tolerance)

    def _expected(self, tokens: Sequence[int]) -> Any:
        """Return the logits [tokens, n_vocab] of one pass without a cache."""
        key = tuple(tokens)
        if key not in self._known:
            ids = torch.tensor([key], device=self._model.device)
            try:
                with torch.inference_mode():
                    self._known[key] = self._model(input_ids=ids, use_cache=False).logits[0].float().cpu()
            except Exception as error:
                raise self._target.out_of_memory_error(error) if is_out_of_memory(error) else error from None
        return self._known[key]

    def _open(self, tokens: Sequence[int]) -> HfSession:
        session = HfSession(self._slots, 4 * LENGTH, self._kind.supports_rollback)
        session.extend(tokens)
        return session

    def _rows(self, *batch: tuple[HfSession, DraftTree]) -> list[list[Any]]:
        """Return the logits of each session's root and nodes."""
        outs = self._target.forward(batch, RequiredOutputs())
        return [
            [torch.tensor(out.logits(row)) for row in range(len(tree) + 1)]
            for out, (_, tree) in zip(outs, batch, strict=True)
        ]

    def _check_decoding(self, texts: Sequence[Sequence[int]], *, drafts: bool = False) -> Pairs:
        """Decode the texts in turns, a token at a time. drafts: with some that are never right."""
        tree = chain(self._drafted, "trial") if drafts else EMPTY
        sessions, pairs = [self._open(text[:PROMPT]) for text in texts], Pairs()
        for at in range(PROMPT, LENGTH):
            outs = self._rows(*((session, tree) for session in sessions))
            pairs += [(rows[0], self._expected(text)[at - 1]) for rows, text in zip(outs, texts, strict=True)]
            for session, text in zip(sessions, texts, strict=True):
                session.commit([], text[at])
        return pairs[len(texts) :]  # the first ones are of whole passes themselves

    def _several(self) -> Pairs:
        text, pairs = self._texts[0], Pairs()
        session = self._open(text[:PROMPT])
        self._rows((session, EMPTY))
        for begin in range(PROMPT, LENGTH, 2):
            session.extend(text[begin : begin + 2])
            pairs.append((self._rows((session, EMPTY))[0][0], self._expected(text)[begin + 1]))
        return pairs

    def _branches(self) -> Pairs:
        text, n = self._texts[0][:PROMPT], len(PARENTS)
        tree = DraftTree(tuple(self._drafted), PARENTS, (0.5,) * n, ("trial",) * n)
        rows = self._rows((self._open(text), tree))[0][1:]
        return [(row, self._expected([*text, *tree.path_tokens(node)])[-1]) for node, row in enumerate(rows)]
