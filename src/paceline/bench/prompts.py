"""Requests from suite items: chat templates, earlier answers, and the context limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.api import LLM
from paceline.bench.suites.workload import Item
from paceline.bench.system import BenchRequest
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.sampling import Sampling


class RequestBuilder:
    """Converts items to requests to one target. n: maximum tokens of each; None uses the item's."""

    def __init__(self, llm: LLM, *, n: int | None, ignore_eos: bool, sampling: Sampling, seed: int) -> None:
        self._llm = llm
        self._n, self._ignore_eos = n, ignore_eos
        self._sampling, self._seed = sampling, seed

    def ask(self, item: Item, answers: Mapping[str, str]) -> BenchRequest:
        """Return the request of `item`.

        answers: by id of earlier items. Raises UsageError if the request does not fit the context, or an
        earlier answer is missing."""
        open_ = sum(content is None for _, content in item.messages)
        referred = item.earlier[len(item.earlier) - open_ :]
        if missing := [one for one in referred if one not in answers]:
            raise UsageError(
                f"item {item.id}: it goes on from the answer to {missing[0]}, which was not asked"
            )
        tokens = self._tokens(item, [answers[one] for one in referred])
        target = self._llm.target
        n = item.max_tokens if self._n is None else self._n
        if len(tokens) + n > target.caps.n_ctx:
            raise UsageError(
                f"item {item.id}: its {len(tokens):,} tokens and {n:,} more do not fit the context of "
                f"{target.caps.n_ctx:,}: ask for a larger one (-c) or for fewer tokens (-n)"
            )
        text = b"".join(map(target.text.piece, tokens)).decode(errors="replace")
        return BenchRequest(text, tuple(tokens), n, self._seed + item.seed, self._ignore_eos, self._sampling)

    def _tokens(self, item: Item, answers: Sequence[str]) -> list[int]:
        if not item.messages:
            return self._llm.tokens(item.prompt)
        following = iter(answers)
        messages = [
            {"role": role, "content": next(following) if content is None else content}
            for role, content in item.messages
        ]
        try:
            return self._llm.chat_tokens(messages)
        except ModelError:  # a base model has no chat template
            lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
            return self._llm.tokens("\n\n".join([*lines, "Assistant:"]))
