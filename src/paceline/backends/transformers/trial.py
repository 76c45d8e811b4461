"""A probe of what a model's architecture supports.

An architecture may keep state elsewhere, ignore a cache or a mask, or take cache places for positions. So a
few tokens are decoded in every way that this backend uses, and compared with passes without a cache. Ways
that differ are not used with the model. The result is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from paceline.backends.transformers.kind import ArchitectureTraits
from paceline.backends.transformers.loading import first_line, is_out_of_memory, out_of_memory_error
from paceline.backends.transformers.session import CacheSlots, HfSession
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import RequiredOutputs, Rollback
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from paceline.system import home

FOLDER, VERSION = "transformers", 4  # increase the version if results may change
PROMPT, LENGTH = 3, 7  # tokens of a text
PARENTS = (ROOT, ROOT, 1, ROOT)  # all nodes but the first must not attend to some earlier node

Pairs = list[tuple[Any, Any]]  # computed and expected rows of logits


@dataclass(frozen=True)
class ProbedTraits:
    """The result of a probe.
    rollback: see Caps. masks: masks separate branches and sessions.
    rejection_reason: why the model cannot be decoded at all, or ""."""

    rollback: Rollback
    multi_token_passes: bool
    masks: bool
    multiple_sessions: bool
    rejection_reason: str = ""

    def limit(self, kind: ArchitectureTraits) -> None:
        kind.rollback = self.rollback
        kind.supports_custom_masks &= self.masks
        kind.single_token_passes = not self.multi_token_passes


def probe_traits(target: Any, model: Any, kind: ArchitectureTraits, key: Mapping[str, Any]) -> ProbedTraits:
    """Return the cached result of `key`, or probe the model. target: its HfTarget, without open sessions."""
    if model.training:  # dropout makes outputs random
        return ProbedTraits(kind.rollback, True, kind.supports_custom_masks, True)
    key = {**key, "trial": VERSION}
    traits = home.load_record(FOLDER, key, lambda value: ProbedTraits(**value["abilities"]))
    if traits is None:
        traits = TraitProbe(target, model, kind).run()
        home.write_record(FOLDER, key, {"abilities": asdict(traits)}, lambda _: None, "")
    return traits


class TraitProbe:
    """A probe of one model. kind: declared traits, from which those that do not hold are removed."""

    def __init__(self, target: Any, model: Any, kind: ArchitectureTraits) -> None:
        self._target, self._model, self._kind = target, model, kind
        size = target.vocab.size
        self._texts = [[(7919 * (at + n) + 11) % size for n in range(LENGTH)] for at in (1, 40)]
        self._drafted = [(7919 * n + 11) % size for n in range(80, 80 + len(PARENTS))]
        # In 16 bits, rounding in passes of another shape differs visibly.
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
        if not torch.isfinite(logits).all():  # nothing can be compared; each row raises an error later
            return ProbedTraits(kind.rollback, True, kind.supports_custom_masks, True)
        kind.supports_custom_masks = kind.supports_custom_masks and self._matches_reference(self._branches)
        several = self._matches_reference(self._several)
        if not several:
            kind.single_token_passes, kind.supports_custom_masks = True, False
            kind.rollback = "restore" if kind.rollback == "restore" else "none"
        both, one = self._texts, self._texts[:1]
        together = self._matches_reference(lambda: self._check_decoding(both, drafts=kind.rollback != "none"))
        if not together:  # find the cause
            if not self._matches_reference(lambda: self._check_decoding(one)):
                return self._refused(self._fault or "token by token it says something else than in one pass")
            if not self._matches_reference(lambda: self._check_decoding(one, drafts=True)):
                kind.rollback = "none"
            masks = kind.supports_custom_masks and kind.rollback == "free"
            kind.supports_custom_masks = masks and self._matches_reference(lambda: self._check_decoding(both))
            together = self._matches_reference(lambda: self._check_decoding(both))
        return ProbedTraits(kind.rollback, several, kind.supports_custom_masks, together)

    def _refused(self, reason: str) -> ProbedTraits:
        import transformers

        kind = f"{self._model.config.model_type} of transformers {transformers.__version__}"
        message = f"{kind} cannot be decoded ({reason}): use a GGUF file of it"
        return ProbedTraits("none", False, False, False, message)

    def _matches_reference(self, way: Callable[[], Pairs]) -> bool:
        """Return whether the rows equal those of passes without a cache.
        Fewer than half may differ, since rounding can route a token to other experts."""
        self._fault, self._slots = "", CacheSlots(2, self._target.make_cache, self._kind.rollback)
        try:
            errors = sorted(float((a - b).norm() / (b - b.mean()).norm()) for a, b in way())
        except ModelError:  # too little memory
            raise
        except Exception as error:  # transformers raises whatever its parts raise
            self._fault = first_line(error)
            return False
        return bool(errors[len(errors) // 2] <= self._tolerance)

    def _expected(self, tokens: Sequence[int]) -> Any:
        """Return the logits [tokens, n_vocab] of one pass without a cache."""
        key = tuple(tokens)
        if key not in self._known:
            ids = torch.tensor([key], device=self._model.device)
            try:
                with torch.inference_mode():
                    self._known[key] = self._model(input_ids=ids, use_cache=False).logits[0].float().cpu()
            except Exception as error:
                path = self._target.path
                raise (out_of_memory_error(path, error) if is_out_of_memory(error) else error) from None
        return self._known[key]

    def _open(self, tokens: Sequence[int]) -> HfSession:
        session = HfSession(self._slots, 4 * LENGTH)
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
        """Decode the texts token by token in one batch. drafts: with wrong drafts."""
        tree = chain(self._drafted, "trial") if drafts else EMPTY
        sessions, pairs = [self._open(text[:PROMPT]) for text in texts], Pairs()
        if drafts:  # a checkpoint must have something behind it
            self._target.forward([(one, one.pending_tokens) for one in sessions], RequiredOutputs())
        for at in range(PROMPT, LENGTH):
            outs = self._rows(*((session, tree) for session in sessions))
            pairs += [(rows[0], self._expected(text)[at - 1]) for rows, text in zip(outs, texts, strict=True)]
            for session, text in zip(sessions, texts, strict=True):
                session.commit([], text[at])
        return pairs[len(texts) :]  # the first pairs come from passes over the whole prompt

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
