"""The drafter class for vLLM's method "custom_class", called after every step.

The interface is that of the first model runner of vLLM 0.33 (v1/worker/gpu_model_runner.py,
propose_draft_token_ids). Drafts depend on the texts only, so that all ranks have the same drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.integrations.vllm.options import Options, make_drafter
from paceline.speculative.interfaces import NO_FEATURES, Budget, DrafterState
from paceline.speculative.policy.acceptance import AcceptanceModel, Recent
from paceline.speculative.stats import TARGET, Step, StepTimes
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

log = logging.getLogger("paceline.integrations.vllm")
CONFIDENT_PROBABILITY = 0.8  # of the next token, from which no further drafter is called
SUFFIX_TOKENS = 64  # that identify a text
Tokens = NDArray[np.int32]
TextSuffix = tuple[int, bytes]
Draft = tuple[list[int], list[float]]  # a chain, and the probability that it is accepted up to each token


@dataclass(eq=False, slots=True)
class TrackedRequest:
    """A request. memory: the state of the drafters. ending: the identity of the text so far.
    row, step, draft: the last ones. recent: the recent outcomes of its drafts."""

    memory: Any
    ending: TextSuffix
    row: int
    step: int
    draft: DraftTree = EMPTY
    recent: Recent = field(default_factory=dict)


class RequestTracker:
    """The requests in the rows of a batch, which move. vLLM shows a drafter arrays without request ids.
    So a request is identified by the length and the last tokens of its text before the step. A mistaken
    identity makes drafts worse, never the output.
    With pipeline stages a request appears at every so many steps. One that is missing for longer has ended or
    was preempted: its state is dropped, and made anew if it returns.
    opener: makes the drafters' state of a text.
    patience: the number of steps for which a request may be missing."""

    def __init__(self, opener: Callable[[list[int]], DrafterState], patience: int = 0) -> None:
        self._open, self._patience, self._step = opener, patience, 0
        self._by_ending: dict[TextSuffix, list[TrackedRequest]] = {}

    def begin(self) -> None:
        self._step += 1

    def find(self, row: int, text: Tokens, n_new: int) -> tuple[TrackedRequest, Sequence[int]]:
        """Return the request in a row, which is untracked until `commit`, and its new tokens.
        n_new: the number of tokens that this step has added."""
        known = len(text) - n_new
        before = text_suffix(text[:known])
        waiting = [request for request in self._by_ending.get(before, ()) if request.step < self._step]
        # Of several requests with one text, prefer the last in this row: its draft was verified here.
        request = next((it for it in waiting if it.row == row), waiting[0] if waiting else None)
        if request is None:
            request = TrackedRequest(self._open(text[:known].tolist()), before, row, self._step)
        else:
            self._remove(request)
        return request, text[known:].tolist()

    def commit(self, request: TrackedRequest, row: int, text: Tokens) -> None:
        """Track a request again, with its text and row."""
        request.ending, request.row, request.step = text_suffix(text), row, self._step
        self._by_ending.setdefault(request.ending, []).append(request)

    def end(self) -> list[TrackedRequest]:
        """End the step. Return the requests that were missing for too long, and drop them."""
        requests = [request for same_ending in self._by_ending.values() for request in same_ending]
        missing = [request for request in requests if self._step - request.step > self._patience]
        for request in missing:
            self._remove(request)
        return missing

    def _remove(self, request: TrackedRequest) -> None:
        same_ending = self._by_ending[request.ending]
        same_ending.remove(request)
        if not same_ending:
            del self._by_ending[request.ending]


def text_suffix(text: Tokens) -> TextSuffix:
    return len(text), text[-SUFFIX_TOKENS:].tobytes()


class ConfidenceBudget(Budget):
    """A budget that calls another drafter only if no earlier drafter is confident of the next token."""

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], pending_prefill: int = 0) -> bool:
        return max(draft().reach_probability, default=0.0) < CONFIDENT_PROBABILITY


class Portfolio:
    """Drafters for a batch of vLLM; they learn from ended requests."""

    def __init__(self, vllm_config: Any) -> None:
        """Make the drafters of a VllmConfig. Raises UsageError, VocabError or ModelError."""
        model, options = vllm_config.model_config, Options.of(vllm_config)
        self._n_draft = int(vllm_config.speculative_config.num_speculative_tokens)
        self._n_ctx, self._n_vocab = int(model.max_model_len), int(model.get_vocab_size())
        self._options = options
        self._drafter = make_drafter(options, model, self._n_draft)
        self._acceptance = AcceptanceModel()
        stages = int(vllm_config.parallel_config.pipeline_parallel_size)
        self._requests = RequestTracker(lambda prompt: self._drafter.open(prompt, 0), patience=stages - 1)
        self._failed = False

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: Tokens,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return a draft for every row of the batch. A row with an error gets no draft.
        sampled_token_ids: the tokens that the step has added to each row, none during its prefill.
        num_tokens_no_spec [max rows]: the length of each text with these tokens.
        token_ids_cpu [max rows, max_model_len]: the texts."""
        self._requests.begin()
        drafts: list[Draft] = [([], [])] * len(sampled_token_ids)
        for row, sampled in enumerate(sampled_token_ids):
            if len(sampled):
                with self._log_errors():
                    text = token_ids_cpu[row, : int(num_tokens_no_spec[row])]
                    drafts[row] = self._step(row, text, len(sampled))
        for request in self._requests.end():
            with self._log_errors():
                request.memory.close()  # the drafters learn its text
                if not self._options.learn:
                    self._drafter.forget()
        return truncate_to_budget(drafts, self._options.rows)

    @contextmanager
    def _log_errors(self) -> Iterator[None]:
        """Log the first error instead of raising it, which would end the server."""
        try:
            yield
        except Exception:
            if not self._failed:
                log.exception("no draft for a request; further errors of this kind are not shown")
            self._failed = True

    def _step(self, row: int, text: Tokens, n_new: int) -> Draft:
        """Learn the outcome of a row's last draft, and return the next draft."""
        request, new = self._requests.find(row, text, n_new)
        self._acceptance.learn(request.recent, request.draft, new)
        emitted = Step(tuple(new), (TARGET,) * len(new), (), {}, {}, None, StepTimes())
        request.memory.update(emitted, NO_FEATURES)
        # The target's token follows the draft.
        draft = self._draft(request, max(0, min(self._n_draft, self._n_ctx - len(text) - 1)))
        self._requests.commit(request, row, text)
        return draft

    def _draft(self, request: TrackedRequest, room: int) -> Draft:
        budget = ConfidenceBudget(depth=room, nodes=room)
        (request.draft,) = self._drafter.propose([(request.memory, budget)])
        reach_probability = self._acceptance.reach_probabilities(request.recent, request.draft)
        path = best_chain(request.draft, reach_probability, self._options.p_min)
        tokens = [request.draft.tokens[node] for node in path]
        # A damaged corpus may hold invalid tokens.
        valid = next((i for i, t in enumerate(tokens) if not 0 <= t < self._n_vocab), len(tokens))
        return tokens[:valid], [reach_probability[node] for node in path[:valid]]


def best_chain(tree: DraftTree, reach_probability: Sequence[float], p_min: float) -> list[int]:
    """Return the path with the largest gain. A node gains its reach probability, less p_min for its row."""
    n = len(tree)
    gain, after = [0.0] * (n + 1), [ROOT] * (n + 1)  # the root is at 0, node i at i + 1
    for node in range(n - 1, ROOT, -1):  # children before their parents
        parent = tree.parents[node] + 1
        gained = reach_probability[node] - p_min + gain[node + 1]
        if reach_probability[node] >= p_min and gained >= gain[parent]:
            gain[parent], after[parent] = gained, node
    path, node = list[int](), after[0]
    while node != ROOT:
        path.append(node)
        node = after[node + 1]
    return path


def truncate_to_budget(drafts: Sequence[Draft], rows: int) -> list[list[int]]:
    """Return the drafts with only the `rows` likeliest tokens of the batch.
    Probabilities never increase along a chain, so that the rest of a draft is dropped."""
    if sum(len(tokens) for tokens, _ in drafts) <= rows:
        return [tokens for tokens, _ in drafts]
    nodes = [(-s, depth, at) for at, (_, chances) in enumerate(drafts) for depth, s in enumerate(chances)]
    lengths = [0] * len(drafts)
    for _, _, at in sorted(nodes)[:rows]:
        lengths[at] += 1
    return [tokens[:n] for (tokens, _), n in zip(drafts, lengths, strict=True)]
