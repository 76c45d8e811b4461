"""A draft model with another vocabulary that drafts text (string-level exact match, Timor et al. 2025,
arXiv:2502.05202; "universal assisted generation" in transformers).

The draft model writes a greedy chain, the target's tokenizer retokenizes its text, and the result is proposed
as a deterministic chain: exact at any temperature. A token's score is the draft's probability of its bytes,
where each drafted token's log-probability is spread evenly over its bytes.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from paceline.drafters.model import ModelDrafter, ModelDrafterState
from paceline.drafters.parts import MODEL_SOURCE, DrafterInputs, Warn
from paceline.speculative.interfaces import NO_OUTPUTS, Budget, Drafter, Features, Session, Target
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree, chain
from paceline.vocab.translation import Translation, window

CONTEXT_TOKENS = 4  # tokens before the draft that are retokenized with it, as it may continue a word


class SlemState:
    """The draft model's state, the text in the draft's tokens, and the ends of both token sequences."""

    def __init__(self, inner: ModelDrafterState, translation: Translation, prompt: Sequence[int]) -> None:
        self.inner = inner
        self._translation = translation
        self.read = list(inner.tokens)
        self.context = list(prompt[-CONTEXT_TOKENS:])  # the target's tokens
        self.drafted: list[int] = []  # the draft's, of the last proposal

    def update(self, step: Step, features: Features) -> None:
        emitted = [self._translation.target.token_bytes[token] for token in step.tokens]
        if all(emitted):
            self._append_text(emitted)
        else:
            self.read += self._translation.text(step.tokens)
        self.drafted = []
        self.context = [*self.context, *step.tokens][-CONTEXT_TOKENS:]

    def _append_text(self, emitted: Sequence[bytes]) -> None:
        """Append the emitted text, keeping the draft's tokens (and their cache) up to a boundary of both."""
        text, boundaries = b"".join(emitted), set(accumulate(map(len, emitted)))
        n = n_bytes = at = 0
        for i, token in enumerate(self.drafted):
            data = self._translation.draft.token_bytes[token]
            if not text.startswith(data, at):
                break
            at += len(data)
            if at in boundaries:
                n, n_bytes = i + 1, at
        self.read += self.drafted[:n] + self._translation.draft.encode(text[n_bytes:])

    def close(self) -> None:
        self.inner.close()


class SlemDrafter:
    """A drafter that owns the draft model. Drafts are chains. warn: see ModelDrafter."""

    name = MODEL_SOURCE
    required_outputs = NO_OUTPUTS

    def __init__(self, draft: Target, translation: Translation, warn: Warn = lambda _: None) -> None:
        self._drafter = ModelDrafter(draft, draft.vocab.size, warn=warn)
        self._caps = draft.caps
        self._translation = translation
        # A control token ends a draft, as its counterpart or as an end of text.
        ours, theirs = translation.target, translation.draft
        common = translation.common
        pairs = zip(common.draft_ids.tolist(), common.target_ids.tolist(), strict=True)
        self._closing = {their: our for their, our in pairs if not theirs.token_bytes[their]}
        if ours.vocab.eos:
            self._closing = dict.fromkeys(theirs.vocab.eos, min(ours.vocab.eos)) | self._closing

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> SlemState:
        inner = self._drafter.open(self._translation.prompt(prompt), seed, scope=scope)
        return SlemState(inner, self._translation, prompt)

    def close(self) -> None:
        self._drafter.close()

    def propose(self, batch: Sequence[tuple[SlemState, Budget]]) -> list[DraftTree]:
        requests = []
        for state, budget in batch:
            state.inner.tokens = window(state.read, self._translation.lead, self._caps)
            n = min(budget.depth, budget.nodes)
            # Grammar and noise apply to the target's tokens. The loop prunes forbidden tokens, and the
            # draft's likeliest token is the best guess.
            plain = replace(budget, depth=n, nodes=n, width=1, grammar=None, gumbel_noise=None)
            requests.append((state.inner, plain))
        drafts = self._drafter.propose(requests)
        return [self._rewrite(*request, draft) for request, draft in zip(batch, drafts, strict=True)]

    def _rewrite(self, state: SlemState, budget: Budget, drafted: DraftTree) -> DraftTree:
        """Return the drafted text in the target's tokens."""
        text, ends, logs = b"", [0], [0.0]
        closing, state.drafted = [], []
        for token, score in zip(drafted.tokens, drafted.score, strict=True):
            data = self._translation.draft.token_bytes[token]
            if not data:
                closing = [(self._closing[token], score)] if token in self._closing else []
                break
            state.drafted.append(token)
            text += data
            ends.append(len(text))
            logs.append(logs[-1] + math.log(score))
        tokens, cuts = self._retokenize(state.context, text)
        scores: list[float] = np.exp(np.diff(np.interp(cuts, ends, logs))).tolist()
        if cuts[-1] == len(text):
            tokens += [token for token, _ in closing]
            scores += [score for _, score in closing]
        n = min(budget.depth, budget.nodes)
        return chain(tokens[:n], self.name, scores[:n])

    def _retokenize(self, context: list[int], text: bytes) -> tuple[list[int], list[int]]:
        """Return the target's tokens for `text` up to its last complete character, and their byte offsets."""
        target = self._translation.target
        while not all(target.token_bytes[token] for token in context):  # drop up to the last control token
            context = context[1:]
        before = target.decode(context)
        text = text[: max(0, complete_length(before + text) - len(before))]
        tokens = target.encode(before + text)
        if tokens[: len(context)] == context:
            tokens = tokens[len(context) :]
        else:
            tokens = target.encode(text)
        cuts = [0]
        for token in tokens:
            data = target.token_bytes[token]
            if not data or not text.startswith(data, cuts[-1]):  # not representable
                break
            cuts.append(cuts[-1] + len(data))
        return tokens[: len(cuts) - 1], cuts


def complete_length(data: bytes) -> int:
    """Return the length of `data` without an incomplete character at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


def make(parts: DrafterInputs) -> Drafter:
    assert parts.draft is not None
    assert parts.translation is not None
    return SlemDrafter(parts.draft, parts.translation, parts.warn)
