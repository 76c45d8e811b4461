"""Requests from suite items: chat templates, earlier answers, and the context limit."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.api import LLM
from paceline.bench.suites.workload import Item
from paceline.bench.system import BenchRequest
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.sampling import Sampling
from paceline.text.messages import Message


class RequestBuilder:
    """Converts items to requests to one target. n: maximum tokens of each; None uses the item's."""

    def __init__(self, llm: LLM, *, n: int | None, sampling: Sampling, seed: int) -> None:
        self._llm = llm
        self._n, self._sampling, self._seed = n, sampling, seed

    def request(self, item: Item, answers: Mapping[str, str]) -> BenchRequest:
        """Return the request of `item`. answers: by id of earlier items. Raises UsageError if too long."""
        tokens = encode_item(self._llm, item, fill_messages(item, answers))
        target, n = self._llm.target, item.max_tokens if self._n is None else self._n
        if len(tokens) + n > target.caps.n_ctx:
            why = f"{len(tokens):,} tokens and {n:,} more do not fit the context of {target.caps.n_ctx:,}"
            raise UsageError(f"item {item.id}: its {why}: ask for a larger one (-c) or for fewer tokens (-n)")
        text = b"".join(map(target.text.piece, tokens)).decode(errors="replace")
        return BenchRequest(text, tuple(tokens), n, self._seed + item.seed, self._sampling)


def fill_messages(item: Item, answers: Mapping[str, str]) -> list[Message]:
    """Return the messages of `item` with the open ones filled; empty for a prompt to complete.
    answers: by id of earlier items. Raises UsageError if one is missing."""
    if missing := [one for one in item.referred if one not in answers]:
        raise UsageError(f"item {item.id}: it goes on from the answer to {missing[0]}, which was not asked")
    filled = map(answers.__getitem__, item.referred)
    return [{"role": role, "content": next(filled) if text is None else text} for role, text in item.messages]


def encode_item(llm: LLM, item: Item, messages: list[Message]) -> list[int]:
    """Return the tokens of an item. messages: see `fill_messages`."""
    if not messages:
        return llm.tokens(item.prompt)
    try:
        return llm.chat_tokens(messages)
    except ModelError:  # a base model has no chat template
        lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
        return llm.tokens("\n\n".join([*lines, "Assistant:"]))
