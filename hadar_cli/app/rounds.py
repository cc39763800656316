"""The round loop, the only one: simulations, local processes and SSH all run through it.

A round: the policy plans stints for every device; devices run theirs one after another until the
slot ends. Copies of one job meet several times on the way: all hand in, are merged, their steps
count, and they go on from the merged weights. A device with nothing left takes more work while
there is time; when no work is left the round ends at once; nobody waits long for a copy that is
late. A copy that is alone and stays where it is gets its next order before the slot ends: it hands
in on the way and waits for nobody. Errands (evaluating a finished model, preparing a copy's
process ahead of its first steps) fill time that would be idle, and no round waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from hadar_cli.app.agenda import Agenda
from hadar_cli.app.errands import Errands
from hadar_cli.app.foresight import Foresight
from hadar_cli.app.intake import Intake
from hadar_cli.app.meetings import Meetings
from hadar_cli.app.occupancy import Occupancy
from hadar_cli.app.ports import (
    Executor,
    Failed,
    HandedIn,
    NodeSilent,
    Observer,
    Progressed,
    Report,
    Surveyed,
)
from hadar_cli.app.tracker import Tracker
from hadar_cli.app.views import Views
from hadar_cli.core import events
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.policies.registry import Policy, Stint
from hadar_cli.core.state import JobState
from hadar_cli.core.throughput import Rates
from hadar_cli.errors import HadarError, RefusedError, UnfinishedError

_RECALL_TICK_S = 0.5
_RECALL_S = 15.0
_LEAST_STINT_S = 0.5
_HEADROOM = 1.5  # more steps than a device should come to, in case it is faster than thought
_STRETCH = 1 / 3  # of a slot: longer, if all the work is done then
_AHEAD_S = 1.0  # before the slot's end, orders are sent ahead
_NAMED = 3  # of the jobs that an error is about
_NO_NEWS = (Progressed, Surveyed, NodeSilent)  # nothing can be started after these


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
        self._devices = tuple(device.name for device in devices)
        self._executor, self._tracker, self._rates = executor, tracker, rates
        self._observer = observer
        self._state = tracker.state
        self._round = Agenda()
        self._meetings = Meetings(mix.merge, mix.slot_s)
        self._held = Occupancy(self._devices, self._state)
        self._views = Views(
            mix,
            devices,
            self._state,
            rates,
            self._held,
            self._meetings,
            executor.now,
            policy.forks,
        )
        self._foresight = Foresight(self._state, self._held, self._views, rates)
        self._errands = Errands(tracker, executor, self._held, rates)
        self._intake = Intake(
            executor,
            tracker,
            observer,
            rates,
            self._held,
            self._meetings,
            self._errands,
            self._foresight,
        )
        self._stints: dict[str, Stint] = {}  # attempt -> what it is a part of
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
        while not self._held.is_empty and self._executor.now() < give_up_at:
            for report in self._executor.wait(self._executor.now() + _RECALL_TICK_S):
                self._take(report)
            self._observer.tick()
        self._tracker.record(events.RunStopped(self._executor.now(), why))

    def _take_over(self) -> None:
        """Goes on with what the head before this one left: copies under way, results unmerged."""
        orders = self._tracker.under_way()
        self._executor.adopt(orders)
        for order in orders:
            self._held.hold(order)
            self._meetings.expect(order.job.id, self._executor.now() + order.seconds)
        for job in self._state.jobs.values():
            if job.handed_in and not self._held.awaited(job):
                self._intake.commit(job)

    # -- one round ---------------------------------------------------------------------------

    def _run_round(self) -> None:
        before, devices, slot_s = self._round, self._held.available(), self._mix.slot_s
        stints, latest = before.next_stints, float("inf")
        if before.sent_ahead & self._held.attempts:  # they are in the new slot already
            latest = before.ends_at + slot_s
        else:
            stints = self._policy.plan(self._views.of(devices, slot_s))
        self._tracker.plan_round(stints)
        now = self._executor.now()  # after planning, which takes its time
        round_ = self._round = Agenda(ends_at=max(min(now + slot_s, latest), now + 0.75 * slot_s))
        if self._lasting:
            devices, stints = self._devices, self._reassign(stints)
        able = set(devices)
        round_.plan(devices, [stint for stint in stints if stint.device in able])
        self._stretch()
        self._start_planned()
        self._keep_devices_busy()
        # A job may have ended while it was recalled from its devices: then a new plan is due.
        has_ended = any(self._state.jobs[stint.job].is_trained for stint in stints)
        if self._held.is_empty and not has_ended:
            self._wait_for_work()
        while self._goes_on():
            reports = self._executor.wait(self._next_look())
            for report in reports:
                self._take(report)
                if isinstance(report, HandedIn | Failed):
                    self._intake.give_up_if_hopeless(report.attempt)
            is_news = not self._lasting and self._intake.close_overdue_meetings()
            if is_news or not all(isinstance(r, _NO_NEWS) for r in reports):
                self._keep_devices_busy()
            self._send_ahead()
            self._observer.tick()

    def _goes_on(self) -> bool:
        held = self._held
        ahead = self._round.sent_ahead and self._round.sent_ahead & held.attempts
        if any(copy not in ahead and copy not in held.late for copy in held.training):
            return not self._lasting or self._executor.now() < self._round.ends_at
        if ahead:
            return False
        if held.training:  # those that are late are waited for only if there is nothing else to do
            return not self._round.has_trained
        # Errands may be all there is to do: another round would only wait for them too. But once
        # all is trained and measured, nobody needs the processes that are yet to start.
        if not self._state.unfinished and not self._state.unmeasured:
            return False
        return bool(held.errands) and not (self._round.has_trained and self._state.unfinished)

    def _next_look(self) -> float:
        tick = self._executor.now() + self._executor.tick_s
        if self._lasting:
            return min(tick, self._round.ends_at)
        ahead = [] if self._round.is_planned_ahead else [self._send_ahead_at]
        return min([tick, *ahead, self._intake.next_deadline()])

    def _reassign(self, stints: Sequence[Stint]) -> list[Stint]:
        """Leaves gangs that stay together at work, recalls the others; returns what is to start."""
        training, held = self._held.training, self._held.gangs.copy()
        stays = {stint.job: stint.devices for stint in stints}
        if stays == held:
            return []
        recalled = sorted(a for a, job in training.items() if stays.get(job) != held[job])
        self._executor.recall(recalled)
        while any(attempt in training for attempt in recalled):
            for report in self._executor.wait(self._executor.now() + self._executor.tick_s):
                self._take(report)
        return [stint for stint in stints if held.get(stint.job) != stint.devices]

    def _keep_devices_busy(self) -> None:
        """Starts what is next on every idle device; plans more where a list has run out."""
        self._errands.evaluate(self._not_about_to_go_on)
        self._start_planned()
        left = self._round.ends_at - self._executor.now()
        # What a gang policy has just left idle, it would leave idle again.
        is_news = self._policy.forks or left < self._mix.slot_s
        if is_news and left > _LEAST_STINT_S and self._unplanned():
            devices = tuple(d for d in self._held.available() if not self._round.next_of(d))
            more = self._policy.plan(self._views.of(devices, left))
            busy = self._held.busy
            self._round.plan(devices, [stint for stint in more if stint.device not in busy])
            self._stretch()
            self._start_planned()
            if self._policy.forks:
                self._prepare_ahead()

    def _stretch(self) -> None:
        """The round takes little more than its slot if that is all the work there is: crumbs left
        for one more would cost every device another start or merge."""
        if self._lasting or any(job.job.arrives_s for job in self._state.unfinished):
            return
        if self._round.covers(self._state.unfinished):
            lasts_s = self._round.lasts_s(self._rates, self._views.busy_s(self._mix.slot_s))
            done_at = self._executor.now() + 1.02 * lasts_s + self._held.start_cost_s
            if done_at <= self._round.ends_at + _STRETCH * self._mix.slot_s:
                self._round.ends_at = max(self._round.ends_at, done_at)

    def _start_planned(self) -> None:
        """Starts the next stint of every idle device's list, all copies of a job knowing of each
        other: together they set its learning rate, and when they meet."""
        in_order = self._held.idle()  # as the inventory lists them, whatever they are called
        idle = set(in_order)
        chosen: dict[int, list[Stint]] = {}
        for device in in_order:
            if stint := self._next_stint(device, idle):
                chosen.setdefault(stint.job, []).append(stint)
            else:
                self._prepare_while_waiting(device)
        for job, stints in chosen.items():
            self._start_together(job, stints)

    def _next_stint(self, device: str, idle: set[str]) -> Stint | None:
        stints = self._round.lists.get(device, deque())
        while stints and idle.issuperset(stints[0].devices):
            if self._must_wait(stints[0]):
                return None
            stint = stints.popleft()
            if self._is_worth_starting(stint, self._round.ends_at - self._executor.now()):
                return stint
        return None

    def _must_wait(self, stint: Stint) -> bool:
        """Whether the job's copies are about to meet, so that one more could not join them."""
        job = self._state.jobs[stint.job]
        if not job.free or not self._held.awaited(job):
            return False
        if any(copy.follows in job.active for copy in job.active.values()):
            return True
        due = self._meetings.due(stint.job)
        if due is None or due > self._round.ends_at - _LEAST_STINT_S:
            return False
        return not self._is_worth_starting(stint, due - self._executor.now())

    def _is_worth_starting(self, stint: Stint, left: float) -> bool:
        is_warm = self._held.is_warm(stint.device, stint.job)
        needed = _LEAST_STINT_S + (0.0 if is_warm else self._held.start_cost_s)
        job = self._state.jobs[stint.job]
        may_start = bool(job.free) and not job.is_used_up(self._executor.now())
        return may_start and left > min(needed, self._mix.slot_s / 2)

    def _start_together(self, job: int, stints: Sequence[Stint]) -> None:
        if len(stints) > 1:  # the last free steps are the fastest device's
            stints = sorted(stints, key=lambda stint: -self._rates.rate(job, stint.device))
        now = self._executor.now()
        left = min(self._meet(job, stints) - now, self._state.jobs[job].allowance_s(now))
        expected = self._expected_steps(job, stints, left)
        for stint in stints:
            if self._state.jobs[job].free:
                self._start(stint, left, expected)
                self._round.has_trained = True

    def _meet(self, job: int, stints: Sequence[Stint]) -> float:
        """When these copies of a job hand in: with those under way, or when it pays to merge."""
        now, due = self._executor.now(), self._meetings.due(job)
        if due is not None and self._held.awaited(self._state.jobs[job]):
            return due
        is_warm = all(self._held.is_warm(stint.device, job) for stint in stints)
        begins = now if is_warm else min(now + self._held.start_cost_s, self._round.ends_at)
        slowest = min(self._rates.rate(job, stint.device) for stint in stints)
        copies = len(stints) if self._errands.stays(self._state.jobs[job]) else 1
        return self._meetings.call(job, begins, self._round.ends_at, slowest, copies)

    def _start(self, stint: Stint, left: float, expected: Sequence[int], follows: str = "") -> None:
        seconds = left
        if self._lasting:
            seconds = self._state.jobs[stint.job].allowance_s(self._executor.now())
        order = self._tracker.hand_out(self._within(stint, seconds), seconds, expected, follows)
        self._stints[order.attempt] = stint
        self._held.hold(order)
        if follows:
            self._round.sent_ahead.add(order.attempt)
        self._executor.start(order)

    def _within(self, stint: Stint, seconds: float) -> Stint:
        """What a copy may come to by then: steps that it only held would be missed elsewhere."""
        if not self._policy.forks:
            return stint
        fits = _HEADROOM * seconds * self._rates.rate(stint.job, stint.device)
        return replace(stint, steps=min(stint.steps, int(fits) + 1))

    def _expected_steps(self, job: int, chosen: Sequence[Stint], left: float) -> list[int]:
        """What each of the job's copies, under way or about to start, will bring to the merge."""
        quotas = {stint.device: stint.steps for stint in chosen}
        for copy in self._held.awaited(self._state.jobs[job]):
            quotas[copy.device] = copy.quota
        rate = self._rates.rate
        return [min(quota, int(rate(job, d) * left) + 1) for d, quota in quotas.items()]

    # -- ahead of time -----------------------------------------------------------------------

    @property
    def _send_ahead_at(self) -> float:
        return self._round.ends_at - min(_AHEAD_S, self._mix.slot_s / 5)

    def _send_ahead(self) -> None:
        """Shortly before the slot ends, plans the next one, and has copies that stay alone where
        they are go on into it."""
        round_, now = self._round, self._executor.now()
        if round_.is_planned_ahead or now < self._send_ahead_at or self._lasting:
            return
        round_.is_planned_ahead = True
        left = max(0.0, round_.ends_at - now)
        alone = [c for c in self._foresight.alone() if self._may_go_on(self._state.jobs[c.job])]
        if not alone or not self._policy.forks:
            return
        everywhere = [d for d in self._devices if d not in self._state.lost_devices]
        slot_s = self._mix.slot_s
        round_.next_stints = self._policy.plan(self._views.of(everywhere, slot_s, later_s=left))
        for copy, stint in self._foresight.going_on(alone, round_.next_stints, left, slot_s):
            round_.next_stints.remove(stint)
            due = round_.ends_at + slot_s
            self._meetings.expect(copy.job, due)
            self._start(stint, due - now, [stint.steps], follows=copy.attempt)

    def _may_go_on(self, job: JobState) -> bool:
        """Whether a process of the job takes orders, and nothing has to end it by the clock."""
        return self._errands.stays(job) and job.job.max_duration_s is None

    def _prepare_ahead(self) -> None:
        """Has idle devices that hold no process of use start the one they will need next."""
        idle = [device for device in self._unplanned() if not self._is_of_use(device)]
        if not idle or not self._held.busy:
            return
        stints = self._policy.plan(self._views.of(idle, self._mix.slot_s, past_solo=True))
        next_job = {stint.device: stint.job for stint in reversed(stints)}
        for device, job in next_job.items():
            self._errands.prepare(device, self._state.jobs[job])

    def _is_of_use(self, device: str) -> bool:
        """Whether the process that waits on the device is of a job that still has work."""
        job = self._held.warm.get(device)
        return job is not None and not self._state.jobs[job].is_trained

    def _prepare_while_waiting(self, device: str) -> None:
        """A device that waits for a meeting of copies it is to join has time to get ready."""
        left = self._round.ends_at - self._executor.now()
        stint = self._round.next_of(device)
        if stint and self._policy.forks and left > self._held.start_cost_s:
            self._errands.prepare(device, self._state.jobs[stint.job])

    # -- what comes back ---------------------------------------------------------------------

    def _take(self, report: Report) -> None:
        match report:
            case HandedIn() if self._tracker.is_under_way(report.attempt):
                self._put_back(report)
            case Failed():
                self._stints.pop(report.attempt, None)
        self._intake.take(report)

    def _put_back(self, report: HandedIn) -> None:
        """A copy that came to a meeting before its stint was over goes on with it afterwards."""
        stint = self._stints.pop(report.attempt, None)
        left = self._round.ends_at - self._executor.now()
        if stint and self._policy.forks and report.stays and left > _LEAST_STINT_S:
            self._round.put_back(stint, report.result.steps)

    def _wait_for_work(self) -> None:
        """Nothing could be started: the next job arrives later, or there is no device for it."""
        if not self._held.idle():
            reasons = "; ".join(f"{d}: {why}" for d, why in self._state.lost_devices.items())
            what = f"no device is left for {self._waiting_jobs()} ({reasons})"
            if self._intake.refused >= self._state.lost_devices.keys():
                raise RefusedError(what)
            raise UnfinishedError(what)
        now = self._executor.now()
        arrivals = [j.job.arrives_s for j in self._state.unfinished if j.job.arrives_s > now]
        if not arrivals:
            raise HadarError("the policy left every device idle although there is work to do")
        while self._executor.now() < min(arrivals):
            tick = self._executor.now() + self._executor.tick_s
            for report in self._executor.wait(min(*arrivals, tick)):
                self._take(report)
            self._observer.tick()

    def _waiting_jobs(self) -> str:
        """The jobs that cannot go on, the first few by name."""
        names = [repr(job.job.name) for job in (*self._state.unfinished, *self._state.unmeasured)]
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return f"job {', '.join([*names[:_NAMED], *more])}"

    # -- devices without a copy --------------------------------------------------------------

    def _unplanned(self) -> tuple[str, ...]:
        """Idle devices with an empty list; the others wait for a meeting."""
        return tuple(d for d in self._held.idle() if not self._round.next_of(d))

    def _not_about_to_go_on(self) -> list[str]:
        """Idle devices, but for those that wait only until their job's copies have met."""
        nexts = [(device, self._round.next_of(device)) for device in self._held.idle()]
        return [device for device, stint in nexts if not (stint and self._must_wait(stint))]
