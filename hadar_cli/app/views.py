"""What a policy gets to see: the cluster and the queue as they are, or as they soon will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hadar_cli.app.meetings import Meetings
from hadar_cli.app.occupancy import Occupancy
from hadar_cli.core.events import CopyStarted
from hadar_cli.core.lineup import Roster
from hadar_cli.core.merging import solo_steps
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.policies.registry import ClusterView, JobView
from hadar_cli.core.state import JobState, RunState
from hadar_cli.core.throughput import Rates


class Views:
    """Makes the views of one run."""

    def __init__(
        self,
        mix: Mix,
        cluster: Sequence[Device],
        state: RunState,
        rates: Rates,
        occupancy: Occupancy,
        meetings: Meetings,
        clock: Callable[[], float],
        forks: bool,
    ) -> None:
        self._mix, self._cluster, self._state = mix, tuple(cluster), state
        self._rates, self._occupancy, self._meetings = rates, occupancy, meetings
        self._devices, self._clock = [device.name for device in cluster], clock
        self._forks = forks  # only then it matters when busy devices will be free
        self._roster = Roster(state)

    def of(
        self,
        devices: Sequence[str],
        seconds: float,
        *,
        later_s: float = 0.0,
        past_solo: bool = False,
    ) -> ClusterView:
        """The view of these devices for so many seconds.

        ``later_s`` from now, what is under way will be in; ``past_solo`` looks beyond the phase in
        which a job has one copy only, to what comes next.
        """
        now = self._clock()
        queue = self._roster.at(now)
        return ClusterView(
            now_s=now,
            slot_s=self._mix.slot_s,
            seconds=seconds,
            devices=tuple(devices),
            jobs=lambda: [self._job(job, later_s, past_solo) for job in queue],
            rates=self._rates,
            current=self._occupancy.warm,
            busy_s=self.busy_s(seconds) if self._forks and not later_s else {},
            start_cost_s=self._occupancy.start_cost_s,
            cluster=self._reachable(),
            queue=queue,
            running=self._occupancy.gangs.copy(),
            progress=self._occupancy.steps,
        )

    def busy_s(self, most_s: float) -> dict[str, float]:
        """How long each device that trains will be busy with its order, ``most_s`` at most."""
        busy_s = {}
        for copy in self._occupancy.copies():
            rate = self._rates.rate(copy.job, copy.device)
            left = copy.quota - self.steps_by(copy, 0.0)
            is_late = copy.attempt in self._occupancy.late
            busy_s[copy.device] = min(most_s, left / rate) if rate and not is_late else most_s
        return busy_s

    def _reachable(self) -> tuple[Device, ...]:
        """Every device that is not lost; mostly that is all of them."""
        lost = self._state.lost_devices
        if not lost:
            return self._cluster
        return tuple([device for device in self._cluster if device.name not in lost])

    def _job(self, job: JobState, later_s: float, past_solo: bool) -> JobView:
        # Who is late may never come: nobody has to stand back for it.
        active = len(job.active.keys() - self._occupancy.late)
        done, free = len(job.done), len(job.free)
        if later_s:
            coming = [self.steps_by(copy, later_s) for copy in job.active.values()]
            done += sum(coming) + sum(finished.steps for finished in job.handed_in.values())
            free, active = job.job.target_steps - done, 0
        return JobView(
            job.job,
            free_steps=free,
            remaining_steps=job.job.target_steps - done,
            solo_steps=0 if past_solo else max(0, self._solo_steps(job) - done),
            copies_active=active,
            copies_that_pay=self._copies_that_pay(job),
        )

    def _copies_that_pay(self, job: JobState) -> int | None:
        if job.job.fork or job.generation < 2:
            return None
        rates = self._rates.matrix([job.job.id], self._devices)[0]
        return self._meetings.copies_that_pay(job.job.id, rates.tolist())

    def _solo_steps(self, job: JobState) -> int:
        """The steps at a job's beginning that one copy does alone."""
        others_idle = len(self._state.unfinished) < len(self._devices)
        return solo_steps(self._mix.merge, job.job.target_steps, others_idle)

    def steps_by(self, copy: CopyStarted, later_s: float) -> int:
        """What a copy will have done of its order then; by its rate, if it has told nothing yet."""
        rate, told = self._rates.rate(copy.job, copy.device), self._occupancy.progress
        done = told.get(copy.attempt, rate * (self._clock() - copy.t))
        return min(copy.quota, int(done + rate * later_s))
