"""When a stint is worth starting, when its copies meet, and what they may come to by then."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hadar_cli.core.estimates.gangs import shares_of
from hadar_cli.core.estimates.suitability import Suitability
from hadar_cli.core.estimates.throughput import Rates
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.state import RunState
from hadar_cli.engine.meetings import Meetings
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import CopyOrder
from hadar_cli.engine.side_tasks import SideTasks

LEAST_STINT_S = 0.5
# More steps than devices should come to, in case they are faster than thought: of a job that is
# forked, others could have done them.
_HEADROOM, _HEADROOM_ALONE = 1.5, 3.0


@dataclass(frozen=True, slots=True)
class Starts:
    """Judges stints by what is known of jobs and devices now; starts nothing itself."""

    slot_s: float
    forks: bool
    now: Callable[[], float]
    state: RunState
    held: Occupancy
    meetings: Meetings
    side_tasks: SideTasks
    rates: Rates
    suitability: Suitability

    def must_wait(self, stint: Stint, ends_at: float) -> bool:
        """Whether the job's copies are about to meet, or are being merged, so that one more could
        not join them."""
        job = self.state.jobs[stint.job]
        if not (job.takes_copies(self.now()) and self.room(stint.job)):
            return False  # called off or planned elsewhere: the device goes on with what comes next
        if job.ready and stint.job in self.held.merging:
            return True
        if not job.ready or not self.held.awaited(job):
            return False
        if not self.forks or any(copy.follows in job.active for copy in job.active.values()):
            return True  # an adopted copy may be under way although nobody forks the job
        due = self.meetings.due(stint.job)
        if due is None or due > ends_at - LEAST_STINT_S:
            return False
        return not self.is_worthwhile(stint, due - self.now())

    def is_worthwhile(self, stint: Stint, left: float) -> bool:
        """Whether there is work for it, and time for more than its start: a step at least, or else
        the others would wait for it."""
        is_warm = self.held.is_warm(stint.device, stint.job)
        rate = self.rates.gang(stint.job, stint.devices)
        needed = max(LEAST_STINT_S, 1 / rate if rate else 0.0)
        needed += 0.0 if is_warm else self.held.start_cost_s
        job = self.state.jobs[stint.job]
        is_open = bool(job.ready) and job.takes_copies(self.now()) and self.room(stint.job) > 0
        may_start = is_open and self.suitability.allows(stint.job, stint.devices)
        return may_start and left > min(needed, self.slot_s / 2)

    def room(self, number: int) -> int:
        """How many copies more its mix lets the job have: lists of devices are older than that."""
        job = self.state.jobs[number]
        most = 1 if job.job.mode == "alone" else job.job.fork
        if most is None or not self.forks:
            return sys.maxsize
        return max(0, most - len(job.active.keys() - self.held.late))

    def fastest(self, job: int, stints: Sequence[Stint]) -> Sequence[Stint]:
        """Those for which there is room, the fastest first: the last free steps are its own."""
        if len(stints) < 2:
            return stints
        by_rate = sorted(stints, key=lambda stint: -self.rates.gang(job, stint.devices))
        return by_rate[: self.room(job)]

    def meet(self, job: int, stints: Sequence[Stint], ends_at: float) -> float:
        """When these copies of a job hand in: with those under way, or when it pays to merge."""
        now, due = self.now(), self.meetings.due(job)
        if due is not None and self.held.awaited(self.state.jobs[job]):
            return due
        is_warm = all(self.held.is_warm(stint.device, job) for stint in stints)
        begins = now if is_warm else min(now + self.held.start_cost_s, ends_at)
        slowest = min(self.rates.gang(job, stint.devices) for stint in stints)
        copies = len(stints) if self.side_tasks.stays(self.state.jobs[job]) else 1
        return self.meetings.call(job, begins, ends_at, slowest, copies)

    def within(self, stint: Stint, seconds: float) -> Stint:
        """What a copy may come to by then: steps that it only held would be missed elsewhere."""
        if not math.isfinite(seconds):
            return stint
        headroom = _HEADROOM if self.forks else _HEADROOM_ALONE
        fits = int(headroom * seconds * self.rates.gang(stint.job, stint.devices)) + 1
        return replace(stint, steps=fits) if fits < stint.steps else stint

    def shared(self, order: CopyOrder) -> CopyOrder:
        """The order with what each of a gang's devices takes of a mini-batch, and with how many of
        these make an update, by what is known of both."""
        rates = [self.rates.rate(order.job.id, device) for device in order.gang]
        shares = shares_of(rates, order.job.shares) if rates else ()
        is_open = order.job.most_batches and order.num_copies == 1 and order.steps
        update = self.rates.update(order.job.id, order.devices) if is_open else None
        return replace(order, shares=shares, update=update) if shares or update else order

    def expected_steps(self, job: int, chosen: Sequence[Stint], left: float) -> list[int]:
        """What each of the job's copies, under way or about to start, will bring to the merge."""
        quotas = {stint.devices: stint.steps for stint in chosen}
        for copy in self.held.awaited(self.state.jobs[job]):
            quotas[copy.devices] = copy.quota
        rate = self.rates.gang
        return [min(quota, int(rate(job, d) * left) + 1) for d, quota in quotas.items()]
