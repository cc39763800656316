"""A cluster that exists only on paper: an executor with a virtual clock behind the same port.

Copies take their start and sync costs, train at their true rate, and come back in order of time.
Weights are not simulated; ``NoWeights`` merges nothing and accepts everything.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from hadar_cli.core.estimates.gangs import seconds_of
from hadar_cli.core.model import MergeRules
from hadar_cli.core.reasons import Loss
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import (
    Consolidated,
    Contribution,
    CopyOrder,
    CopyResult,
    Failed,
    HandedIn,
    Merged,
    NodeBack,
    NodeGone,
    Report,
    Surveyed,
)
from hadar_cli.errors import HadarError


@dataclass(frozen=True, slots=True)
class Costs:
    """What a copy costs beside its steps."""

    start_s: float = 2.0  # of a copy that is not warm on its devices
    sync_s: float = 0.2  # handing in, merging and handing out
    first_start_s: float | None = None  # of a device's first copy, which imports; else ``start_s``


@dataclass(slots=True)
class _Copy:
    """A copy under way. ``coming`` is the number of the report that will end it."""

    order: CopyOrder
    began: float
    start_s: float
    rate: float
    coming: int = 0
    trained_at: float = 0.0
    left: StepSet = field(default_factory=StepSet)  # of its steps, when it hands in
    quota: int = field(init=False)

    def __post_init__(self) -> None:
        self.quota = len(self.order.steps)

    def steps_by(self, t: float) -> int:
        trained = self.rate * max(0.0, t - self.began - self.start_s)
        return min(self.quota, int(trained + 1e-9))


_Coming: TypeAlias = tuple[float, int, Report]  # when, and a number that no other report has


class SimulatedExecutor:
    """``rate`` is the truth about a gang's steps per second, which a scheduler may only guess.

    ``prolongs``: copies without a deadline run on from slot to slot, as schedulers of whole jobs
    assume; without it they hand in at every slot's end, as on real nodes. ``warm`` says which job's
    copy waits on which device from the beginning.
    """

    tick_s = math.inf

    def __init__(
        self,
        rate: Callable[[int, tuple[str, ...]], float],
        costs: Costs = Costs(),
        starts_at: float = 0.0,
        prolongs: bool = False,
        warm: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._rate, self._costs, self.prolongs = rate, costs, prolongs
        self._now = starts_at
        self._coming: list[_Coming] = []
        self._number = 0
        self._warm: dict[str, tuple[int, tuple[str, ...]]] = {
            device: (job, (device,)) for device, job in warm.items()
        }
        self._copies: dict[str, _Copy] = {}
        self._gone: set[str] = set()

    def now(self) -> float:
        return self._now

    def adopt(self, orders: Sequence[CopyOrder]) -> None:
        for order in orders:
            self._fail(self._now, order.attempt, Loss.NODE_FORGOT)

    def start(self, order: CopyOrder) -> None:
        if self._gone.intersection(order.devices):
            self._fail(self._now, order.attempt, Loss.NODE_GONE)
            return
        held = (order.job.id, order.devices)
        is_warm = all(self._warm.get(device) == held for device in order.devices)
        start_s = 0.0 if is_warm else self._start_s(order.devices)
        self._warm |= dict.fromkeys(order.devices, held)
        rate = self._rate(order.job.id, order.devices)
        if not rate:
            where = " + ".join(order.devices)
            raise HadarError(
                f"the policy gave job {order.job.name!r} to {where}, which cannot train it",
                fix="a policy leaves pairs alone whose rate is 0",
            )
        before = self._copies.get(order.follows)
        began = before.trained_at if before else self._now
        if before:  # as in the worker: it begins with what that one leaves undone
            order = replace(order, steps=order.steps | before.left)
        copy = self._copies[order.attempt] = _Copy(order, began, start_s, rate)
        self._hand_in_by(copy, self._now + order.seconds)

    def wait(self, until: float) -> list[Report]:
        while self._coming and self._coming[0][0] <= until:
            at, number, report = heapq.heappop(self._coming)
            if self._still_holds(at, number, report):
                self._now = max(self._now, at)
                return [report]
        if math.isinf(until):
            return []
        self._now = max(self._now, until)
        return self._progress()

    def aside(self, work: Callable[[], Merged]) -> Merged:
        return work()

    def recall(self, attempts: Sequence[str] | None = None) -> None:
        for attempt in list(self._copies) if attempts is None else attempts:
            if attempt in self._copies:
                self._hand_in_by(self._copies[attempt], self._now, recalled=True)

    def stop(self, grace_s: float) -> None:
        self._coming.clear()
        self._copies.clear()

    # -- faults ------------------------------------------------------------------------------

    def lose_device(self, device: str, at: float) -> None:
        """At that time the device and the copy on it are gone."""
        self._schedule(at, NodeGone((device,), "lost in the simulation"))

    def return_device(self, device: str, at: float) -> None:
        """From then on it can be used again, with nothing on it."""
        self._schedule(at, NodeBack((device,)))

    # -- details -----------------------------------------------------------------------------

    def _start_s(self, devices: tuple[str, ...]) -> float:
        first_s = self._costs.first_start_s
        is_first = first_s is not None and not self._warm.keys() >= set(devices)
        return first_s if first_s is not None and is_first else self._costs.start_s

    def _progress(self) -> list[Report]:
        """Copies without a deadline tell how far they are whenever someone looks."""
        if not self.prolongs:
            return []
        return [Surveyed({a: copy.steps_by(self._now) for a, copy in self._copies.items()})]

    def _hand_in_by(self, copy: _Copy, latest: float, recalled: bool = False) -> None:
        """Schedules the copy's return at its quota or at ``latest``, whichever comes first."""
        order, quota = copy.order, copy.quota
        steps = copy.steps_by(latest) if math.isfinite(latest) else quota
        if not recalled and math.isfinite(latest):
            # As in the worker: a long start still leaves time to train.
            least = int(copy.rate * 0.2 * order.seconds)
            steps = min(quota, max(steps, least, 1))
        train_s = steps / copy.rate
        sync_s = (
            self._costs.sync_s if order.returns_weights else 0.0
        )  # a side task brings no weights
        done = order.steps.first(steps)
        copy.left = order.steps - done
        result = CopyResult(
            steps=steps,
            slices=done.ranges,
            start_s=copy.start_s,
            train_s=train_s,
            save_s=sync_s,
            stopped="steps" if steps == quota else "deadline",
            members=self._members(order),
        )
        weights = order.attempt if order.returns_weights else None
        copy.trained_at = copy.began + copy.start_s + train_s
        ends = copy.trained_at + sync_s
        report = HandedIn(order.attempt, result, weights, copy.start_s == 0.0, True)
        at = max(self._now, min(ends, self._now + sync_s) if recalled else ends)
        copy.coming = self._schedule(at, report)

    def _members(self, order: CopyOrder) -> tuple[tuple[float, float], ...]:
        """What the members of a gang with unequal shares tell of themselves."""
        rates = [self._rate(order.job.id, (device,)) for device in order.gang if order.shares]
        return tuple((s, seconds_of(s, r)) for s, r in zip(order.shares, rates, strict=True))

    def _still_holds(self, at: float, number: int, report: Report) -> bool:
        """Whether the report was not overtaken by another end of its copy."""
        match report:
            case HandedIn():
                copy = self._copies.get(report.attempt)
                if copy is None or copy.coming != number:
                    return False
                del self._copies[report.attempt]
            case NodeGone():
                self._gone.update(report.devices)
                for attempt, copy in list(self._copies.items()):
                    if self._gone.intersection(copy.order.devices):
                        del self._copies[attempt]
                        self._fail(at, attempt, Loss.NODE_GONE, report.why)
            case NodeBack():
                self._gone.difference_update(report.devices)
                for device in report.devices:
                    self._warm.pop(device, None)
        return True

    def _fail(self, at: float, attempt: str, reason: Loss, why: str = "") -> None:
        self._schedule(at, Failed(attempt, reason, why or reason.text))

    def _schedule(self, at: float, report: Report) -> int:
        self._number += 1
        heapq.heappush(self._coming, (at, self._number, report))
        return self._number


class NoWeights:
    """A consolidator for copies without weights."""

    def consolidate(
        self, inputs: Sequence[Contribution], base: str | None, rules: MergeRules, warmth: float
    ) -> Consolidated:
        accepted = tuple(contribution.attempt for contribution in inputs)
        return Consolidated(accepted[-1], 0, accepted, ())
