"""A policy of whims: the loop has to stay exact whatever it is told to do, and cheaply so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from hadar_cli.core.policies.port import ClusterView, JobView, Stint


@dataclass(frozen=True, slots=True)
class Whims:
    """Random stints, large and small, on random devices; at least one where there is work."""

    name: ClassVar[str] = "whims"
    forks: ClassVar[bool] = True
    seed: int = 0
    gangs: bool = False  # devices share some stints
    stays: bool = False  # every device goes on with its job, alone if it can: orders are sent ahead

    def plan(self, view: ClusterView) -> list[Stint]:
        dice = Random(f"{self.seed} {view.now_s} {view.devices}")
        jobs = [job for job in view.jobs() if job.free_steps and job.room != 0]
        if not jobs or not view.devices:
            return []
        if self.stays:
            return self._share(view, self._stay(view, jobs), dice)
        stints: list[Stint] = []
        copies = dict.fromkeys((job.job.id for job in jobs), 0)
        for device in view.devices:
            able = [job for job in jobs if view.rates.rate(job.job.id, device) > 0]
            current = [job for job in able if view.current.get(device) == job.job.id]
            for _ in range(dice.choice((0, 1, 1, 1, 2, 3)) or not stints):
                if not able:
                    break
                job = dice.choice(current if current and dice.random() < 0.7 else able)
                if job.room is not None and copies[job.job.id] >= job.room:
                    continue
                copies[job.job.id] += 1
                stints.append(Stint(job.job.id, device, self._steps(job, device, view, dice)))
        for device in view.devices if not stints else ():
            for job in jobs:
                if not stints and view.rates.rate(job.job.id, device) > 0:
                    stints.append(Stint(job.job.id, device, max(1, job.free_steps)))
        return self._share(view, stints, dice)

    def _share(self, view: ClusterView, stints: list[Stint], dice: Random) -> list[Stint]:
        """Has devices that have nothing to do take part in others' stints."""
        if not self.gangs:
            return stints
        used = {stint.device for stint in stints}
        idle = [device for device in view.devices if device not in used]
        may = {job.job.id for job in view.jobs() if job.may_share}
        shared = []
        for stint in stints:
            able = [d for d in idle if stint.job in may and view.rates.rate(stint.job, d) > 0]
            if able and dice.random() < 0.7:
                others = dice.sample(able, dice.randint(1, len(able)))
                idle = [device for device in idle if device not in others]
                stint = replace(stint, gang=(stint.device, *others))
            shared.append(stint)
        return shared

    def _stay(self, view: ClusterView, jobs: list[JobView]) -> list[Stint]:
        stints: dict[int, Stint] = {}
        for device in sorted(view.devices, key=lambda d: d not in view.current):
            able = [job for job in jobs if view.rates.rate(job.job.id, device) > 0]
            left = [job for job in able if job.job.id not in stints]
            if left:
                job = min(left, key=lambda job: view.current.get(device) != job.job.id)
                fits = view.rates.rate(job.job.id, device) * view.seconds
                most = min(job.free_steps, job.solo_steps or job.free_steps)
                stints[job.job.id] = Stint(job.job.id, device, min(most, int(2 * fits) + 10))
        return list(stints.values())

    def _steps(self, job: JobView, device: str, view: ClusterView, dice: Random) -> int:
        fits = view.rates.rate(job.job.id, device) * view.seconds
        most = min(job.free_steps, job.solo_steps or job.free_steps)
        wanted = int(fits * dice.choice((0.1, 0.5, 1.0, 1.5))) + 1
        return max(1, min(most, wanted))
