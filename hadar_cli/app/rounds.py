"""The round loop, the only one: simulations, local processes and SSH all run through it.

A round: the policy plans stints for every device; devices run theirs one after another until the
slot ends; when all copies of a job are in, they are merged and the steps count; a device with
nothing left takes more work while there is time; when no work is left the round ends at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hadar_cli.app.ports import (
    Executor,
    Failed,
    HandedIn,
    NodeGone,
    Observer,
    Progressed,
    Report,
)
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.model import Mix
from hadar_cli.core.policies.registry import ClusterView, JobView, Policy, Stint
from hadar_cli.core.state import JobState
from hadar_cli.core.throughput import RateModel
from hadar_cli.errors import HadarError, UnfinishedError

_EVALUATION_S = 120.0
_TICK_S = 0.5
_RECALL_S = 15.0
_FIRST_START_COST_S = 2.5  # of a cold copy, until one has been measured
_LEAST_STINT_S = 0.5


@dataclass(slots=True)
class _Round:
    """What one round still has to do."""

    ends_at: float
    lists: dict[str, deque[Stint]] = field(default_factory=dict)

    def add(self, stints: Sequence[Stint]) -> None:
        for stint in stints:
            self.lists.setdefault(stint.device, deque()).append(stint)


class RoundLoop:
    """Drives a mix to its end over an executor."""

    def __init__(
        self,
        mix: Mix,
        devices: Sequence[str],
        policy: Policy,
        executor: Executor,
        tracker: Tracker,
        rates: RateModel,
        observer: Observer,
    ) -> None:
        self._mix, self._devices, self._policy = mix, tuple(devices), policy
        self._executor, self._tracker, self._rates = executor, tracker, rates
        self._observer = observer
        self._state = tracker.state
        self._busy: dict[str, str] = {}  # device -> attempt
        self._warm: dict[str, int] = {}  # device -> job whose copy waits there
        self._start_cost_s = _FIRST_START_COST_S

    def run(self) -> None:
        """Trains until every job has its steps and its final quality is known."""
        while self._state.unfinished or self._unmeasured():
            self._run_round()
        self._tracker.record(events.RunFinished(self._executor.now()))

    def wind_up(self, why: str) -> None:
        """Leaves early without losing work: copies hand in what they have, and it is committed."""
        self._executor.recall()
        give_up_at = self._executor.now() + _RECALL_S
        while self._busy and self._executor.now() < give_up_at:
            for report in self._executor.wait(self._executor.now() + _TICK_S):
                self._take(report)
            self._observer.tick()
        self._tracker.record(events.RunStopped(self._executor.now(), why))

    # -- one round ---------------------------------------------------------------------------

    def _run_round(self) -> None:
        round_ = _Round(ends_at=self._executor.now() + self._mix.slot_s)
        stints = self._policy.plan(self._view(self._idle(), self._mix.slot_s))
        self._tracker.plan_round(stints)
        round_.add(stints)
        for device in self._idle():
            if stints := round_.lists.get(device):
                self._start(stints.popleft(), self._mix.slot_s)
        self._start_evaluations()
        if not self._busy:
            self._wait_for_work()
        while self._busy:
            for report in self._executor.wait(self._executor.now() + _TICK_S):
                self._take(report)
                if isinstance(report, Failed):
                    self._give_up_if_hopeless(report)
            self._keep_devices_busy(round_)
            self._observer.tick()

    def _keep_devices_busy(self, round_: _Round) -> None:
        """Starts what is next on every idle device; plans more where a list has run out."""
        self._start_evaluations()
        left = round_.ends_at - self._executor.now()
        for device in self._idle():
            self._start_next(round_.lists.get(device, deque()), left)
        idle = self._idle()
        if idle and left > _LEAST_STINT_S:
            round_.add(self._policy.plan(self._view(idle, left)))
            for device in idle:
                self._start_next(round_.lists.get(device, deque()), left)

    def _start_next(self, stints: deque[Stint], left: float) -> None:
        while stints:
            stint = stints.popleft()
            if self._is_worth_starting(stint, left):
                self._start(stint, left)
                return

    def _is_worth_starting(self, stint: Stint, left: float) -> bool:
        job = self._state.jobs[stint.job]
        is_warm = self._warm.get(stint.device) == stint.job
        least = _LEAST_STINT_S + (0.0 if is_warm else self._start_cost_s)
        return bool(job.free) and left > least

    def _start(self, stint: Stint, left: float) -> None:
        job = self._state.jobs[stint.job]
        expected = [self._expected_steps(stint.job, stint.device, stint.steps, left)] + [
            self._expected_steps(stint.job, c.device, sum(b - a for a, b in c.slices), left)
            for c in job.active.values()
        ]
        order = self._tracker.hand_out(stint, left, expected)
        self._busy[stint.device] = order.attempt
        self._warm[stint.device] = stint.job
        self._executor.start(order)

    def _expected_steps(self, job: int, device: str, steps: int, left: float) -> int:
        return min(steps, int(self._rates.rate(job, device) * left) + 1)

    # -- what comes back ---------------------------------------------------------------------

    def _take(self, report: Report) -> None:
        match report:
            case Progressed():
                self._observer.progressed(report)
            case HandedIn():
                self._free(report.attempt)
                self._learn(report)
                self._tracker.handed_in(report)
                self._commit_if_complete(report.attempt)
            case Failed():
                device = self._free(report.attempt)
                self._warm.pop(device, None)
                self._tracker.failed(report)
                self._commit_if_complete(report.attempt)
            case NodeGone():
                for device in report.devices:
                    self._tracker.record(
                        events.DeviceLost(self._executor.now(), device, report.why)
                    )

    def _free(self, attempt: str) -> str:
        device = self._state.device_of(attempt)
        if self._busy.get(device) == attempt:
            del self._busy[device]
        return device

    def _learn(self, report: HandedIn) -> None:
        started = self._state.started[report.attempt]
        result = report.result
        if result.steps:
            self._rates.observe(started.job, started.device, result.steps, result.train_s)
        if not report.warm:
            self._start_cost_s += 0.3 * (result.start_s - self._start_cost_s)

    def _commit_if_complete(self, attempt: str) -> None:
        """Merges a job as soon as none of its copies is still training."""
        job = self._state.jobs[self._state.started[attempt].job]
        if not job.active and job.handed_in:
            self._tracker.commit(job)

    def _give_up_if_hopeless(self, report: Failed) -> None:
        job = self._state.jobs[self._state.started[report.attempt].job]
        if job.failures > job.job.retry:
            raise UnfinishedError(
                f"job {job.job.name!r} failed {job.failures} times in a row; last: {report.why}",
                fix=_last_lines(report.log) or "see the log of its last copy",
            )

    def _wait_for_work(self) -> None:
        """Nothing could be started: the next job arrives later, or there is no device for it."""
        if not self._idle():
            reasons = "; ".join(f"{d}: {why}" for d, why in self._state.lost_devices.items())
            raise UnfinishedError(f"no device is left ({reasons})")
        now = self._executor.now()
        arrivals = [j.job.arrives_s for j in self._state.unfinished if j.job.arrives_s > now]
        if not arrivals:
            raise HadarError("the policy left every device idle although there is work to do")
        for report in self._executor.wait(min(arrivals)):
            self._take(report)

    # -- quality -----------------------------------------------------------------------------

    def _unmeasured(self) -> list[JobState]:
        """Trained jobs whose final weights still wait for their evaluation."""
        return [
            job
            for job in self._state.jobs.values()
            if job.is_trained and job.untrained is not None and job.quality is None
        ]

    def _start_evaluations(self) -> None:
        for job in self._unmeasured():
            idle = self._idle()
            if job.active or not idle:
                continue
            warm = [device for device in idle if self._warm.get(device) == job.job.id]
            device = max(warm or idle, key=lambda d: self._rates.rate(job.job.id, d))
            order = self._tracker.hand_out_evaluation(job, device, _EVALUATION_S)
            self._busy[device] = order.attempt
            self._warm[device] = job.job.id
            self._executor.start(order)

    # -- what the policy sees ----------------------------------------------------------------

    def _idle(self) -> tuple[str, ...]:
        lost = self._state.lost_devices
        return tuple(d for d in self._devices if d not in self._busy and d not in lost)

    def _view(self, devices: Sequence[str], seconds: float) -> ClusterView:
        return ClusterView(
            seconds=seconds,
            devices=tuple(devices),
            jobs=tuple(self._job_view(job) for job in self._state.unfinished if self._arrived(job)),
            rate=self._rates.rate,
            current=dict(self._warm),
            start_cost_s=self._start_cost_s,
        )

    def _job_view(self, job: JobState) -> JobView:
        solo = max(1, round(self._mix.merge.solo * job.job.target_steps)) - len(job.done)
        return JobView(
            job.job,
            free_steps=len(job.free),
            remaining_steps=job.remaining,
            solo_steps=max(0, solo),
            copies_active=len(job.active),
        )

    def _arrived(self, job: JobState) -> bool:
        return job.job.arrives_s <= self._executor.now()


def _last_lines(log: str, count: int = 5) -> str:
    return "\n".join(log.strip().splitlines()[-count:])
