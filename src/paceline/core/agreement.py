"""What several drafters say about one place, as one chance for each guess.

A drafter's guess has a chance of its own (calibrate.py). Where others speak too, the logits of those are
stacked (Wolpert, Stacked Generalization, Neural Networks 5, 1992): one logistic regression learns online what
a voice is worth among others, where it says so, where it says something else, and by its silence.

    logit(chance) = company + for each who says it                     trust * its own logit
                            + for each who says something else here    rival * the logit of its likeliest

`company` is a bias of who says it among who speaks at all. The steps are those of calibrate.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.calibrate import SUREST, sigmoid

Heard = Sequence[tuple[str, float]]  # who made a guess, each with the logit of the chance that it gives it

FORGET = 0.995  # a weight rests on about two hundred outcomes
STEP = 0.5
PRIOR, PRIOR_OF_COMPANY = 10.0, 2.0
# To begin with: trust and rival, and what a voice adds to `company` where it says so and where it does not.
# Who computes with the text knows more than who remembers one like it.
START = (0.55, -0.15, 0.0, -0.9)
START_OF = {"model": (0.75, -0.3, 0.3, -1.2)}


class Weight:
    __slots__ = ("curvature", "value")

    def __init__(self, value: float, curvature: float = PRIOR) -> None:
        self.value, self.curvature = value, curvature


Inputs = list[tuple[Weight, float]]  # weights, each with what it is multiplied by


class Voice:
    """One drafter's. bit: for sets of drafters."""

    __slots__ = ("against", "bit", "rival", "said", "trust")

    def __init__(self, drafter: str, bit: int) -> None:
        trust, rival, self.said, self.against = START_OF.get(drafter, START)
        self.trust, self.rival, self.bit = Weight(trust), Weight(rival), bit


class Agreement:
    """Over all requests."""

    def __init__(self) -> None:
        self._voices: dict[str, Voice] = {}
        self._companies: dict[tuple[int, int], Weight] = {}

    def of(self, drafter: str) -> Voice:
        found = self._voices.get(drafter)
        if found is None:
            found = self._voices[drafter] = Voice(drafter, 1 << len(self._voices))
        return found

    def _company(self, who: int, voices: int) -> Weight:
        found = self._companies.get((who, voices))
        if found is None:
            there = [voice for voice in self._voices.values() if voice.bit & voices]
            value = sum(voice.said if voice.bit & who else voice.against for voice in there)
            found = self._companies[who, voices] = Weight(value, PRIOR_OF_COMPANY)
        return found

    def unopposed(self, heard: Heard) -> float:
        """What `logits` comes to for the only guess at a place, in one go: the commonest."""
        z, who = 0.0, 0
        for name, own in heard:
            voice = self.of(name)
            z += voice.trust.value * (own if own < SUREST else SUREST)
            who |= voice.bit
        return z + self._company(who, who).value

    def logits(self, siblings: Sequence[Heard]) -> list[float]:
        """Of all guesses at a place."""
        return [_logit(inputs) for inputs in self._inputs(siblings)]

    def observe(self, siblings: Sequence[Heard], right: int | None) -> list[float]:
        """The outcome at a place whose parent was accepted: which sibling was right. Returns the logits that
        were believed before."""
        every = self._inputs(siblings)
        believed = [_logit(inputs) for inputs in every]
        for at, (inputs, z) in enumerate(zip(every, believed, strict=True)):
            if (z >= SUREST and at == right) or (z <= -SUREST and at != right):
                continue  # as in calibrate.py
            p = sigmoid(z)
            step, variance = STEP * ((at == right) - p), p * (1.0 - p)
            for weight, x in inputs:
                c = FORGET * weight.curvature + variance * x * x
                weight.curvature = c = c if c > 1.0 else 1.0
                weight.value += step * x / c
        return believed

    def _inputs(self, siblings: Sequence[Heard]) -> list[Inputs]:
        """What each guess is judged by."""
        out: list[Inputs] = []
        masks: list[int] = []
        voices, opposed = 0, len(siblings) > 1
        likeliest: dict[str, tuple[float, int, float | None]] = {}  # of what each says; where; the next of it
        for at, heard in enumerate(siblings):
            mask, inputs = 0, Inputs()
            for name, own in heard:
                voice = self.of(name)
                own = own if own < SUREST else SUREST
                mask |= voice.bit
                inputs.append((voice.trust, own))
                if opposed:
                    best = likeliest.get(name)
                    if best is None:
                        likeliest[name] = own, at, None
                    elif own > best[0]:
                        likeliest[name] = own, at, best[0]
                    elif best[2] is None or own > best[2]:
                        likeliest[name] = best[0], best[1], own
            out.append(inputs)
            masks.append(mask)
            voices |= mask
        for mask, inputs in zip(masks, out, strict=True):
            inputs.append((self._company(mask, voices), 1.0))
        for name, (best_own, first, second) in likeliest.items():
            rival = self._voices[name].rival
            for at, inputs in enumerate(out):
                if at != first:
                    inputs.append((rival, best_own))
                elif second is not None:
                    inputs.append((rival, second))
        return out


def _logit(inputs: Inputs) -> float:
    z = 0.0
    for weight, x in inputs:
        z += weight.value * x
    return z
