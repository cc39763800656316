"""HadarE: every job forked over unequal devices, so that all of them end together.

The fluid optimum says how long each device should work for each job. A device takes those jobs
one after another: the one whose copy is already warm there first, then the shortest. Remaining
steps are split over the copies that are scheduled, not over all n as the paper prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hadar_cli.core.fluid import Matrix, forked_optimum
from hadar_cli.core.policies.registry import ClusterView, JobView, Stint, register


@register
@dataclass(frozen=True, slots=True)
class HadarE:
    """Fields: ``stickiness`` discounts a device where the job's copy would start cold."""

    name: ClassVar[str] = "hadare"
    forks: ClassVar[bool] = True
    stickiness: float = 0.05
    crumb_s: float = 0.5  # shares shorter than this are not worth a copy
    headroom: float = 1.5  # quotas beyond what fits the slot, for devices faster than thought

    def plan(self, view: ClusterView) -> list[Stint]:
        jobs, rates = _startable(view)
        if not jobs:
            return []
        warm = np.array([[view.current.get(d) == j.job.id for d in view.devices] for j in jobs])
        steps = [job.free_steps for job in jobs]
        optimum = forked_optimum(steps, rates * np.where(warm, 1.0, 1.0 - self.stickiness))
        seconds = self._drop_crumbs(optimum.seconds, warm, view.start_cost_s)
        self._keep_solo(seconds, jobs)
        quotas = _whole_steps(seconds * rates, steps, [job.solo_steps for job in jobs])
        fits = np.ceil(rates * view.seconds * self.headroom).astype(int)
        return [
            Stint(jobs[j].job.id, device, int(min(quotas[j, d], max(1, fits[j, d]))))
            for d, device in enumerate(view.devices)
            for j in sorted(
                np.flatnonzero(quotas[:, d]),
                key=lambda j: (not warm[j, d], jobs[j].remaining_steps / rates[j].sum(), j),
            )
        ]

    def _drop_crumbs(self, seconds: Matrix, warm: np.ndarray, start_cost_s: float) -> Matrix:
        """Removes shares too short to pay for their start, unless a job has nothing longer."""
        floor = np.where(warm, self.crumb_s, self.crumb_s + start_cost_s)
        kept = np.where(seconds >= floor, seconds, 0.0)
        for j in np.flatnonzero(kept.sum(axis=1) == 0.0):
            longest = int(seconds[j].argmax())
            kept[j, longest] = max(seconds[j, longest], self.crumb_s)
        return kept

    def _keep_solo(self, seconds: Matrix, jobs: list[JobView]) -> None:
        """A job in its solo phase keeps only its longest share, in place."""
        for j, job in enumerate(jobs):
            if job.solo_steps:
                best = int(seconds[j].argmax())
                seconds[j, :best] = seconds[j, best + 1 :] = 0.0


def _startable(view: ClusterView) -> tuple[list[JobView], Matrix]:
    """Jobs that some of the devices could take on now, and their rates there."""
    may = [j for j in view.jobs() if j.free_steps and not (j.solo_steps and j.copies_active)]
    rows = [[view.rates.rate(j.job.id, d) for d in view.devices] for j in may]
    able = [any(row) for row in rows]
    jobs = [job for job, runs in zip(may, able, strict=True) if runs]
    return jobs, np.array([row for row, runs in zip(rows, able, strict=True) if runs])


def _whole_steps(shares: Matrix, steps: list[int], solo: list[int]) -> np.ndarray:
    """Shares as whole steps whose sum is exactly what each job has left (or its solo steps)."""
    quotas = np.zeros(shares.shape, dtype=int)
    for j, share in enumerate(shares):
        total = min(steps[j], solo[j]) if solo[j] else steps[j]
        exact = share / share.sum() * total
        quotas[j] = np.floor(exact).astype(int)
        largest_fractions = np.argsort(quotas[j] - exact, kind="stable")
        for d in largest_fractions[: total - quotas[j].sum()]:
            quotas[j, d] += 1
    return quotas
