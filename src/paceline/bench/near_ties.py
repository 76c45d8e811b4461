"""Plain and drafted decoding of one request side by side: a fair start, and what the outputs prove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.api import LLM
from paceline.bench.text_comparison import Difference, explain, first_difference
from paceline.engine import OnPrefill
from paceline.request_handle import Generation
from paceline.speculative.errors import LosslessError
from paceline.speculative.sampling import Sampling


@dataclass(frozen=True)
class OutputComparison:
    """said: the verdict in words, after "output identical:". at: the first token that differs.
    difference: by how much greedy outputs differ there; None where they are identical or sampled."""

    identical: bool
    said: str
    at: int | None = None
    difference: Difference | None = None

    def require_lossless(self) -> None:
        """Raises LosslessError where greedy outputs differ and it was no near-tie."""
        if self.difference is not None and not self.difference.near_tie:
            raise LosslessError(
                f"drafted output differs from plain output from token {self.at} on: the two tokens' logits "
                f"are {self.difference.gap:.3g} apart, batch noise is {self.difference.noise:.3g}. "
                "This is a bug in Paceline: please report it"
            )


def warm_up(llm: LLM, prompt: Sequence[int], on_prefill: OnPrefill | None = None) -> Generation:
    """Before runs that are compared, so that all start alike: every model's weights are in memory, and the
    prompt is in the target's cache but not in the draft's, whose work on it counts. Returns what read it.
    on_prefill: see LLM.stream."""
    prompt = tuple(prompt)  # a list without tokens would be a batch without prompts
    llm.generate(prompt[:1], max_tokens=2, remember=False)
    return llm.generate(prompt, max_tokens=1, plain=True, on_prefill=on_prefill)


def judge(
    llm: LLM, prompt: Sequence[int], plain: Sequence[int], drafted: Sequence[int], sampling: Sampling
) -> OutputComparison:
    """plain, drafted: the tokens of both outputs."""
    at = first_difference(plain, drafted)
    if at is None:
        return OutputComparison(True, "yes")
    if not sampling.greedy and llm.drafting.temperature > 0:
        return OutputComparison(False, "no: sampled drafts draw another text from the same distribution", at)
    if not sampling.greedy:
        said = f"no: not from token {at} on, where rounding can have moved a draw; --temp 0 can tell"
        return OutputComparison(False, said, at)
    difference = explain(llm.target, prompt, plain, drafted, llm.drafting.budget, sampling)
    if difference is None or not difference.near_tie:
        return OutputComparison(False, f"NO: not from token {at} on", at, difference)
    said = (
        f"up to token {at}, a near-tie: the two tokens' logits are {difference.gap:.2g} apart, "
        f"batch noise is {difference.noise:.2g}"
    )
    return OutputComparison(False, said, at, difference)
