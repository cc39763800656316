"""When the copies of a job meet to be merged: not once in a slot, but as often as it pays.

Copies that train apart for long lose touch, so they hand in together every few seconds, get the
merged weights and go on. How often is a matter of cost: from the last step before a merge to the
first one after it, a device waits for weights to be saved, fetched, merged, sent and loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hadar_cli.core.forking import forks_that_pay
from hadar_cli.core.model import EVERY_SLOT, MergeRules

_AFFORDABLE = 0.05  # share of the time that merging may take
_UNMEASURED = 0.25  # of the slot: the interval until a merge has been timed
_LEAST_STEPS = 1.0  # of the slowest copy between two merges
_PATIENCE_S = 5.0  # with copies that are late, beyond what a merge usually takes
_NEWEST = 0.5  # weight of the newest cost among all so far


@dataclass(slots=True)
class Meetings:
    """The next meeting of every job whose copies are under way."""

    rules: MergeRules
    slot_s: float
    _due: dict[int, float] = field(default_factory=dict)
    _next: dict[int, float] = field(default_factory=dict)
    _cost_s: dict[int, float] = field(default_factory=dict)

    def due(self, job: int) -> float | None:
        """When the copies that are under way will hand in; None if nobody called a meeting."""
        return self._due.get(job)

    def call(self, job: int, begins: float, ends: float, slowest: float, copies: int) -> float:
        """Calls the next meeting of copies that start to train now; the slot's end is the last.

        ``slowest`` is the lowest rate among them. A job with one copy has nobody to meet.
        """
        left = ends - begins
        interval = self._interval(job, slowest) if copies > 1 else left
        meetings = max(1, int(left / interval)) if interval > 0 else 1
        self._due[job] = begins + left / meetings
        return self._due[job]

    def expect(self, job: int, due: float) -> None:
        """Copies are under way already, and will hand in by then; perhaps again after the next."""
        (self._next if job in self._due else self._due)[job] = due

    def _interval(self, job: int, slowest: float) -> float:
        every = self.rules.every_s
        if every == EVERY_SLOT:
            return self.slot_s
        if isinstance(every, (int, float)):
            return float(every)
        cost_s = self._cost_s.get(job, _UNMEASURED * _AFFORDABLE * self.slot_s)
        return max(cost_s / _AFFORDABLE, _LEAST_STEPS / slowest if slowest else 0.0)

    def copies_that_pay(self, job: int, rates: Sequence[float]) -> int | None:
        """How many copies are worth their merges; unknown until a merge has been timed."""
        # Three digits are all that is known of it, and let the answer be looked up next time.
        cost_s = float(f"{self._cost_s.get(job, 0.0):.3g}")
        if not cost_s or not any(rates):
            return None
        interval = float(f"{min(self.slot_s, self._interval(job, max(rates))):.3g}")
        # `merge: paper` counts steps as if they added up, and forks accordingly.
        rule = "linear" if self.rules.lr_scale == "none" else self.rules.lr_scale
        return len(forks_that_pay(tuple(rates), (cost_s,) * len(rates), interval, rule))

    def overdue_at(self, job: int, start_cost_s: float) -> float:
        """From when on nobody waits any more for the copies that are still missing."""
        patience_s = _PATIENCE_S + 3 * self._cost_s.get(job, 0.0) + 2 * start_cost_s
        return self._due.get(job, 0.0) + patience_s

    def close(self, job: int) -> None:
        """The meeting was held; there may be one after it already."""
        self._due.pop(job, None)
        if job in self._next:
            self._due[job] = self._next.pop(job)

    def learn(self, job: int, cost_s: float) -> None:
        """What a merge cost, from the last step before it to the first one after it."""
        before = self._cost_s.get(job, cost_s)
        self._cost_s[job] = before + _NEWEST * (max(0.0, cost_s) - before)
