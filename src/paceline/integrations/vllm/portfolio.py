"""The class that vLLM calls after every step, where "paceline.integrations.vllm.Portfolio" is its method
"custom_class".

The interface is that of vLLM 0.33 (v1/worker/gpu_model_runner.py, propose_draft_token_ids): built with the
configuration, then `propose` with what the step has sampled. It is the first model runner's; vLLM goes back
to that one by itself. What is drafted depends on the texts alone, so that all ranks draft alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.integrations.vllm.options import Options, make_drafter
from paceline.integrations.vllm.requests import RequestTracker, Tokens, TrackedRequest
from paceline.speculative.interfaces import NO_FEATURES, Budget
from paceline.speculative.policy.acceptance_model import AcceptanceModel
from paceline.speculative.stats import TARGET, Step, StepTimes
from paceline.speculative.tree import ROOT, DraftTree

log = logging.getLogger("paceline.integrations.vllm")
CONFIDENT_PROBABILITY = 0.8  # where the next token is as likely as this, no further drafter is called
Draft = tuple[list[int], list[float]]  # a chain, and each token's chance to be accepted


class ConfidenceBudget(Budget):
    """A drafter more is called only where those before it are not sure of the next token."""

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        return max(draft().reach_probability, default=0.0) < CONFIDENT_PROBABILITY


class Portfolio:
    """Owns its drafters, what they have learned of ended requests, and the memories of those in the batch."""

    def __init__(self, vllm_config: Any) -> None:
        """vllm_config: vLLM's VllmConfig. Raises UsageError, VocabError or ModelError."""
        model, options = vllm_config.model_config, Options.of(vllm_config)
        self._n_draft = int(vllm_config.speculative_config.num_speculative_tokens)
        self._n_ctx, self._n_vocab = int(model.max_model_len), int(model.get_vocab_size())
        self._options = options
        self._drafter = make_drafter(options, model, self._n_draft)
        self._belief = AcceptanceModel()
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
        """The tokens that may follow, for every row of the batch.

        sampled_token_ids: what the step has added to each row; nothing to one whose prompt is still being
        read. num_tokens_no_spec [most rows]: how long each text is with it. token_ids_cpu [most rows,
        max_model_len]: the texts. A row that something is wrong with gets no draft."""
        self._requests.begin()
        drafts: list[Draft] = [([], [])] * len(sampled_token_ids)
        for row, sampled in enumerate(sampled_token_ids):
            if len(sampled):
                with self._alone():
                    text = token_ids_cpu[row, : int(num_tokens_no_spec[row])]
                    drafts[row] = self._step(row, text, len(sampled))
        for request in self._requests.end():
            with self._alone():
                request.memory.close()  # what it said is learned
                if not self._options.learn:
                    self._drafter.forget()
        return truncate_to_budget(drafts, self._options.rows)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """What goes wrong with one request ends its draft and nothing else: an error would end the server."""
        try:
            yield
        except Exception:
            if not self._failed:
                log.exception("no draft for a request; further errors of this kind are not shown")
            self._failed = True

    def _step(self, row: int, text: Tokens, n_new: int) -> Draft:
        """Learn what came of the row's last draft, and make its next one."""
        request, new = self._requests.find(row, text, n_new)
        self._belief.learn(request.recent, request.draft, new)
        emitted = Step(tuple(new), (TARGET,) * len(new), (), {}, {}, None, StepTimes())
        request.memory.update(emitted, NO_FEATURES)
        # The target's own token follows the draft.
        draft = self._draft(request, max(0, min(self._n_draft, self._n_ctx - len(text) - 1)))
        self._requests.commit(request, row, text)
        return draft

    def _draft(self, request: TrackedRequest, room: int) -> Draft:
        budget = ConfidenceBudget(depth=room, nodes=room)
        (request.draft,) = self._drafter.propose([(request.memory, budget)])
        reach_probability = self._belief.reach_probabilities(request.recent, request.draft)
        path = best_chain(request.draft, reach_probability, self._options.p_min)
        tokens = [request.draft.tokens[node] for node in path]
        # A damaged corpus may hold tokens that the target has not.
        sound = next((i for i, t in enumerate(tokens) if not 0 <= t < self._n_vocab), len(tokens))
        return tokens[:sound], [reach_probability[node] for node in path[:sound]]


def best_chain(tree: DraftTree, reach_probability: Sequence[float], p_min: float) -> list[int]:
    """The nodes of the path that gains most, where each gains its reach probability less p_min, what its row
    costs."""
    n = len(tree)
    gain, after = [0.0] * (n + 1), [ROOT] * (n + 1)  # of the root first, then of node i at i + 1
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
    """No more than `rows` tokens of all drafts together: the likeliest. Along a chain none is likelier than
    the one before."""
    if sum(len(tokens) for tokens, _ in drafts) <= rows:
        return [tokens for tokens, _ in drafts]
    nodes = [(-s, depth, at) for at, (_, chances) in enumerate(drafts) for depth, s in enumerate(chances)]
    selected = [0] * len(drafts)
    for _, _, at in sorted(nodes)[:rows]:
        selected[at] += 1
    return [tokens[:n] for (tokens, _), n in zip(drafts, selected, strict=True)]
