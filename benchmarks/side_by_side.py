"""Methods that decode the same text at the same time, a few tokens each in turn.

A shared machine changes its pace by tenths within seconds: of two that answer one after the other, one may
have had the better minute. Here each has a context of its own on the same weights, and the turn passes on
every few tokens, so that all of them meet every moment and every place of the text alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from rehearsal import Rehearsal

from paceline.backends.recorded import Recording
from paceline.bench.method import Method
from paceline.bench.summary import Interval, speedup
from paceline.drafter_factory import make_drafter, make_policy
from paceline.loading import load
from paceline.profiling.pass_costs import costs_of, refresh, save
from paceline.speculative.interfaces import LearningDrafter, RequiredOutputs
from paceline.speculative.loop import ActiveRequest, decode, start_request
from paceline.speculative.policy.costs import MIN_CONTEXT_BUCKET, DecodingCosts
from paceline.speculative.request import MAX_FUSED_PREFILL, GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.storage.corpora import NO_CORPORA
from paceline.text.detokenizer import Detokenizer

TURN = 8  # tokens
Speed = tuple[float, float]  # tokens and seconds


class Side:
    """One method, with what it needs on the weights of `base`."""

    def __init__(
        self,
        method: Method,
        base: Any,
        draft: Path,
        recordings: Sequence[Recording],
        given: Mapping[str, Any],
    ) -> None:
        self.name = method.name
        self._stack = ExitStack()
        engine = base.with_shared_weights(
            n_ctx=base.caps.n_ctx, flash_attention=base.settings["flash_attention"]
        )
        self._stack.callback(engine.close)
        self.draft: Any = None
        if method.uses_draft:
            small = load(draft, drafters="none", n_ctx=base.caps.n_ctx, **given)
            self._stack.callback(small.close)
            self.draft = small.target
        self.target: Any = Rehearsal(engine, recordings)
        self.costs = costs_of(base, self.draft) if method.drafting.policy == "goodput" else None
        self.drafter, drafting = make_drafter(
            method.drafting, self.target, self.draft, NO_CORPORA, self.costs
        )
        if self.costs is not None:
            refresh(self.costs, self.draft)
        self.policy = make_policy(drafting, self.costs)

    def forget(self) -> None:
        if isinstance(self.drafter, LearningDrafter):
            self.drafter.forget()
        if self.draft is not None:
            self.draft.forget()
        self.policy.forget()

    def close(self) -> None:
        self._stack.close()


class Run:
    """One answer of one side. Its prompt has been read, by the draft model too: the time is decoding's.
    first: of a process that has answered nothing yet; the draft model has its prompt to read."""

    def __init__(self, side: Side, recording: Recording, temperature: float, first: bool) -> None:
        self.tokens, self.seconds = 0, 0.0
        self._length, self._recording = len(recording.tokens), recording
        if first:
            side.forget()
        elif side.draft is not None:
            session = side.draft.open()
            session.extend(recording.prompt)
            side.draft.forward([(session, session.pending_tokens)], RequiredOutputs())
            session.close()  # which leaves the prompt for the next one
        self._text = Detokenizer(side.target.text.piece)
        self._request: ActiveRequest = start_request(
            side.target,
            side.drafter,
            GenerationRequest(
                prompt=recording.prompt,
                max_tokens=self._length,
                sampling=Sampling(temperature=temperature),
                ignore_eos=True,
            ),
            stop=self._text,
        )
        self._request.gumbel_noise = recording.gumbel_noise
        self._steps = decode(side.target, side.drafter, side.policy, [self._request])
        while self._request.session.pending_tokens > MAX_FUSED_PREFILL:
            next(self._steps)

    @property
    def done(self) -> bool:
        return self.tokens >= self._length

    def until(self, place: int) -> None:
        """Decode up to that many tokens, or a few more. The text is made as it comes, as for a user."""
        began = perf_counter()
        while self.tokens < place and not self.done:
            _, step = next(self._steps)
            self._text.take_text()
            self.tokens += len(step.tokens)
        self.seconds += perf_counter() - began
        if self.done:
            said = self._request.session.tokens[self._request.n_prompt :]
            assert tuple(said) == self._recording.tokens, "another text than was recorded"

    def close(self) -> None:
        self._request.close()


class SideBySide:
    """given: what `assemble.load` takes besides the models. rounds: how often all is answered; what was
    learned is forgotten before each. first: before each answer, too."""

    def __init__(
        self,
        target: Path,
        methods: Sequence[Method],
        draft: Path,
        recordings: Sequence[Recording],
        temperature: float,
        given: Mapping[str, Any],
        first: bool = False,
    ) -> None:
        self._recordings, self._temperature, self._first = recordings, temperature, first
        self.speeds: dict[str, list[list[Speed]]] = {}  # by method, recording and round
        self._rows: list[float] = []  # seconds of a pass over one row, by turn
        self._stack = ExitStack()
        self._base = self._stack.enter_context(load(target, drafters="none", **given)).target
        self._sides: list[Side] = []
        for method in methods:
            side = Side(method, self._base, draft, recordings, given)
            self._stack.callback(side.close)
            self._sides.append(side)

    def run(self, rounds: int) -> None:
        self.speeds = {side.name: [[] for _ in self._recordings] for side in self._sides}
        number = count()
        self._answer(self._recordings[0], 0)  # warm
        self._rows.clear()
        for _ in range(rounds):
            for side in self._sides:
                side.forget()
            for at, recording in enumerate(self._recordings):
                for name, speed in self._answer(recording, next(number)):
                    self.speeds[name][at].append(speed)

    def _answer(self, recording: Recording, number: int) -> list[tuple[str, Speed]]:
        with ExitStack() as stack:
            runs: list[tuple[str, Run]] = []
            for side in self._sides:
                run = Run(side, recording, self._temperature, self._first)
                stack.callback(run.close)
                runs.append((side.name, run))
            for place in range(TURN, len(recording.tokens) + TURN, TURN):
                # Each comes first as often as any other, and as often before its neighbour as after it.
                cycles, first = divmod(number + place // TURN, len(runs))
                order = [*runs[first:], *runs[:first]]
                for _, run in order[::-1] if cycles % 2 else order:
                    run.until(place)
                self._rows += [
                    side.costs.target.seconds(1, MIN_CONTEXT_BUCKET) for side in self._sides if side.costs
                ]
            return [(name, (float(run.tokens), run.seconds)) for name, run in runs]

    def over(self, name: str, other: str) -> Interval | None:
        speeds, base = ([one for rounds in self.speeds[n] for one in rounds] for n in (name, other))
        return speedup([at for at, rounds in enumerate(self.speeds[name]) for _ in rounds], speeds, base)

    def speed(self, name: str) -> float:
        """Tokens a second."""
        some = [speed for rounds in self.speeds[name] for speed in rounds]
        return sum(tokens for tokens, _ in some) / sum(seconds for _, seconds in some)

    def costs(self) -> DecodingCosts:
        """As use has refreshed them, at the pace that the machine had in the mean, which at the end may be
        another."""
        known = [side.costs for side in self._sides if side.costs is not None]
        last = next((costs for costs in known if costs.draft is not None), known[0])
        change = fmean(self._rows) / last.target.seconds(1, MIN_CONTEXT_BUCKET)
        told = last.as_dict()
        for depth in told["target"]["seconds"]:
            depth[:] = [None if seconds is None else seconds * change for seconds in depth]
        return DecodingCosts.read(told)

    def close(self) -> None:
        """What use has taught of the costs is kept."""
        for side in self._sides:
            if side.costs is not None:
                save(self._base, side.draft, side.costs)
        self._stack.close()

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
