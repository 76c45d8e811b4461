"""A replay by one method: recorded requests through the engine, one after another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from paceline.backends.recorded import Recording, ReplayTarget
from paceline.bench.method import Method
from paceline.bench.replay.record import ReplayResult
from paceline.bench.replay.simulated import SimulatedTarget, VirtualClock
from paceline.drafter_factory import NO_CORPORA, Corpora, make_drafter, make_policy
from paceline.engine import InferenceEngine
from paceline.profiling.pass_costs import to_stderr
from paceline.speculative.errors import ContractError
from paceline.speculative.interfaces import LearningDrafter, Target
from paceline.speculative.loop import Clock
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import SourceStats, Stats
from paceline.speculative.vocabulary import Vocab

MAX_TOKENS_UNLIMITED = 1 << 30  # tokens; drafters must not know where the recording ends


@dataclass(frozen=True)
class ReplayContext:
    """Resources shared by the methods of a replay.

    text: the tokenizer, if any. costs: of passes; None predicts no speeds."""

    vocab: Vocab
    text: object = None
    corpora: Corpora = NO_CORPORA
    draft: Target | None = None
    costs: DecodingCosts | None = None


def replay_recording(engine: InferenceEngine, recording: Recording) -> Stats:
    """Decode one recording to its end. Raises ContractError if the output differs from the recording."""
    request = GenerationRequest(
        prompt=recording.prompt,
        max_tokens=MAX_TOKENS_UNLIMITED,
        should_stop=stop_after(len(recording.tokens)),
        ignore_eos=True,
    )
    with engine.run_inline(request) as stream:
        active = stream.handle.scheduled.active
        assert active is not None  # the stream has begun
        active.gumbel_noise = recording.gumbel_noise
        for _ in stream:
            pass
    if tuple(stream.handle.tokens) != recording.tokens:
        raise ContractError(f"{engine.drafter.name}: decoded another text than was recorded")
    return stream.handle.stats


def stop_after(left: int) -> Callable[[int], bool]:
    """Return a stop condition that is true at the token number `left`."""

    def stop(_token: int) -> bool:
        nonlocal left
        left -= 1
        return left == 0

    return stop


class MethodReplay:
    """A method with its drafter, engine and counts by source. recordings: all that will be replayed."""

    def __init__(self, method: Method, recordings: Sequence[Recording], means: ReplayContext) -> None:
        self.method, self.means = method, means
        self.by_source: dict[str, SourceStats] = {}
        target: Target = ReplayTarget(means.vocab, recordings, means.text)
        clock: Clock = perf_counter
        draft, costs = means.draft, means.costs
        if costs is not None:
            clock = virtual = VirtualClock()
            target = SimulatedTarget(target, costs.target, virtual, costs.step)
            if draft is not None and costs.draft is not None:
                draft = SimulatedTarget(draft, costs.draft, virtual)
        self.drafter, self.drafting = make_drafter(
            method.drafting, target, draft, means.corpora, costs, to_stderr
        )
        # A copy: what the policy learns must not change the simulated costs.
        self.policy = make_policy(self.drafting, copy.deepcopy(costs), clock)
        self.engine = InferenceEngine(target, self.drafter, self.policy, clock=clock, detokenize=False)

    def forget(self) -> None:
        self.policy.forget()
        if isinstance(self.drafter, LearningDrafter):
            self.drafter.forget()

    def play(self, recording: Recording) -> ReplayResult:
        stats = replay_recording(self.engine, recording)
        for name, source in stats.by_source.items():
            sums = self.by_source.setdefault(name, SourceStats())
            for what, n in vars(source).items():
                setattr(sums, what, getattr(sums, what) + n)
        seconds = None if self.means.costs is None else stats.seconds
        return ReplayResult(stats.tokens, stats.steps, stats.drafted, stats.accepted, seconds)

    def close(self) -> None:
        self.drafter.close()
