"""A cluster that exists only on paper: an executor with a virtual clock behind the same port.

Copies take their start and sync costs, train at their true rate, and come back in order of time.
Weights are not simulated; ``NoWeights`` merges nothing and accepts everything.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hadar_cli.app.ports import (
    Consolidated,
    Contribution,
    CopyOrder,
    CopyResult,
    Failed,
    HandedIn,
    NodeGone,
    Report,
)
from hadar_cli.core.events import Event
from hadar_cli.core.model import MergeRules


@dataclass(frozen=True, slots=True)
class Costs:
    """What a copy costs beside its steps."""

    start_s: float = 2.0  # of a copy that is not warm on its device
    sync_s: float = 0.2  # handing in, merging and handing out


@dataclass(order=True, slots=True)
class _Coming:
    at: float
    number: int
    report: Report = field(compare=False)


class SimulatedExecutor:
    """``rate`` is the truth about steps per second, which the scheduler may only guess at."""

    def __init__(
        self,
        rate: Callable[[int, str], float],
        costs: Costs = Costs(),
        starts_at: float = 0.0,
    ) -> None:
        self._rate, self._costs = rate, costs
        self._now = starts_at
        self._coming: list[_Coming] = []
        self._number = 0
        self._warm: dict[str, int] = {}
        self._orders: dict[str, tuple[float, CopyOrder]] = {}
        self._gone: set[str] = set()

    def now(self) -> float:
        return self._now

    def adopt(self, orders: Sequence[CopyOrder]) -> None:
        for order in orders:
            why = "a simulation ends with its head"
            self._schedule(self._now, Failed(order.attempt, why, node_fault=True))

    def start(self, order: CopyOrder) -> None:
        if order.device in self._gone:
            self._schedule(self._now, Failed(order.attempt, "its node is gone"))
            return
        self._orders[order.attempt] = (self._now, order)
        self._hand_in_at(order, self._now + order.seconds)

    def wait(self, until: float) -> list[Report]:
        reports: list[Report] = []
        while self._coming and self._coming[0].at <= until and not reports:
            coming = heapq.heappop(self._coming)
            if self._still_expected(coming.report):
                self._now = max(self._now, coming.at)
                reports.append(coming.report)
        if not reports:
            self._now = max(self._now, until)
        return reports

    def recall(self) -> None:
        for began, order in list(self._orders.values()):
            self._coming = [c for c in self._coming if not _is_about(c.report, order.attempt)]
            heapq.heapify(self._coming)
            self._hand_in_at(order, self._now, began)

    def stop(self, grace_s: float) -> None:
        self._coming.clear()
        self._orders.clear()

    # -- faults ------------------------------------------------------------------------------

    def lose_device(self, device: str, at: float) -> None:
        """At that time the device and the copy on it are gone for good."""
        self._schedule(at, NodeGone((device,), "lost in the simulation"))

    # -- details -----------------------------------------------------------------------------

    def _hand_in_at(self, order: CopyOrder, latest: float, began: float | None = None) -> None:
        """Schedules the copy's return at its quota or at ``latest``, whichever comes first."""
        began = self._now if began is None else began
        is_warm = self._warm.get(order.device) == order.job.id
        start_s = 0.0 if is_warm else self._costs.start_s
        self._warm[order.device] = order.job.id
        rate = self._rate(order.job.id, order.device)
        least = 0.2 * order.seconds  # as in the worker: a long start still leaves time to train
        seconds = max(latest - began - start_s, least)
        steps = min(len(order.steps), max(int(rate * seconds), 1 if order.steps else 0))
        result = CopyResult(
            steps=steps,
            slices=order.steps.first(steps).ranges,
            start_s=start_s,
            train_s=steps / rate,
            save_s=self._costs.sync_s,
            stopped="steps" if steps == len(order.steps) else "deadline",
            quality={"simulated": float(order.global_step)} if order.evaluate else None,
        )
        weights = order.attempt if order.hand_in else None
        ends = began + start_s + result.train_s + self._costs.sync_s
        self._schedule(
            max(ends, self._now), HandedIn(order.attempt, result, weights, is_warm, True)
        )

    def _still_expected(self, report: Report) -> bool:
        match report:
            case HandedIn() | Failed():
                held = self._orders.pop(report.attempt, None)
                return isinstance(report, Failed) or held is not None
            case NodeGone():
                self._gone.update(report.devices)
                for attempt, (_, order) in list(self._orders.items()):
                    if order.device in report.devices:
                        del self._orders[attempt]
                        self._schedule(self._now, Failed(attempt, report.why))
        return True

    def _schedule(self, at: float, report: Report) -> None:
        self._number += 1
        heapq.heappush(self._coming, _Coming(at, self._number, report))


def _is_about(report: Report, attempt: str) -> bool:
    return isinstance(report, (HandedIn, Failed)) and report.attempt == attempt


class NoWeights:
    """A consolidator for copies without weights."""

    def consolidate(
        self, inputs: Sequence[Contribution], base: str | None, rules: MergeRules
    ) -> Consolidated:
        accepted = tuple(contribution.attempt for contribution in inputs)
        return Consolidated(accepted[-1], 0, accepted, ())


class MemoryJournal:
    """A journal for runs that nobody will resume."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)
