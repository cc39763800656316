"""The round loop, the only one: simulations, local processes and SSH all run through it.

A round: the policy plans stints for every device; devices run theirs one after another until the
slot ends; when all copies of a job are in, they are merged and the steps count; a device with
nothing left takes more work while there is time; when no work is left the round ends at once.
Errands (evaluating a finished model, preparing a copy's process ahead of its first steps) fill
time that would be idle, and no round waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hadar_cli.app.ports import (
    Executor,
    Failed,
    HandedIn,
    NodeBack,
    NodeGone,
    Observer,
    Progressed,
    Report,
)
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.policies.registry import ClusterView, JobView, Policy, Stint
from hadar_cli.core.state import JobState
from hadar_cli.core.throughput import Rates
from hadar_cli.errors import HadarError, RefusedError, UnfinishedError

_ERRAND_S = 300.0
_RECALL_TICK_S = 0.5
_RECALL_S = 15.0
_FIRST_START_COST_S = 2.5  # of a cold copy, until one has been measured
_LEAST_STINT_S = 0.5


@dataclass(slots=True)
class _Round:
    """What one round still has to do."""

    ends_at: float
    lists: dict[str, deque[Stint]] = field(default_factory=dict)
    has_trained: bool = False

    def plan(self, devices: Sequence[str], stints: Sequence[Stint]) -> None:
        """Gives these devices new lists in place of what they had."""
        self.lists |= {device: deque() for device in devices}
        for stint in stints:
            self.lists[stint.device].append(stint)


class RoundLoop:
    """Drives a mix to its end over an executor."""

    def __init__(
        self,
        mix: Mix,
        devices: Sequence[Device],
        policy: Policy,
        executor: Executor,
        tracker: Tracker,
        rates: Rates,
        observer: Observer,
    ) -> None:
        self._mix, self._policy = mix, policy
        self._cluster = tuple(devices)
        self._devices = tuple(device.name for device in devices)
        self._executor, self._tracker, self._rates = executor, tracker, rates
        self._observer = observer
        self._state = tracker.state
        self._busy: dict[str, str] = {}  # device -> attempt that trains
        self._errands: dict[str, str] = {}  # device -> attempt that does not
        self._warm: dict[str, int] = {}  # device -> job whose copy waits there
        self._waits: dict[int, bool] = {}  # job -> whether its processes stay for more orders
        self._refused: set[str] = set()  # devices lost for security's sake
        self._progress: dict[str, int] = {}  # attempt -> steps it has told of
        self._start_cost_s = _FIRST_START_COST_S
        # Copies of an unforked job need no merge at the slot's end: where they can, they run on.
        self._lasting = executor.prolongs and not policy.forks

    def run(self, lower_bound: Callable[[], float | None] = lambda: None) -> None:
        """Trains until every job has its steps and its final quality is known."""
        self._take_over()
        while self._state.unfinished or self._state.unmeasured:
            self._run_round()
        finished_at = self._executor.now()
        self._tracker.record(events.RunFinished(finished_at, lower_bound()))

    def wind_up(self, why: str) -> None:
        """Leaves early without losing work: copies hand in what they have, and it is committed."""
        self._executor.recall()
        give_up_at = self._executor.now() + _RECALL_S
        while self._under_way() and self._executor.now() < give_up_at:
            for report in self._executor.wait(self._executor.now() + _RECALL_TICK_S):
                self._take(report)
            self._observer.tick()
        self._tracker.record(events.RunStopped(self._executor.now(), why))

    def _take_over(self) -> None:
        """Goes on with what the head before this one left: copies under way, results unmerged."""
        orders = self._tracker.under_way()
        self._executor.adopt(orders)
        for order in orders:
            (self._busy if order.hand_in else self._errands)[order.device] = order.attempt
            self._warm[order.device] = order.job.id
        for job in self._state.jobs.values():
            if job.handed_in and not job.active:
                self._tracker.commit(job)

    # -- one round ---------------------------------------------------------------------------

    def _run_round(self) -> None:
        devices = self._available()
        stints = self._policy.plan(self._view(devices, self._mix.slot_s))
        self._tracker.plan_round(stints)
        round_ = _Round(ends_at=self._executor.now() + self._mix.slot_s)
        if self._lasting:
            devices, stints = self._devices, self._reassign(stints)
        round_.plan(devices, stints)
        self._start_planned(round_)
        self._keep_devices_busy(round_)
        if not self._under_way():
            self._wait_for_work()
        while self._goes_on(round_):
            reports = self._executor.wait(self._next_look(round_))
            for report in reports:
                self._take(report)
                if isinstance(report, Failed):
                    self._give_up_if_hopeless(report)
            if not all(isinstance(report, Progressed) for report in reports):
                self._keep_devices_busy(round_)
            self._observer.tick()

    def _under_way(self) -> bool:
        return bool(self._busy or self._errands)

    def _goes_on(self, round_: _Round) -> bool:
        if self._busy:
            return not self._lasting or self._executor.now() < round_.ends_at
        # Errands may be all there is to do: another round would only wait for them too.
        return bool(self._errands) and not (round_.has_trained and self._state.unfinished)

    def _next_look(self, round_: _Round) -> float:
        tick = self._executor.now() + self._executor.tick_s
        return min(tick, round_.ends_at) if self._lasting else tick

    def _reassign(self, stints: Sequence[Stint]) -> list[Stint]:
        """Leaves gangs that stay together at work, recalls the others; returns what is to start."""
        stays = {(stint.job, stint.devices) for stint in stints}
        held = {(c.job, c.devices): c.attempt for c in self._copies()}
        recalled = {attempt for gang, attempt in held.items() if gang not in stays}
        self._executor.recall(sorted(recalled))
        while recalled & set(self._busy.values()):
            for report in self._executor.wait(self._executor.now() + self._executor.tick_s):
                self._take(report)
        return [stint for stint in stints if (stint.job, stint.devices) not in held]

    def _copies(self) -> list[events.CopyStarted]:
        return [self._state.started[attempt] for attempt in set(self._busy.values())]

    def _keep_devices_busy(self, round_: _Round) -> None:
        """Starts what is next on every idle device; plans more where a list has run out."""
        self._start_evaluations()
        self._start_planned(round_)
        left = round_.ends_at - self._executor.now()
        # What a gang policy has just left idle, it would leave idle again.
        is_news = self._policy.forks or left < self._mix.slot_s
        if is_news and left > _LEAST_STINT_S and self._idle():
            devices = self._available()
            more = self._policy.plan(self._view(devices, left))
            round_.plan(devices, [stint for stint in more if stint.device not in self._busy])
            self._start_planned(round_)
            if self._policy.forks:
                self._prepare_ahead()

    def _start_planned(self, round_: _Round) -> None:
        """Starts the next stint of every idle device's list, all copies of a job knowing of each
        other: together they set its learning rate."""
        if not any(round_.lists.values()):
            return
        left = round_.ends_at - self._executor.now()
        idle = set(self._idle())
        stints = [self._next_stint(round_.lists.get(d, deque()), left, idle) for d in idle]
        chosen = sorted((stint for stint in stints if stint), key=lambda stint: stint.device)
        expected = {stint.job: self._expected_steps(stint.job, chosen, left) for stint in chosen}
        for stint in chosen:
            if self._state.jobs[stint.job].free:
                self._start(stint, left, expected[stint.job])
                round_.has_trained = True

    def _next_stint(self, stints: deque[Stint], left: float, idle: set[str]) -> Stint | None:
        while stints and idle.issuperset(stints[0].devices):
            stint = stints.popleft()
            if self._is_worth_starting(stint, left):
                return stint
        return None

    def _is_worth_starting(self, stint: Stint, left: float) -> bool:
        is_warm = self._warm.get(stint.device) == stint.job
        needed = _LEAST_STINT_S + (0.0 if is_warm else self._start_cost_s)
        return bool(self._state.jobs[stint.job].free) and left > min(needed, self._mix.slot_s / 2)

    def _start(self, stint: Stint, left: float, expected: Sequence[int]) -> None:
        seconds = float("inf") if self._lasting else left
        order = self._tracker.hand_out(stint, seconds, expected)
        for device in stint.devices:
            self._busy[device] = order.attempt
            self._warm[device] = stint.job
        self._executor.start(order)

    def _expected_steps(self, job: int, chosen: Sequence[Stint], left: float) -> list[int]:
        """What each of the job's copies, under way or about to start, will bring to the merge."""
        quotas = {stint.device: stint.steps for stint in chosen if stint.job == job}
        for copy in self._state.jobs[job].active.values():
            quotas[copy.device] = sum(end - first for first, end in copy.slices)
        rate = self._rates.rate
        return [min(quota, int(rate(job, d) * left) + 1) for d, quota in quotas.items()]

    def _prepare_ahead(self) -> None:
        """Has devices that are idle until the round's end start the process they will need then."""
        idle = self._idle()
        if not idle or not self._busy:
            return
        stints = self._policy.plan(self._view(idle, self._mix.slot_s, ahead=True))
        next_job = {stint.device: stint.job for stint in reversed(stints)}
        for device, job in next_job.items():
            if self._warm.get(device) != job and self._stays(self._state.jobs[job]):
                self._send_on_errand(self._state.jobs[job], device, "prepare")

    def _stays(self, job: JobState) -> bool:
        """Whether the job's processes wait for orders, as far as is known; plain scripts do not."""
        return self._waits.get(job.job.id, job.job.launch.workload is not None)

    # -- what comes back ---------------------------------------------------------------------

    def _take(self, report: Report) -> None:
        match report:
            case Progressed():
                self._progress[report.attempt] = report.steps
                self._observer.progressed(report)
            case HandedIn():
                device = self._free(report.attempt)
                self._waits[self._state.started[report.attempt].job] = report.stays
                if not report.stays:
                    self._warm.pop(device, None)
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
                if report.refused:
                    self._refused.update(report.devices)
            case NodeBack():
                for device in report.devices:
                    self._tracker.record(events.DeviceReturned(self._executor.now(), device))

    def _free(self, attempt: str) -> str:
        self._progress.pop(attempt, None)
        for device in self._state.started[attempt].devices:
            for held in (self._busy, self._errands):
                if held.get(device) == attempt:
                    del held[device]
        return self._state.device_of(attempt)

    def _learn(self, report: HandedIn) -> None:
        started = self._state.started[report.attempt]
        result = report.result
        if result.steps and not started.gang:
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
            if self._refused >= self._state.lost_devices.keys():
                raise RefusedError(f"no device is left ({reasons})")
            raise UnfinishedError(f"no device is left ({reasons})")
        now = self._executor.now()
        arrivals = [j.job.arrives_s for j in self._state.unfinished if j.job.arrives_s > now]
        if not arrivals:
            raise HadarError("the policy left every device idle although there is work to do")
        while self._executor.now() < min(arrivals):
            tick = self._executor.now() + self._executor.tick_s
            for report in self._executor.wait(min(*arrivals, tick)):
                self._take(report)
            self._observer.tick()

    # -- quality -----------------------------------------------------------------------------

    def _start_evaluations(self) -> None:
        for job in self._state.unmeasured:
            idle = self._idle()
            if job.errands or not idle:
                continue
            warm = [device for device in idle if self._warm.get(device) == job.job.id]
            device = max(warm or idle, key=lambda d: self._rates.rate(job.job.id, d))
            self._send_on_errand(job, device, "evaluate")

    def _send_on_errand(self, job: JobState, device: str, purpose: str) -> None:
        order = self._tracker.hand_out_errand(job, device, _ERRAND_S, purpose)
        self._errands[device] = order.attempt
        self._warm[device] = job.job.id
        self._executor.start(order)

    # -- what the policy sees ----------------------------------------------------------------

    def _available(self) -> tuple[str, ...]:
        """Devices that do not train: idle ones, and those on an errand, which is soon over."""
        busy, lost = self._busy, self._state.lost_devices
        return tuple(d for d in self._devices if d not in busy and d not in lost)

    def _idle(self) -> tuple[str, ...]:
        return tuple(d for d in self._available() if d not in self._errands)

    def _view(self, devices: Sequence[str], seconds: float, ahead: bool = False) -> ClusterView:
        """What the policy may know; ``ahead`` looks past the solo phase, to what comes next."""
        now, lost = self._executor.now(), self._state.lost_devices
        queue = [job for job in self._state.unfinished if job.job.arrives_s <= now]
        copies = self._copies()
        return ClusterView(
            now_s=now,
            slot_s=self._mix.slot_s,
            seconds=seconds,
            devices=tuple(devices),
            jobs=lambda: [self._job_view(job, ahead) for job in queue],
            rates=self._rates,
            current=self._warm,
            start_cost_s=self._start_cost_s,
            cluster=tuple(d for d in self._cluster if d.name not in lost),
            queue=queue,
            running={copy.job: copy.devices for copy in copies},
            progress={copy.job: self._progress.get(copy.attempt, 0) for copy in copies},
        )

    def _job_view(self, job: JobState, ahead: bool) -> JobView:
        solo = max(1, round(self._mix.merge.solo * job.job.target_steps)) - len(job.done)
        return JobView(
            job.job,
            free_steps=len(job.free),
            remaining_steps=job.remaining,
            solo_steps=0 if ahead else max(0, solo),
            copies_active=len(job.active),
        )


def _last_lines(log: str, count: int = 5) -> str:
    return "\n".join(log.strip().splitlines()[-count:])
