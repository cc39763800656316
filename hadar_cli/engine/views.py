"""What a policy gets to see: the cluster and the queue as they are, or as they soon will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from hadar_cli.core.estimates.gangs import PROPORTIONAL
from hadar_cli.core.estimates.merging import solo_steps
from hadar_cli.core.estimates.suitability import Suitability
from hadar_cli.core.estimates.throughput import Rates
from hadar_cli.core.events import CopyStarted
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.policies.job_queue import Arrivals
from hadar_cli.core.policies.port import ClusterView, JobView, Stint
from hadar_cli.core.state import JobState, RunState
from hadar_cli.engine.meetings import Meetings
from hadar_cli.engine.occupancy import Occupancy

_FRESH_S = 5.0  # that a copy is taken to have gone on since it last told


class Views:
    """Makes the views of one run."""

    def __init__(
        self,
        mix: Mix,
        suitability: Suitability,
        state: RunState,
        rates: Rates,
        occupancy: Occupancy,
        meetings: Meetings,
        clock: Callable[[], float],
        forks: bool,
    ) -> None:
        self._mix, self._suitability, self._state = mix, suitability, state
        self._rates, self._occupancy, self._meetings = rates, occupancy, meetings
        self._devices, self._clock = [device.name for device in suitability.pools], clock
        self._forks = forks  # or else nobody asks when devices will be free, and what merges cost
        self._arrivals = Arrivals(state)
        self._progress = lambda: occupancy.steps()
        #: whether a job's processes wait for orders, so that more of them may be given any
        self.stays: Callable[[JobState], bool] = lambda job: False

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
        queue, states = self._arrivals.at(now), self._state.jobs
        busy_s = self.busy_s(seconds) if self._forks and not later_s else {}
        return ClusterView(
            now_s=now,
            slot_s=self._mix.slot_s,
            seconds=seconds,
            devices=tuple(devices),
            jobs=lambda: [self._job(states[i], later_s, past_solo) for i in queue.ids.tolist()],
            rates=self._rates,
            current=MappingProxyType(self._occupancy.warm.copy()),
            busy_s=MappingProxyType(busy_s),
            start_cost_s=self._occupancy.start_cost_s,
            cluster=self._reachable(),
            queue=queue,
            running=MappingProxyType(self._occupancy.gangs.copy()),
            progress=self._progress,
        )

    def busy_s(self, most_s: float) -> dict[str, float]:
        """How long each device that trains will be busy with its order, ``most_s`` at most."""
        busy_s: dict[str, float] = {}
        for copy in self._occupancy.copies():
            rate, _ = self._pace(copy)
            left = copy.quota - self.steps_by(copy, 0.0)
            is_late = copy.attempt in self._occupancy.late
            lasts_s = min(most_s, left / rate) if rate and not is_late else most_s
            busy_s |= dict.fromkeys(copy.devices, lasts_s)
        return busy_s

    def _reachable(self) -> tuple[Device, ...]:
        """Every device that is not lost; mostly that is all of them."""
        lost = self._state.lost_devices
        cluster = self._suitability.pools
        if not lost:
            return cluster
        return tuple([device for device in cluster if device.name not in lost])

    def _job(self, job: JobState, later_s: float, past_solo: bool) -> JobView:
        # Who is late may never come: nobody has to stand back for it.
        active = len(job.active.keys() - self._occupancy.late)
        done, free = len(job.done), len(job.ready)
        came = sum(finished.steps for finished in job.handed_in.values())
        # By then what is planned now begins: a job that is being merged waits for that.
        begun = done + (came if job.job.id in self._occupancy.merging else 0)
        if later_s:
            coming = [self.steps_by(copy, later_s) for copy in job.active.values()]
            begun = done = done + sum(coming) + came
            free, active = max(0, job.limit - done), 0
        return JobView(
            job.job,
            free_steps=free,
            remaining_steps=max(0, job.limit - done),
            solo_steps=0 if past_solo else max(0, self._solo_steps(job) - begun),
            copies_active=active,
            copies_that_pay=self._copies_that_pay(job),
            too_dear=frozenset(self.too_dear(job)),
            may_share=self._may_share(job),
        )

    def _may_share(self, job: JobState) -> bool:
        """Whether the job's processes can share steps, as far as is known, and are to."""
        if job.cannot_share or job.job.max_duration_s is not None:
            return False
        if job.job.mode == "auto" and any(pieces > 1 for pieces in job.pieces.values()):
            return False  # all of a gang would split their batches for the smallest card among them
        is_chosen = job.job.mode == "auto" and job.job.shares == PROPORTIONAL and self.stays(job)
        return job.job.mode == "share" or is_chosen

    def _copies_that_pay(self, job: JobState) -> int | None:
        if job.job.fork or job.generation < self._least_merges:
            return None
        rates = self._rates.matrix([job.job.id], self._devices)[0].tolist()
        left = job.limit - len(job.done)
        return self._meetings.copies_that_pay(job.job.id, rates, self._devices, left)

    def too_dear(self, job: JobState) -> dict[str, float]:
        """Devices whose copies of the job cost the others more than they bring, and how much.

        Whoever gives a number of copies has weighed that already."""
        is_first = job.generation == 0 and bool(self._meetings.links) and self._are_others_idle
        if (
            not self._forks
            or job.job.fork
            or (job.generation < self._least_merges and not is_first)
        ):
            return {}
        if not is_first and not self._meetings.costs_differ(job.job.id):
            return {}
        rates = self._rates.matrix([job.job.id], self._devices)[0].tolist()
        if is_first:
            return dict.fromkeys(self._meetings.far(rates, self._devices), 0.0)
        left = job.limit - len(job.done)
        return self._meetings.too_dear(job.job.id, rates, self._devices, left)

    @property
    def _least_merges(self) -> int:
        """After which something can be said of what they cost; sooner where links are known."""
        return 1 if self._meetings.links else 2

    @property
    def _are_others_idle(self) -> bool:
        return len(self._state.unfinished) < len(self._devices)

    def is_too_dear(self, stint: Stint, is_elsewhere: Callable[[Stint], bool]) -> bool:
        """Whether a stint that was planned before would now cost the job's other copies more than
        it brings: those under way, being merged, or about to start ``elsewhere``."""
        job, held = self._state.jobs[stint.job], self._occupancy
        is_dear = self._forks and stint.device in self.too_dear(job)
        is_met = stint.job in held.merging or bool(held.awaited(job))
        return is_dear and (is_met or is_elsewhere(stint))

    def _solo_steps(self, job: JobState) -> int:
        """The steps at a job's beginning that one copy does, of one device or of several."""
        if job.job.mode == "share" and not job.cannot_share:
            return job.job.target_steps
        return solo_steps(self._mix.merge, job.job.target_steps, self._are_others_idle)

    def steps_by(self, copy: CopyStarted, later_s: float) -> int:
        """What a copy will have done of its order then; by its rate, if it has told nothing yet."""
        now, done = self._clock(), self._occupancy.progress.get(copy.attempt)
        rate, told_at = self._pace(copy)
        since_s = now - copy.t if done is None else min(now - told_at, _FRESH_S)
        return min(copy.quota, int((done or 0) + rate * (later_s + since_s)))

    def _pace(self, copy: CopyStarted) -> tuple[float, float]:
        """Steps a second, as it told itself or as devices are known, and from when on."""
        known = self._rates.gang(copy.job, copy.devices), self._clock()
        return self._occupancy.told_rates.get(copy.attempt, known)
