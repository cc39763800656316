"""The round loop, the only one: simulations, local processes and SSH all run through it.

A round: the policy plans stints for every device; devices run theirs one after another until the
slot ends. Copies of one job meet several times on the way: all hand in, are merged, their steps
count, and they go on from the merged weights. A device with nothing left takes more work while
there is time; when no work is left the round ends at once; nobody waits long for a copy that is
late. A copy that is alone and stays where it is gets its next order before the slot ends: it hands
in on the way and waits for nobody. Side tasks (evaluating a finished model, preparing a copy's
process ahead of its first steps) fill time that would be idle, and no round waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hadar_cli.core import events
from hadar_cli.core.estimates.suitability import Suitability, SuitableRates
from hadar_cli.core.estimates.throughput import LearningRates
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.policies.port import Policy, Stint
from hadar_cli.core.policies.priorities import ByPriority
from hadar_cli.core.state import JobState
from hadar_cli.engine.failures import Failures, next_chance, require_end
from hadar_cli.engine.follow_ons import FollowOns
from hadar_cli.engine.meetings import Meetings
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import (
    DeviceWanted,
    Executor,
    Failed,
    HandedIn,
    Moving,
    NodeSilent,
    Observer,
    Progressed,
    Report,
    Surveyed,
)
from hadar_cli.engine.report_handler import ReportHandler
from hadar_cli.engine.round_plan import RoundPlan
from hadar_cli.engine.side_tasks import SideTasks
from hadar_cli.engine.starts import LEAST_STINT_S, Starts
from hadar_cli.engine.tracker import Tracker
from hadar_cli.engine.views import Views

_RECALL_TICK_S = 0.5
_RECALL_S = 15.0  # for side tasks; those who train have as long as handing in takes them
_STRETCH = 1 / 3  # of a slot: longer, if all the work is done then
_AHEAD_S = 1.0  # before the slot's end, orders are sent ahead
# Nothing can be started after these.
_NO_NEWS = (Progressed, Surveyed, Moving, NodeSilent, DeviceWanted)


class RoundLoop:
    """Drives a mix to its end over an executor."""

    def __init__(
        self,
        mix: Mix,
        devices: Sequence[Device],
        policy: Policy,
        executor: Executor,
        tracker: Tracker,
        rates: LearningRates,
        observer: Observer,
    ) -> None:
        self._mix, self._policy = mix, ByPriority(policy, tracker.state)
        self._devices = tuple(device.name for device in devices)
        self._executor, self._tracker, self._observer = executor, tracker, observer
        self._state = tracker.state
        self._suitability = Suitability(devices, self._state, gangs=not policy.forks)
        known = self._rates = SuitableRates(rates, self._suitability)
        self._round = RoundPlan()
        meetings = self.meetings = Meetings(mix.merge, mix.slot_s)
        held = self._held = Occupancy(self._devices, self._state)
        views = self._views = Views(
            mix, self._suitability, self._state, known, held, meetings, executor.now, policy.forks
        )
        follow_ons = self._follow_ons = FollowOns(self._state, held, views, known)
        aside = self._side_tasks = SideTasks(tracker, executor, held, known)
        state, suits = self._state, self._suitability
        self._views.stays = aside.stays
        self._starts = Starts(
            mix.slot_s, policy.forks, executor.now, state, held, meetings, aside, known, suits
        )
        failures = Failures(tracker, held, suits, policy.forks)
        self._report_handler = ReportHandler(
            *(executor, tracker, observer, known, rates, held),
            *(meetings, views, aside, follow_ons, failures),
        )
        self.adopt, self.heed = self._report_handler.adopt, self._report_handler.heed
        self.settle = self._report_handler.settle
        self._stints: dict[str, Stint] = {}  # attempt -> what it is a part of
        # Copies of an unforked job need no merge at the slot's end: where they can, they run on.
        self._lasting = executor.prolongs and not policy.forks

    def run(self, lower_bound: Callable[[], float | None] = lambda: None) -> None:
        self.train()
        self.finish(lower_bound)

    def train(self) -> None:
        """Trains until every job has its steps and its final quality is known, failed or rests."""
        self._take_over()
        while self._state.unfinished or self._state.unmeasured:
            self._run_round()
        self.settle()

    def finish(self, lower_bound: Callable[[], float | None] = lambda: None) -> None:
        """Records the end; raises where jobs failed or are paused."""
        require_end(self._state)
        finished_at = self._executor.now()
        bound = lower_bound()
        known = bound if bound is not None and math.isfinite(bound) else None
        self._tracker.record(events.RunFinished(finished_at, known))

    def validate(self) -> None:
        """Raises where state and occupancy break an invariant; holds whenever someone may look."""
        self._state.validate()
        self._held.validate()

    def wind_up(self, why: str) -> None:
        """Leaves early without losing work: copies hand in what they have, and it is committed."""
        self._executor.recall()
        held, began = self._held, self._executor.now()
        most_s = max((self._hand_in_s(copy) for copy in held.copies()), default=0.0)
        if held.busy:
            self._observer.winding_up(tuple(held.busy), most_s)
        while not held.is_empty or held.merging:
            passed_s = self._executor.now() - began
            if passed_s >= (most_s if held.busy else _RECALL_S) and not held.merging:
                break
            self._hear(self._executor.now() + _RECALL_TICK_S)
            self._observer.tick()
        left = {device: held.progress.get(attempt, 0) for device, attempt in held.busy.items()}
        self._tracker.record(events.RunStopped(self._executor.now(), why, left))

    def _hand_in_s(self, copy: events.CopyStarted) -> float:
        rate = self._rates.gang(copy.job, copy.devices)
        return self.meetings.hand_in_s(copy.job, copy.device, rate)

    def _take_over(self) -> None:
        """Goes on with what the head before this one left: copies under way, results unmerged."""
        self.adopt()
        for job in [job for job in self._state.jobs.values() if not job.is_over]:
            if not self._held.awaited(job):
                self._report_handler.commit(job)
        self._report_handler.heed()

    # -- one round ---------------------------------------------------------------------------

    def _run_round(self) -> None:
        before, devices, slot_s = self._round, self._held.available(), self._mix.slot_s
        stints, ahead, latest = before.next_stints, before.gone_ahead, float("inf")
        if before.sent_ahead & self._held.attempts:  # they are in the new slot already
            latest = before.ends_at + slot_s
        else:
            ahead = []
            stints = self._policy.plan(self._views.of(devices, slot_s))
        self._tracker.plan_round([*ahead, *stints])
        now = self._executor.now()  # after planning, which takes its time
        round_ = self._round = RoundPlan(max(min(now + slot_s, latest), now + 0.75 * slot_s))
        if self._lasting:
            devices, stints = self._devices, self._reassign(stints)
        able = set(devices)
        round_.plan(devices, [stint for stint in stints if stint.device in able])
        self._stretch()
        self._start_planned()
        self._keep_devices_busy()
        # A job may have ended while it was recalled from its devices: then a new plan is due.
        has_ended = any(self._state.jobs[stint.job].is_over for stint in stints)
        if self._held.is_empty and not self._held.merging and not has_ended:
            self._wait_for_work()
        while self._goes_on():
            reports = self._hear(self._next_look())
            is_news = not self._lasting and self._report_handler.close_overdue_meetings()
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
        if held.merging:  # its devices go on then; others have waited long enough at the slot's end
            others = len(self._state.unfinished) > len(held.merging)
            is_over = self._executor.now() >= self._round.ends_at
            return not (others and is_over and self._round.has_trained)
        # Side tasks may be all there is to do: another round would only wait for them too. But once
        # all is trained and measured, nobody needs the processes that are yet to start.
        if not self._state.unfinished and not self._state.unmeasured:
            return False
        return bool(held.side_tasks) and not (self._round.has_trained and self._state.unfinished)

    def _next_look(self) -> float:
        tick = self._executor.now() + self._executor.tick_s
        if self._lasting:
            return min(tick, self._round.ends_at)
        ahead_at = math.inf if self._round.is_planned_ahead else self._send_ahead_at
        return min(tick, ahead_at, self._report_handler.next_deadline())

    def _reassign(self, stints: Sequence[Stint]) -> list[Stint]:
        """Leaves gangs that stay together at work, recalls the others; returns what is to start."""
        training, held = self._held.training, self._held.gangs.copy()
        stays = {stint.job: stint.devices for stint in stints}
        if stays == held:
            return []
        recalled = sorted(a for a, job in training.items() if stays.get(job) != held[job])
        self._executor.recall(recalled)
        while not training.keys().isdisjoint(recalled):
            self._hear(self._executor.now() + self._executor.tick_s)
        return [stint for stint in stints if held.get(stint.job) != stint.devices]

    def _keep_devices_busy(self) -> None:
        """Starts what is next on every idle device; plans more where a list has run out."""
        self._side_tasks.evaluate(self._not_about_to_go_on)
        self._start_planned()
        left = self._round.ends_at - self._executor.now()
        # What a gang policy has just left idle, it would leave idle again.
        is_news = self._policy.forks or left < self._mix.slot_s
        if is_news and left > LEAST_STINT_S and self._unplanned():
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
        all_idle = self._held.idle()  # as the inventory lists them, whatever they are called
        idle, in_order = set(all_idle), self._round.listed(all_idle)
        chosen: dict[int, list[Stint]] = {}
        for device in in_order:
            if device in idle and (stint := self._next_stint(device, idle)):
                chosen.setdefault(stint.job, []).append(stint)
                idle.difference_update(stint.devices)  # gangs that waited may want the same ones
        if self._policy.forks:
            self._prepare_while_waiting([device for device in in_order if device in idle])
        for job, stints in chosen.items():
            self._start_together(job, stints)

    def _next_stint(self, device: str, idle: set[str]) -> Stint | None:
        stints = self._round.lists.get(device)
        while stints and idle.issuperset(stints[0].devices):
            if self._starts.must_wait(stints[0], self._round.ends_at):
                return None
            stint = stints.popleft()
            left = self._round.ends_at - self._executor.now()
            is_dear = self._views.is_too_dear(stint, self._round.is_elsewhere)
            if self._starts.is_worthwhile(stint, left) and not is_dear:
                return stint
        return None

    def _start_together(self, job: int, stints: Sequence[Stint]) -> None:
        stints = self._starts.fastest(job, stints)
        now = self._executor.now()
        meets_at = self._starts.meet(job, stints, self._round.ends_at)
        left = min(meets_at - now, self._state.jobs[job].allowance_s(now))
        expected = self._starts.expected_steps(job, stints, left)
        for stint in stints:
            if self._state.jobs[job].ready:
                self._start(stint, left, expected)
                self._round.has_trained = True

    def _start(self, stint: Stint, left: float, expected: Sequence[int], follows: str = "") -> None:
        seconds = left
        if self._lasting:
            seconds = self._state.jobs[stint.job].allowance_s(self._executor.now())
        fits = self._starts.within(stint, seconds)
        order = self._starts.shared(self._tracker.hand_out(fits, seconds, expected, follows))
        self._stints[order.attempt] = stint
        self._held.hold(order)
        if follows:
            self._round.sent_ahead.add(order.attempt)
        self._executor.start(order)

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
        alone = [c for c in self._follow_ons.alone() if self._may_go_on(self._state.jobs[c.job])]
        if not alone:
            return
        everywhere = [d for d in self._devices if d not in self._state.lost_devices]
        slot_s = self._mix.slot_s
        round_.next_stints = self._policy.plan(self._views.of(everywhere, slot_s, later_s=left))
        for copy, stint in self._follow_ons.going_on(alone, round_.next_stints, left, slot_s):
            round_.next_stints.remove(stint)
            round_.gone_ahead.append(stint)
            due = round_.ends_at + slot_s
            self.meetings.expect(copy.job, due)
            self._start(stint, due - now, [stint.steps], follows=copy.attempt)

    def _may_go_on(self, job: JobState) -> bool:
        """Whether a process of the job takes orders, and nothing has to end it by the clock."""
        is_steady = job.job.max_duration_s is None and not job.is_unwanted
        return self._side_tasks.stays(job) and is_steady

    def _prepare_ahead(self) -> None:
        """Has idle devices that hold no process of use start the one they will need next."""
        idle = [device for device in self._unplanned() if not self._is_of_use(device)]
        if not idle or not self._held.busy:
            return
        stints = self._policy.plan(self._views.of(idle, self._mix.slot_s, past_solo=True))
        for device, stint in {stint.device: stint for stint in reversed(stints)}.items():
            self._prepare(device, stint)

    def _is_of_use(self, device: str) -> bool:
        """Whether the process that waits on the device is of a job that still has work."""
        job = self._held.warm.get(device)
        return job is not None and not self._state.jobs[job].is_over

    def _prepare_while_waiting(self, devices: Sequence[str]) -> None:
        """Devices that wait for a meeting of copies they are to join have time to get ready."""
        if self._round.ends_at - self._executor.now() > self._held.start_cost_s:
            for device in devices:
                self._prepare(device, self._round.next_of(device))

    def _prepare(self, device: str, stint: Stint | None) -> None:
        """Of a gang's devices, this one: others of them may be at work."""
        if stint and not self._views.is_too_dear(stint, self._round.is_elsewhere):
            self._side_tasks.prepare(device, self._state.jobs[stint.job])

    # -- what comes back ---------------------------------------------------------------------

    def _hear(self, until: float) -> Sequence[Report]:
        reports = self._executor.wait(until)
        for report in reports:
            self._take(report)
        return reports

    def _take(self, report: Report) -> None:
        match report:
            case HandedIn() if self._tracker.is_under_way(report.attempt):
                self._put_back(report)
            case Failed():
                self._stints.pop(report.attempt, None)
        self._report_handler.take(report)

    def _put_back(self, report: HandedIn) -> None:
        """A copy that came to a meeting before its stint was over goes on with it afterwards."""
        stint = self._stints.pop(report.attempt, None)
        left = self._round.ends_at - self._executor.now()
        if stint and self._policy.forks and report.stays and left > LEAST_STINT_S:
            self._round.put_back(stint, report.result.steps)

    def _wait_for_work(self) -> None:
        """Nothing could be started: the next job arrives later, or there is no device for it."""
        idle, is_over = self._held.idle(), False
        while not is_over and (self._state.unfinished or self._state.unmeasured):
            now = self._executor.now()
            then = next_chance(self._state, self._suitability, bool(idle), now)
            self._hear(min(then, now + self._executor.tick_s))
            self._observer.tick()
            is_over = self._executor.now() >= then or self._held.idle() != idle

    # -- devices without a copy --------------------------------------------------------------

    def _unplanned(self) -> tuple[str, ...]:
        """Idle devices with an empty list; the others wait for a meeting."""
        return tuple(d for d in self._held.idle() if not self._round.next_of(d))

    def _not_about_to_go_on(self) -> list[str]:
        """Idle devices, but for those that wait only until their job's copies have met."""
        nexts = [(device, self._round.next_of(device)) for device in self._held.idle()]
        waits, ends_at = self._starts.must_wait, self._round.ends_at
        return [device for device, stint in nexts if not (stint and waits(stint, ends_at))]
