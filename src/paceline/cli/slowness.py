"""Passes that take far longer than they are known to take here: why, in a line."""

from __future__ import annotations

from collections import deque
from statistics import median

from paceline.core.cost import Cost, Costs
from paceline.costing import NOISY
from paceline.lab.diagnosis import swapping, taken_cores, throttling
from paceline.lab.evidence import Evidence
from paceline.lab.gathering import Meter
from paceline.llm import LLM
from paceline.machine.hardware import containers, cores
from paceline.machine.hardware.files import Files
from paceline.machine.hardware.threads import logical_cores, physical_cores

TIMES = 3.0  # what is known: half of the passes took more
FEW = 8  # passes, of which nothing is said
LEAST = 0.005  # seconds of a pass: shorter ones are late for reasons that nobody can mend


class Slowness:
    """Watches the target's passes from now on; nothing of it is felt. Where it is not known what they cost,
    it has nothing to say."""

    def __init__(self, llm: LLM) -> None:
        self._passes: deque[tuple[int, int, float]] = deque(maxlen=256)
        self._known: Cost | None = None
        self._costs: Costs | None = getattr(llm.policy, "costs", None)
        costs = self._costs
        if costs is None or llm.target.on_pass is not None or costs.target.seconds(1, 1) < LEAST:
            return
        # As it was: the policy's own gets used to a slow machine.
        self._known = Cost.read(costs.target.as_dict())
        self._threads = llm.target.settings["threads"]
        self._allowed, self._limits = cores.allowed_here() or frozenset(), containers.read(Files())
        self._before = Meter.read(self._allowed, self._limits)
        llm.target.on_pass = lambda *seen: self._passes.append(seen)

    def said(self) -> str:
        """What took so long, and what to do; "" where passes take what they should."""
        if self._known is None or len(self._passes) < FEW:
            return ""
        times = median(seconds / self._known.seconds(rows, depth) for rows, depth, seconds in self._passes)
        if times < TIMES and self._known.noise < NOISY:
            return ""
        evidence = Evidence(
            threads=self._threads,
            physical=physical_cores(),
            logical=logical_cores(),
            **Meter.read(self._allowed, self._limits).since(self._before),
        )
        cause = next((one for judge in (throttling, taken_cores, swapping) for one in judge(evidence)), None)
        if cause is None and times < TIMES:
            return ""
        assert self._costs is not None
        self._costs.usual = False  # nothing of such a run is for the next one
        begun = (
            f"passes took {times:.1f} times what they are known to take here"
            if times >= TIMES
            else "the machine was busy while it was measured what passes cost"
        )
        if cause is None:
            return f"{begun}, and it is not seen why; paceline doctor --again measures that anew"
        return f"{begun}: {cause.evidence}; {cause.remedy}"
