"""The paper's Job Tracker: forks jobs into copies, checks what they bring, counts steps once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from hadar_cli.core import events
from hadar_cli.core.estimates.merging import copy_lr_scale, warmth
from hadar_cli.core.model import Mix
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.state import JobState, RunState
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import (
    Consolidator,
    Contribution,
    CopyOrder,
    Failed,
    HandedIn,
    Journal,
    Lateness,
    Merged,
    Observer,
)

Clock: TypeAlias = Callable[[], float]


def copy_id(parent: int, fork: int, max_job_count: int) -> int:
    """The paper's id of a forked copy: max_job_count × i + parent_job_id, i = 1..n."""
    return max_job_count * fork + parent


class Tracker:
    """Every change of state passes here: checked, journalled, then applied, then shown."""

    def __init__(
        self,
        mix: Mix,
        devices: Sequence[str],
        state: RunState,
        journal: Journal,
        consolidator: Consolidator,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.state = state
        self._mix, self._journal, self._clock = mix, journal, clock
        self._consolidator, self._observer = consolidator, observer
        self._fork_of = {device: i for i, device in enumerate(devices, start=1)}
        self._max_job_count = max(state.jobs, default=0) + 1

    def record(self, event: events.Event) -> None:
        """What the state refuses never reaches the journal: it could not be read back."""
        self.state.check(event)
        self._journal.append(event)
        self.state.take(event)
        self._observer.happened(event)

    # -- handing out -------------------------------------------------------------------------

    def plan_round(self, stints: Iterable[Stint]) -> None:
        stints = list(stints)
        planned = tuple([(s.job, s.device, s.steps) for s in stints])
        gangs = tuple([s.gang for s in stints if len(s.gang) > 1])
        self.record(events.RoundPlanned(self._clock(), self.state.round + 1, planned, gangs))

    def hand_out(
        self, stint: Stint, seconds: float, expected: Sequence[int], follows: str = ""
    ) -> CopyOrder:
        """An order for the next free steps of the stint's job, recorded before it is sent.

        ``expected`` are the steps that this and the job's other copies will bring to the merge.
        One that ``follows`` an attempt under way goes on from what that one will hand in.
        """
        job = self.state.jobs[stint.job]
        steps = job.ready.first(stint.steps)
        scale = self._scale(job, expected)
        order = self._order(job, stint.devices, seconds, steps, scale, "train", follows)
        if len(expected) < 2 or order.weights is None:
            return order  # it will not be merged with others, or there is no base to update
        rules = self._mix.merge
        keeps = job.generation % rules.optimizer_every != 0
        return replace(order, hand_in=rules.hand_in, keeps_optimizer=keeps)

    def hand_out_side_task(
        self, job: JobState, device: str, seconds: float, purpose: str
    ) -> CopyOrder:
        """An order without steps: one of ``events.SIDE_TASKS``."""
        return self._order(job, (device,), seconds, StepSet(), 1.0, purpose)

    def _order(
        self,
        job: JobState,
        devices: tuple[str, ...],
        seconds: float,
        steps: StepSet,
        scale: float,
        purpose: str,
        follows: str = "",
    ) -> CopyOrder:
        fork = self._fork_of[devices[0]]
        copy = copy_id(job.job.id, fork, self._max_job_count)
        number = len(self.state.started) + 1
        attempt = f"e{self.state.epoch}-r{self.state.round}-c{copy}-{number}"
        started = events.CopyStarted(
            self._clock(),
            attempt,
            job.job.id,
            copy,
            devices[0],
            self.state.round,
            job.generation + bool(follows),
            steps.ranges,
            scale,
            purpose,
            devices if len(devices) > 1 else (),
            follows,
            max(job.pieces.get(device, 1) for device in devices),
            bool(follows),
        )
        self.record(started)
        return self._order_of(started, seconds)

    def _order_of(self, started: events.CopyStarted, seconds: float) -> CopyOrder:
        job, purpose = self.state.jobs[started.job], started.purpose
        return CopyOrder(
            attempt=started.attempt,
            job=job.job,
            device=started.device,
            steps=StepSet.of(started.slices),
            seconds=seconds,
            weights=None if started.follows else job.weights,
            optimizer=None if started.follows else job.older_optimizer,
            merged_of=job.made_by,
            round=started.round,
            copy=started.copy,
            num_copies=len(job.active) - (started.follows in job.active),  # it is that one's heir
            global_step=len(job.done),
            job_seed=_seed(self._mix.seed, job.job.trial.sweep if job.job.trial else job.job.id),
            seed=_seed(self._mix.seed, *_who(job, started)),
            lr_scale=started.lr_scale,
            evaluate=purpose == "evaluate" or (purpose == "train" and started.generation == 0),
            returns_weights=purpose == "train",
            gang=started.gang,
            follows=started.follows,
            micro_batches=started.micro_batches,
        )

    def under_way(self) -> list[CopyOrder]:
        """The orders of copies that the head before this one left, for someone to take over."""
        return [
            self._order_of(started, self._mix.slot_s)
            for job in self.state.jobs.values()
            for started in (*job.active.values(), *job.side_tasks.values())
        ]

    def _scale(self, job: JobState, expected: Sequence[int]) -> float:
        """The learning rate's factor for that many effective copies, warmed up at first."""
        return copy_lr_scale(self._mix.merge, expected, len(job.done), job.job.target_steps)

    # -- taking back -------------------------------------------------------------------------

    def handed_in(self, report: HandedIn) -> events.CopyFinished | None:
        """Records a result that keeps to its order; anything else is recorded as lost.

        What was recorded, if the result can be believed.
        """
        if not self.is_under_way(report.attempt):
            return None  # late or repeated: it matches nothing
        result = report.result
        if objection := self._objection(report):
            self.failed(Failed(report.attempt, *objection))
            return None
        finished = events.CopyFinished(
            self._clock(),
            report.attempt,
            result.steps,
            result.slices,
            result.start_s,
            result.train_s,
            result.save_s,
            result.stopped,
            report.weights,
            _finite(result.loss),
            result.quality and _finite_only(result.quality),
            result.missed_paces,
            report.warm,
            result.members if _are_sound(result.members) else (),
            result.higher_is_better,
            result.evaluate_s,
            result.update,
            _finite(result.noise),
        )
        self.record(finished)
        return finished

    def failed(self, report: Failed) -> None:
        if self.is_under_way(report.attempt):
            now, reason = self._clock(), report.reason
            attempt, why, log = report.attempt, report.why, report.log
            is_fault = reason.is_node_fault
            self.record(events.CopyLost(now, attempt, why, log, is_fault, reason, report.device))

    def avoid(self, job: int, device: str, reason: Loss, why: str) -> None:
        """From now on the job is not given to the device."""
        self.record(events.PairAvoided(self._clock(), job, device, why, reason))

    def fail(self, job: JobState) -> None:
        """The job is over without an end; the others go on."""
        number, last = job.job.id, job.last_failure
        why, log = (f"on {last.device}: {last.why}", last.log) if last else ("nowhere fits it", "")
        tried = {device for one, device in self.state.avoided if one == number}
        if (many := len(tried | job.failures.keys())) > 1:
            why = f"on all of {many} devices, last {why}"
        self.record(events.JobFailed(self._clock(), number, why, log))

    def lose_device(self, device: str, reason: Absence, why: str) -> None:
        self.record(events.DeviceLost(self._clock(), device, why, reason))

    def is_under_way(self, attempt: str) -> bool:
        started = self.state.started.get(attempt)
        if started is None:
            return False
        job = self.state.jobs[started.job]
        return attempt in job.active or attempt in job.side_tasks

    def _objection(self, report: HandedIn) -> tuple[Loss, str] | None:
        """Why a result cannot be counted, as a reason and in words."""
        result, started = report.result, self.state.started[report.attempt]
        if result.steps > 0 and not self.state.jobs[started.job].may_count(started):
            return Loss.STALE, Loss.STALE.text
        given = StepSet.of(started.slices)
        try:
            claimed = StepSet.of(result.slices)
        except ValueError as error:
            return Loss.BAD_CLAIM, f"its result is inconsistent: {error}"
        if len(claimed) != result.steps:
            return Loss.BAD_CLAIM, f"it reports {result.steps} steps but lists {len(claimed)}"
        if not claimed <= given:
            return Loss.BAD_CLAIM, "it reports steps that it was not given"
        times = (result.start_s, result.train_s, result.save_s, result.evaluate_s)
        if not all(0 <= s < math.inf for s in times):
            return Loss.BAD_CLAIM, "it reports times that cannot be"
        if not 0 < result.update[1] <= result.update[0] or not (result.noise or 0.0) >= 0.0:
            return Loss.BAD_CLAIM, "it reports updates that cannot be"
        if result.steps and not report.weights:
            return Loss.NO_WEIGHTS, Loss.NO_WEIGHTS.text
        if result.stopped == events.BY_SCRIPT and not result.steps and not started.generation:
            return Loss.NO_WEIGHTS, "its script ended before its first step"
        return None

    # -- merging -----------------------------------------------------------------------------

    def merge_of(self, job: JobState) -> Callable[[], Merged] | None:
        """What merges all that the job's copies have handed in by now; it looks at no state, so
        that another thread may do it. None where there is nothing to merge."""
        inputs = [
            Contribution(
                attempt,
                self.state.started[attempt].copy,
                finished.weights,
                finished.steps,
                job.job.batch_size,
                self._lateness(job, self.state.started[attempt]),
            )
            for attempt, finished in job.handed_in.items()
            if finished.weights
        ]
        if not inputs:
            return None
        rules, base, number = self._mix.merge, job.weights, job.job.id
        warm = warmth(rules, len(job.done), job.job.target_steps)

        def merge() -> Merged:
            began = self._clock()
            outcome = self._consolidator.consolidate(inputs, base, rules, warm)
            return Merged(number, outcome, self._clock() - began)

        return merge

    def _lateness(self, job: JobState, copy: events.CopyStarted) -> Lateness | None:
        if job.is_based_on_latest(copy):
            return None
        base = job.base_of(copy)
        assert base, "what it trained never were the job's weights"
        return Lateness(base.weights, job.generation - copy.generation, copy.lr_scale)

    def merged(self, report: Merged) -> None:
        """Commits a merge; only this makes its copies' steps count."""
        job, merged = self.state.jobs[report.job], report.outcome
        self.record(
            events.WeightsMerged(
                self._clock(),
                report.job,
                job.generation + 1,
                merged.weights,
                merged.accepted,
                tuple((one.attempt, one.why) for one in merged.refused),
                report.seconds,
                merged.bytes,
                {one.attempt: one.reason for one in merged.refused},
                merged.bytes_in,
                merged.optimizer,
                dict(merged.late),
            )
        )

    def commit(self, job: JobState) -> None:
        """Merges and commits in one, for those who have nothing else to do."""
        if merge := self.merge_of(job):
            self.merged(merge())


def _are_sound(members: Sequence[tuple[float, float]]) -> bool:
    return all(0 <= number < math.inf for member in members for number in member)


def _finite(figure: float | None) -> float | None:
    """A diverged model's figures are no numbers, which the journal does not hold."""
    return figure if figure is not None and math.isfinite(figure) else None


def _finite_only(figures: dict[str, float]) -> dict[str, float]:
    return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


def _who(job: JobState, copy: events.CopyStarted) -> tuple[int | str, ...]:
    """Whose random numbers: a trial that is never forked has the same on every device."""
    if job.job.trial and job.job.fork == 1:
        return job.job.trial.sweep, copy.generation
    return job.job.id, copy.generation, copy.copy


def _seed(*parts: int | str) -> int:
    """A seed that depends on nothing but its parts."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "little")
