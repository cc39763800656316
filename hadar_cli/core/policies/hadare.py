"""HadarE: every job forked over unequal devices, so that all of them end together.

The fluid optimum says how long each device should work for each job. A device takes those jobs
one after another: the one whose copy is already warm there first, then the shortest. Remaining
steps are split over the copies that are scheduled, not over all n as the paper prints it, and a
job is forked no further than ending together asks for: every copy costs bytes and some of what
the others learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hadar_cli.core.arrays import BoolArray, IntArray
from hadar_cli.core.estimates.fluid import FluidPlan, Matrix, Vector, forked_optimum
from hadar_cli.core.policies.pools import share_out
from hadar_cli.core.policies.port import ClusterView, JobView, Stint, register
from hadar_cli.core.policies.shared_steps import (
    helpful_gang,
    share_nodes,
    shares_to_its_end,
)

# Jobs × devices: beyond these, an optimum's own sparsity has to do, and equals go together.
_THINNED = 40
_SINGLE = 200
_TO_SPARE = 3  # stints of a device beyond its slot, should others have done its jobs


@register
@dataclass(frozen=True, slots=True)
class HadarE:
    """Fields: ``stickiness`` discounts a device where the job's copy would start cold."""

    name: ClassVar[str] = "hadare"
    forks: ClassVar[bool] = True
    stickiness: float = 0.02
    reluctance: float = 3.0  # times the start cost, to leave a job that a device is warm for
    slack: float = 0.003  # longer than the optimum, if that takes fewer copies
    crumb_s: float = 0.5  # shares shorter than this are not worth a copy
    headroom: float = 1.5  # quotas beyond what fits the slot, for devices faster than thought

    def plan(self, view: ClusterView) -> list[Stint]:
        """The optimum's stints; devices that it leaves idle take what nobody else has begun."""
        stints, ends_s = self._optimum(view)
        used, begun = {d for s in stints for d in s.devices}, {s.job for s in stints}
        idle = tuple(device for device in view.devices if device not in used)
        if not view.busy_s or not idle:
            return stints
        others = [job for job in view.jobs() if job.job.id not in begun]
        # No more of it than they can do by the time when all would be done without them.
        seconds = min(view.seconds, ends_s / self.headroom)
        rest = replace(view, devices=idle, seconds=seconds, busy_s={}, jobs=lambda: others)
        return stints + self._optimum(rest)[0]

    def _optimum(self, view: ClusterView) -> tuple[list[Stint], float]:
        """Stints with which all devices, the busy ones too, end together; and after how long."""
        jobs = _startable(view)
        if not jobs:
            return [], view.seconds
        devices, busy_s = view.devices, np.zeros(len(view.devices))
        if len(jobs) * len(view.cluster) <= _SINGLE:  # others will have time for these jobs, too
            devices = (*devices, *view.busy_s)
            busy_s = np.append(busy_s, list(view.busy_s.values()))
        rates = _rates_worth_using(view, jobs, devices)
        warm = _warm(view, jobs, devices)
        if rates.size > _SINGLE:
            seconds = self._share_out_pools(jobs, rates, warm)
        else:
            seconds = self._share_out(jobs, rates, warm, busy_s, view.start_cost_s)
        seconds = self._drop_crumbs(seconds, warm, view.start_cost_s)
        ends_s = float((busy_s + seconds.sum(axis=0)).max())
        is_alone = (seconds > 0).sum(axis=1) == (1 if _is_crowded(view) else 0)
        is_alone |= [_has_no_company(view, job) for job in jobs]
        gangs = _company(view, jobs, seconds, rates)
        _keep_solo(seconds, jobs, rates)
        quotas = _whole_steps(seconds * rates, _totals(jobs, is_alone))
        length = np.array([job.remaining_steps for job in jobs]) / rates.sum(axis=1)
        stints = []
        for d, device in enumerate(view.devices):  # the busy ones ask again when they are free
            mine = np.flatnonzero(quotas[:, d])
            order = mine[np.lexsort((mine, length[mine], ~warm[mine, d]))]
            for j in order[: self._enough(quotas[order, d] / rates[order, d], view.seconds)]:
                job, gang = jobs[j].job.id, gangs.get(int(j), ())
                rate = view.rates.gang(job, gang) if gang else rates[j, d]
                fits = math.ceil(rate * view.seconds * self.headroom)
                steps = int(min(quotas[j, d], max(1, fits)))
                stints.append(Stint(job, device, steps, gang))
        return share_nodes(stints, jobs, view.cluster, view.rates), ends_s

    def _enough(self, lasts_s: Vector, seconds: float) -> int:
        """How many of a device's stints it can come to within the slot, and some to spare."""
        return int(np.searchsorted(np.cumsum(lasts_s), self.headroom * seconds)) + _TO_SPARE

    def _share_out_pools(self, jobs: list[JobView], rates: Matrix, warm: BoolArray) -> Matrix:
        seconds = share_out(np.array([float(job.free_steps) for job in jobs]), rates, warm)
        return np.where(_has_room(jobs, seconds * rates, np.zeros_like(warm)), seconds, 0.0)

    def _share_out(
        self,
        jobs: list[JobView],
        rates: Matrix,
        warm: BoolArray,
        busy_s: Vector,
        start_cost_s: float,
    ) -> Matrix:
        """Seconds of each device for each job: nearly the optimum, with as few copies as it takes.

        Every cold copy takes its device's time to start, and counts for more where the device would
        leave a job that goes on: speeds are measured, and a plan that follows their every move
        spends its time with starting. The plan is tried without each share, the shortest first,
        which then is left out where that takes no longer.
        """
        steps = [job.free_steps for job in jobs]
        cost_s = start_cost_s * np.where(warm.any(axis=0), self.reluctance, 1.0)

        def solve(may: BoolArray) -> FluidPlan:
            starts_s = cost_s * (may & ~warm).sum(axis=0)
            return forked_optimum(steps, np.where(may, rates, 0.0), busy_s + starts_s)

        fluid = forked_optimum(steps, rates * np.where(warm, 1.0, 1.0 - self.stickiness), busy_s)
        may = (fluid.seconds > 0) | (warm & (rates > 0))
        may &= _has_room(jobs, fluid.seconds * rates, warm & (busy_s > 0))
        plan = solve(may)
        if rates.size > _THINNED:
            return plan.seconds
        limit_s = plan.makespan_s * (1.0 + self.slack)
        for j, d in sorted(np.argwhere(may).tolist(), key=lambda pair: plan.seconds[tuple(pair)]):
            if may[j].sum() > 1:
                may[j, d] = False
                thinner = solve(may)
                if thinner.makespan_s <= limit_s:
                    plan, limit_s = thinner, min(limit_s, thinner.makespan_s * (1.0 + self.slack))
                else:
                    may[j, d] = True
        return plan.seconds

    def _drop_crumbs(self, seconds: Matrix, warm: BoolArray, start_cost_s: float) -> Matrix:
        """Removes shares too short to pay for their start, unless a job has nothing longer."""
        floor = np.where(warm, self.crumb_s, self.crumb_s + start_cost_s)
        kept = np.where(seconds >= floor, seconds, 0.0)
        for j in np.flatnonzero(kept.sum(axis=1) == 0.0):
            longest = int(seconds[j].argmax())
            kept[j, longest] = max(seconds[j, longest], self.crumb_s)
        return kept


def _has_room(jobs: list[JobView], steps: Matrix, at_work: BoolArray) -> BoolArray:
    """Jobs × devices: where copies are at work or may start, the largest shares if not all may."""
    room = np.ones(steps.shape, dtype=np.bool_)
    for j, job in enumerate(jobs):
        if job.room is not None:
            by_share = np.lexsort((-steps[j], ~at_work[j]))
            room[j, by_share[np.count_nonzero(at_work[j]) + job.room :]] = False
    return room


def _keep_solo(seconds: Matrix, jobs: list[JobView], rates: Matrix) -> None:
    """A job in its solo phase keeps only the share in which it gets furthest, in place."""
    for j, job in enumerate(jobs):
        if job.solo_steps:
            best = int((seconds[j] * rates[j]).argmax())
            seconds[j, :best] = seconds[j, best + 1 :] = 0.0


def _company(
    view: ClusterView, jobs: list[JobView], seconds: Matrix, rates: Matrix
) -> dict[int, tuple[str, ...]]:
    """By row, the gangs of jobs in their solo phase: with devices that would idle otherwise."""
    reach = {device.name: device.reach for device in view.cluster}
    gangs: dict[int, tuple[str, ...]] = {}
    for j, job in enumerate(jobs):
        if not job.solo_steps or not job.may_share:
            continue
        best = int((seconds[j] * rates[j]).argmax())
        if best >= len(view.devices):
            continue  # it is busy: the job waits for it
        first = view.devices[best]
        others = [
            device
            for d, device in enumerate(view.devices)
            if d != best
            and reach.get(device) == reach.get(first)
            and not np.delete(seconds[:, d], j).any()
            and rates[j, d] > 0
        ]
        gang = helpful_gang(job, first, others, view.rates)
        if len(gang) > 1:
            gangs[j] = gang
            seconds[:, [view.devices.index(name) for name in gang[1:]]] = 0.0
    return gangs


def _rates_worth_using(view: ClusterView, jobs: list[JobView], devices: Sequence[str]) -> Matrix:
    """The jobs' rates; 0 where a copy would cost the others more than it brings."""
    rates = view.rates.matrix([j.job.id for j in jobs], devices)
    if any(job.too_dear for job in jobs):
        dear = np.array([[device in job.too_dear for device in devices] for job in jobs])
        spared = np.where(dear, 0.0, rates)
        # One that is all there is costs nobody anything.
        rates = np.where(spared.any(axis=1, keepdims=True), spared, rates)
    return rates


def _startable(view: ClusterView) -> list[JobView]:
    """Jobs that some of the devices could take on now."""
    jobs = view.jobs()
    if len(view.queue) == 1 == len(jobs) and shares_to_its_end(jobs[0], view.cluster, view.rates):
        jobs = [replace(jobs[0], solo_steps=jobs[0].remaining_steps)]
    may = [j for j in jobs if j.free_steps and j.room != 0]
    if not may or not view.devices:
        return []
    able = view.rates.matrix([j.job.id for j in may], view.devices).any(axis=1)
    return [may[j] for j in np.flatnonzero(able).tolist()]


def _warm(view: ClusterView, jobs: list[JobView], devices: Sequence[str]) -> BoolArray:
    """Jobs × devices: whether a copy of the job waits on the device."""
    warm = np.zeros((len(jobs), len(devices)), dtype=np.bool_)
    row = {job.job.id: j for j, job in enumerate(jobs)}
    for d, device in enumerate(devices):
        if (j := row.get(view.current.get(device, -1))) is not None:
            warm[j, d] = True
    return warm


def _is_crowded(view: ClusterView) -> bool:
    """Whether every device has a job of its own, so that none waits for a solo phase to end."""
    return 0 < len(view.cluster) <= len(view.queue)


def _has_no_company(view: ClusterView, job: JobView) -> bool:
    """Whether all devices but one cost it more than they bring: none waits for its solo phase."""
    if not job.too_dear:
        return False
    others = [device.name for device in view.cluster if device.name not in job.too_dear]
    return int(np.count_nonzero(view.rates.matrix([job.job.id], others))) == 1


def _totals(jobs: list[JobView], is_alone: BoolArray) -> IntArray:
    """Steps that each job may hand out: in its solo phase only those, unless it stays alone."""
    return np.array(
        [
            job.free_steps if alone or not job.solo_steps else min(job.free_steps, job.solo_steps)
            for job, alone in zip(jobs, is_alone.tolist(), strict=True)
        ]
    )


def _whole_steps(shares: Matrix, totals: IntArray) -> IntArray:
    """Shares as whole steps whose sum is exactly each job's total."""
    exact = shares * (totals / shares.sum(axis=1))[:, None]
    quotas: IntArray = np.floor(exact).astype(np.int64)
    by_fraction = np.argsort(np.argsort(quotas - exact, axis=1, kind="stable"), axis=1)
    quotas += by_fraction < (totals - quotas.sum(axis=1))[:, None]
    return quotas
