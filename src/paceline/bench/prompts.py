"""Items to requests: chat templates, earlier answers, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.api import LLM
from paceline.bench.suites.workload import Item
from paceline.bench.system import BenchRequest
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.sampling import Sampling


class RequestBuilder:
    """Turns items into requests to one target. n: most tokens of each, None leaves it to the item."""

    def __init__(self, llm: LLM, *, n: int | None, ignore_eos: bool, sampling: Sampling, seed: int) -> None:
        self._llm = llm
        self._n, self._ignore_eos = n, ignore_eos
        self._sampling, self._seed = sampling, seed

    def ask(self, item: Item, answers: Mapping[str, str], before: Sequence[Item]) -> BenchRequest:
        """Return the request of `item`. answers: item id -> what the target said. before: the items before it
        in its session. Raises UsageError where it does not fit the context, or goes on from what was not
        asked."""
        open_ = sum(content is None for _, content in item.messages)
        referred = before[len(before) - open_ :]
        if missing := [one.id for one in referred if one.id not in answers]:
            raise UsageError(
                f"item {item.id}: it goes on from the answer to {missing[0]}, which was not asked"
            )
        tokens = self._tokens(item, [answers[one.id] for one in referred])
        target = self._llm.target
        n = item.max_tokens if self._n is None else self._n
        if len(tokens) + n > target.caps.n_ctx:
            raise UsageError(
                f"item {item.id}: its {len(tokens):,} tokens and {n:,} more do not fit the context of "
                f"{target.caps.n_ctx:,}: ask for a larger one (-c) or for fewer tokens (-n)"
            )
        text = b"".join(map(target.text.piece, tokens)).decode(errors="replace")
        return BenchRequest(text, tuple(tokens), n, self._seed + item.seed, self._ignore_eos, self._sampling)

    def size(self, item: Item) -> tuple[int, int]:
        """Return about how many tokens its prompt and its answer have; answers that are still to be given are
        taken for their longest."""
        answer = self._n or item.max_tokens
        open_ = sum(content is None for _, content in item.messages)
        return len(self._tokens(item, [""] * open_)) + open_ * answer, answer

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
        except ModelError:  # a base model: the conversation as plain text
            lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
            return self._llm.tokens("\n\n".join([*lines, "Assistant:"]))


def earlier_in_session(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Return the items before each in its session, in order, by id."""
    sessions: dict[str, list[Item]] = {}
    out: dict[str, list[Item]] = {}
    for item in items:
        session = sessions.setdefault(item.session, []) if item.session else []
        out[item.id] = list(session)
        session.append(item)
    return out
