"""When the copies of a job meet to be merged: not once in a slot, but as often as it pays.

Copies that train apart for long lose touch, so they hand in together every few seconds, get the
merged weights and go on. How often is a matter of cost: from the last step before a merge to the
first one after it, a device waits for weights to be saved, fetched, merged, sent and loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hadar_cli.core.estimates.forking import forks_that_pay
from hadar_cli.core.events import CopyStarted
from hadar_cli.core.model import EVERY_SLOT, MergeRules
from hadar_cli.engine.ports import Moving

_AFFORDABLE = 0.05  # share of the time that merging may take
_UNMEASURED = 0.25  # of the slot: the interval until a merge has been timed
_LEAST_STEPS = 1.0  # of the slowest copy between two merges
_PATIENCE_S = 5.0  # with copies that are late, beyond what a merge usually takes
_ALIKE = 1.5  # times the least cost: what differs by less is no matter of the device
_UNMEASURED_HAND_IN_S = 120.0
_LONGEST_HAND_IN_S = 600.0
_FADES = 0.97  # of a dear device's cost, at every merge without it, until it is tried again
_NEWEST = 0.5  # weight of the newest cost among all so far
_ABOUT_AS_FAST = 0.85  # of a device's speed: another one that may do its work
_SLOW_LINK, _FASTER_LINK = 20e6, 4.0  # bytes a second; how many times as fast a better one is
_MOVES_S = 2.0  # that a word of moving files stands for, at the most


@dataclass(slots=True)
class _Move:
    """What is on its way to or from a copy: how long it has moved, and how much is left of it."""

    last_at: float
    moved_s: float = 0.0
    began_at: float = 0.0  # of its result: from here on the link's rate is known
    began_with: int = 0
    done: int = 0
    total: int = 0


@dataclass(slots=True)
class Meetings:
    """The next meeting of every job whose copies are under way."""

    rules: MergeRules
    slot_s: float
    _due: dict[int, float] = field(default_factory=dict)
    _next: dict[int, float] = field(default_factory=dict)
    _cost_s: dict[int, float] = field(default_factory=dict)
    _step_s: dict[int, float] = field(default_factory=dict)  # of the slowest copy under way
    _dear: dict[int, frozenset[str]] = field(default_factory=dict)
    _device_cost_s: dict[int, dict[str, float]] = field(default_factory=dict)
    _moves: dict[str, _Move] = field(default_factory=dict)  # by attempt under way
    #: by device: bytes a second from its node, where that was measured; others are near
    links: dict[str, float] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)  # of a job's weights

    def due(self, job: int) -> float | None:
        """When the copies that are under way will hand in; None if nobody called a meeting."""
        return self._due.get(job)

    def call(self, job: int, begins: float, ends: float, slowest: float, copies: int) -> float:
        """Calls the next meeting of copies that start to train now; the slot's end is the last.

        ``slowest`` is the lowest rate among them. A job with one copy has nobody to meet.
        """
        left = ends - begins
        self._step_s[job] = 1 / slowest if slowest else 0.0
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

    def copies_that_pay(
        self,
        job: int,
        rates: Sequence[float],
        devices: Sequence[str] = (),
        left: float = float("inf"),
    ) -> int | None:
        """How many copies are worth their merges with so many steps left; unknown until a merge
        has been timed."""
        pay = self._that_pay(job, rates, devices, left)
        return None if pay is None else len(pay)

    def too_dear(
        self,
        job: int,
        rates: Sequence[float],
        devices: Sequence[str],
        left: float = float("inf"),
    ) -> dict[str, float]:
        """Devices that cost a merge more than their copies bring to it with so many steps left, and
        what they cost: a slow link, mostly. Those that are merely slow are not among them."""
        costs = self._costs_at(job, devices)
        pay = self._that_pay(job, rates, devices, left) if self.costs_differ(job) else None
        if not pay:
            return {}
        most = max(*(costs[i] for i in pay), _AFFORDABLE * self.slot_s)
        others = ((i, d) for i, d in enumerate(devices) if i not in pay and rates[i])
        return {device: costs[i] for i, device in others if costs[i] > most}

    def _that_pay(
        self,
        job: int,
        rates: Sequence[float],
        devices: Sequence[str],
        left: float = float("inf"),
    ) -> tuple[int, ...] | None:
        if not self._cost_s.get(job) or not any(rates):
            return None
        interval = _to_three_digits(min(self.slot_s, self._interval(job, max(rates))))
        # `merge: paper` counts steps as if they added up, and forks accordingly.
        rule = "linear" if self.rules.lr_scale == "none" else self.rules.lr_scale
        costs = self._costs_at(job, devices or [""] * len(rates))
        is_much = left / sum(rates) > interval  # then it does not matter how much
        left = float("inf") if is_much else max(1.0, float(f"{left:.2g}"))
        return forks_that_pay(tuple(rates), costs, interval, rule, left)

    def _costs_at(self, job: int, devices: Sequence[str]) -> tuple[float, ...]:
        """What a merge costs each device; the usual, where its own is not known or alike."""
        usual, own = self._cost_s.get(job, 0.0), self._device_cost_s.get(job, {})
        if not self.costs_differ(job):
            return (_to_three_digits(usual),) * len(devices)
        own = {**self._expected_costs(job), **own}
        return tuple(_to_three_digits(own.get(device, usual)) for device in devices)

    def costs_differ(self, job: int) -> bool:
        """Whether a merge costs some devices so much more than others that it matters."""
        own = {**self._expected_costs(job), **self._device_cost_s.get(job, {})}
        if not own:
            return False
        least = min(self._cost_s.get(job, 0.0), *own.values())
        return max(own.values()) > max(_ALIKE * least, _AFFORDABLE * self.slot_s)

    def _expected_costs(self, job: int) -> dict[str, float]:
        """What devices that never handed in will cost a merge: the way there and back of weights
        as large as the job's, at the rate of their links."""
        size = self._bytes.get(job, 0)
        return {device: 2 * size / rate for device, rate in self.links.items()} if size else {}

    def far(self, rates: Sequence[float], devices: Sequence[str]) -> list[str]:
        """Devices to which one about as fast is to be preferred that is much nearer, as long as
        nobody knows how large a job's weights are."""
        links = [self.links.get(device, float("inf")) for device in devices]
        return [
            device
            for i, device in enumerate(devices)
            if links[i] < _SLOW_LINK
            and any(
                rates[j] >= _ABOUT_AS_FAST * rates[i] and links[j] >= _FASTER_LINK * links[i]
                for j in range(len(devices))
            )
        ]

    def overdue_at(self, job: int, start_cost_s: float) -> float:
        """From when on nobody waits any more for the copies that are still missing."""
        patience_s = _PATIENCE_S + 3 * self._cost_s.get(job, 0.0) + 2 * start_cost_s
        patience_s += self._step_s.get(job, 0.0)
        return self._due.get(job, 0.0) + patience_s

    def moved(self, report: Moving, now: float) -> None:
        """Something is on its way to or from the copy: its clock stands still meanwhile."""
        move = self._moves.setdefault(report.attempt, _Move(now - _MOVES_S))
        move.moved_s += min(now - move.last_at, _MOVES_S)
        move.last_at = now
        if report.is_result and report.done:
            if not move.began_at:
                move.began_at, move.began_with = now, report.done
            move.done, move.total = report.done, report.total

    @property
    def is_anything_moving(self) -> bool:
        return bool(self._moves)

    def moved_s(self, attempt: str) -> float:
        """How long files have moved for the copy."""
        move = self._moves.get(attempt)
        return move.moved_s if move else 0.0

    def arriving_s(self, attempt: str) -> float:
        """How long its result has been arriving: none where one word told of all of it."""
        move = self._moves.get(attempt)
        return move.last_at - move.began_at if move and move.began_at else 0.0

    def left_s(self, attempt: str) -> float | None:
        """How long the rest of its result will take to arrive, where that can be told."""
        move = self._moves.get(attempt)
        if not move or move.done <= move.began_with:
            return None
        per_byte_s = (move.last_at - move.began_at) / (move.done - move.began_with)
        return max(0, move.total - move.done) * per_byte_s

    def coming_s(self, copy: CopyStarted, now: float) -> float | None:
        """How long a copy will take to arrive: by what moves, or by what its order took to reach it
        before it began, as its weights are as large."""
        left_s, sent_s = self.left_s(copy.attempt), self.moved_s(copy.attempt)
        if left_s is not None or sent_s < _PATIENCE_S:
            return left_s
        ends = self._due.get(copy.job, now) + sent_s
        return max(0.0, ends - now) + sent_s

    def ended(self, attempt: str) -> None:
        self._moves.pop(attempt, None)

    def hand_in_s(self, job: int, device: str, rate: float) -> float:
        """How long a copy may take at the most that is asked to hand in: for the step it is in,
        its save, the way of its weights."""
        cost_s = self._device_cost_s.get(job, {}).get(device, self._cost_s.get(job))
        if cost_s is None or rate <= 0:
            return _UNMEASURED_HAND_IN_S
        return min(_LONGEST_HAND_IN_S, 3 * (_PATIENCE_S + cost_s + 1 / rate))

    def close(self, job: int) -> None:
        """The meeting was held; there may be one after it already."""
        self._due.pop(job, None)
        if job in self._next:
            self._due[job] = self._next.pop(job)

    def learn(self, job: int, cost_s: float, size: int = 0) -> None:
        """What a merge cost, from the last step before it to the first one after it, and how large
        the merged weights are."""
        self._bytes[job] = size or self._bytes.get(job, 0)
        before = self._cost_s.get(job, cost_s)
        self._cost_s[job] = before + _NEWEST * (max(0.0, cost_s) - before)
        own = self._device_cost_s.get(job, {})
        for device, known in own.items():
            if known > _ALIKE * self._cost_s[job]:
                own[device] = known * _FADES  # its link may have become better
        for device, expected in self._expected_costs(job).items():
            if device not in own and expected > _ALIKE * self._cost_s[job]:
                self.links[device] /= _FADES

    def newly_dear(self, job: int, dear: Mapping[str, float]) -> list[tuple[str, float]]:
        """Those that were not so the last time."""
        before = self._dear.get(job, frozenset())
        self._dear[job] = frozenset(dear)
        return [(device, cost_s) for device, cost_s in dear.items() if device not in before]

    def learn_device(self, job: int, device: str, cost_s: float) -> None:
        """What handing in cost one device, whether or not it came in time."""
        own = self._device_cost_s.setdefault(job, {})
        before = own.get(device, cost_s)
        own[device] = before + _NEWEST * (max(0.0, cost_s) - before)


def _to_three_digits(seconds: float) -> float:
    """All that is known of it, and lets an answer be looked up next time."""
    return float(f"{seconds:.3g}")
