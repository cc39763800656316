"""How long something will still take, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hadar_cli.core.estimates.throughput import CLASS_ERROR, INTERACTION_ERROR, NOISE, RateModel
from hadar_cli.core.state import RunState
from hadar_cli.report.format import brief

_SURE = 1.3  # standard deviations: four times out of five the truth lies within
UNSTEADY = 0.4  # relative spread of a pace of which nothing has been seen; counts as one window
_VAGUE = 0.4  # errors beyond this are told as a range
_ROUND_TO_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time that is probably right within a factor of exp(±error)."""

    seconds: float
    error: float

    @property
    def low(self) -> float:
        return self.seconds * math.exp(-_SURE * self.error)

    @property
    def high(self) -> float:
        return self.seconds * math.exp(_SURE * self.error)

    def __add__(self, other: Estimate) -> Estimate:
        """One after the other, each wrong in its own way."""
        total = self.seconds + other.seconds
        within = math.hypot(self.seconds * self.error, other.seconds * other.error)
        return Estimate(total, within / total if 0 < total < math.inf else 0.0)

    def __str__(self) -> str:
        """`2m10s ± 15s`, or `1m to 5m` where little is known."""
        if not math.isfinite(self.seconds):
            return brief(self.seconds)
        within = (self.high - self.low) / 2
        fine = max((s for s in _ROUND_TO_S if s <= within / 2), default=1)
        if _SURE * self.error > _VAGUE and within > 2:
            return f"{brief(_to(self.low, fine))} to {brief(_to(self.high, fine))}"
        return f"{brief(_to(self.seconds, fine))} ± {brief(max(fine, _to(within, fine)))}"


def _to(seconds: float, fine: int) -> int:
    """Rounded, but never to nothing: what is left is left."""
    return max(1, fine * round(seconds / fine))


def extrapolate(left: float, paces: Sequence[float], window_s: float) -> Estimate | None:
    """The time for what is left, at the mean of the paces seen in windows of time so far.

    The fewer windows and the more they differ, the wider; None where nothing has moved.
    """
    mean = math.fsum(paces) / len(paces) if paces else 0.0
    if not mean > 0:
        return None
    seconds = left / mean
    seen = math.fsum((pace / mean - 1) ** 2 for pace in paces)
    spread = math.sqrt((seen + UNSTEADY**2) / len(paces))
    ahead = max(1.0, seconds / window_s)
    return Estimate(seconds, spread * math.sqrt(1 / len(paces) + 1 / ahead))


class Workload:
    """Steps of any job as seconds of the whole cluster, by the rates known now."""

    def __init__(self, state: RunState, rates: RateModel, devices: Sequence[str]) -> None:
        alive = [device not in state.lost_devices for device in devices]
        self._rates = rates
        self._alive = [device for device in devices if device not in state.lost_devices]
        speeds = rates.matrix(list(state.jobs))[:, alive].sum(axis=1)
        self._speeds = dict(zip(state.jobs, map(float, speeds), strict=True))

    def seconds(self, job: int, steps: float) -> float:
        """How long the whole cluster would need for these steps."""
        return steps / self._speeds[job] if self._speeds[job] else math.inf

    def left(self, steps: Mapping[int, int]) -> Estimate:
        """How long all these steps need without any overhead; widened where rates are guesses."""
        needed = {job: self.seconds(job, left) for job, left in steps.items() if left}
        total = math.fsum(needed.values())
        if not 0 < total < math.inf:
            return Estimate(total, 0.0)
        known, guessed = [0.0], [0.0]
        for job, seconds in needed.items():
            (known if self._is_measured(job) else guessed).append(seconds * self._rate_error(job))
        # Where nothing is measured, the formula may be off for all jobs alike.
        return Estimate(total, math.hypot(*known, math.fsum(guessed)) / total)

    def _is_measured(self, job: int) -> bool:
        return any(self._rates.measured(job, device) is not None for device in self._alive)

    def _rate_error(self, job: int) -> float:
        """Of the job's rates on all devices together, which err alike: they are of one job."""
        measured = {d for d in self._alive if self._rates.measured(job, d) is not None}
        unseen = INTERACTION_ERROR if measured else CLASS_ERROR
        errors = (
            self._rates.rate(job, d) * (NOISE if d in measured else unseen) for d in self._alive
        )
        return math.fsum(errors) / self._speeds[job]
