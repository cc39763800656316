"""The paper's Job Tracker: forks jobs into copies, checks what they bring, counts steps once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from hadar_cli.app.ports import (
    Consolidator,
    Contribution,
    CopyOrder,
    Failed,
    HandedIn,
    Journal,
    Observer,
)
from hadar_cli.core import events
from hadar_cli.core.merging import copy_lr_scale, warmth
from hadar_cli.core.model import Mix
from hadar_cli.core.policies.registry import Stint
from hadar_cli.core.state import JobState, RunState
from hadar_cli.core.steps import StepSet

Clock: TypeAlias = Callable[[], float]


def copy_id(parent: int, fork: int, max_job_count: int) -> int:
    """The paper's id of a forked copy: max_job_count × i + parent_job_id, i = 1..n."""
    return max_job_count * fork + parent


class Tracker:
    """Every change of state passes through here: journalled first, then applied, then shown."""

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
        self._journal.append(event)
        self.state.apply(event)
        self._observer.happened(event)

    # -- handing out -------------------------------------------------------------------------

    def plan_round(self, stints: Iterable[Stint]) -> None:
        planned = tuple((s.job, s.device, s.steps) for s in stints)
        self.record(events.RoundPlanned(self._clock(), self.state.round + 1, planned))

    def hand_out(
        self, stint: Stint, seconds: float, expected: Sequence[int], follows: str = ""
    ) -> CopyOrder:
        """An order for the next free steps of the stint's job, recorded before it is sent.

        ``expected`` are the steps that this and the job's other copies will bring to the merge.
        One that ``follows`` an attempt under way goes on from what that one will hand in.
        """
        job = self.state.jobs[stint.job]
        steps = job.free.first(stint.steps)
        scale = self._scale(job, expected)
        order = self._order(job, stint.devices, seconds, steps, scale, "train", follows)
        is_forked = len(expected) > 1 and order.weights is not None
        return replace(order, rounded=is_forked and self._mix.merge.hand_in == "bf16")

    def hand_out_errand(
        self, job: JobState, device: str, seconds: float, purpose: str
    ) -> CopyOrder:
        """An order without steps: one of ``events.ERRANDS``."""
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
        )
        self.record(started)
        return self._order_of(started, seconds)

    def _order_of(self, started: events.CopyStarted, seconds: float) -> CopyOrder:
        job, purpose = self.state.jobs[started.job], started.purpose
        compares = purpose == "compare"
        return CopyOrder(
            attempt=started.attempt,
            job=job.job,
            device=started.device,
            steps=StepSet.of(started.slices),
            seconds=seconds,
            weights=None if started.follows else job.rival if compares else job.weights,
            round=started.round,
            copy=started.copy,
            num_copies=len(job.active),
            global_step=len(job.done),
            job_seed=_seed(self._mix.seed, job.job.id),
            seed=_seed(self._mix.seed, job.job.id, started.generation, started.copy),
            lr_scale=started.lr_scale,
            evaluate=purpose in ("evaluate", "compare")
            or (purpose == "train" and started.generation == 0),
            hand_in=purpose == "train",
            gang=started.gang,
            follows=started.follows,
        )

    def under_way(self) -> list[CopyOrder]:
        """The orders of copies that the head before this one left, for someone to take over."""
        return [
            self._order_of(started, self._mix.slot_s)
            for job in self.state.jobs.values()
            for started in (*job.active.values(), *job.errands.values())
        ]

    def _scale(self, job: JobState, expected: Sequence[int]) -> float:
        """The learning rate's factor for that many effective copies, warmed up at first."""
        return copy_lr_scale(self._mix.merge, expected, len(job.done), job.job.target_steps)

    # -- taking back -------------------------------------------------------------------------

    def handed_in(self, report: HandedIn) -> bool:
        """Records a result that keeps to its order; anything else is recorded as lost.

        Whether the result can be believed.
        """
        if not self.is_under_way(report.attempt):
            return False  # late or repeated: it matches nothing
        result = report.result
        why = self._objection(report)
        if why:
            is_late = self._is_late(report)
            self.record(events.CopyLost(self._clock(), report.attempt, why, node_fault=is_late))
            return False
        self.record(
            events.CopyFinished(
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
            )
        )
        return True

    def failed(self, report: Failed) -> None:
        if self.is_under_way(report.attempt):
            why, log, node_fault = report.why, report.log, report.node_fault
            self.record(events.CopyLost(self._clock(), report.attempt, why, log, node_fault))

    def is_under_way(self, attempt: str) -> bool:
        started = self.state.started.get(attempt)
        if started is None:
            return False
        job = self.state.jobs[started.job]
        return attempt in job.active or attempt in job.errands

    def _is_late(self, report: HandedIn) -> bool:
        """Whether what it trained is no longer, or never became, the job's latest weights."""
        started = self.state.started[report.attempt]
        is_latest = self.state.jobs[started.job].is_based_on_latest(started)
        return report.result.steps > 0 and not is_latest

    def _objection(self, report: HandedIn) -> str | None:
        result, started = report.result, self.state.started[report.attempt]
        if self._is_late(report):
            return "it did not train the job's latest weights: the others went on without it"
        given = StepSet.of(started.slices)
        try:
            claimed = StepSet.of(result.slices)
        except ValueError as error:
            return f"its result is inconsistent: {error}"
        if len(claimed) != result.steps:
            return f"it reports {result.steps} steps but lists {len(claimed)}"
        if not claimed <= given:
            return "it reports steps that it was not given"
        if not all(0 <= s < math.inf for s in (result.start_s, result.train_s, result.save_s)):
            return "it reports times that cannot be"
        if result.steps and not report.weights:
            return "it reports steps but left no weights"
        return None

    # -- merging -----------------------------------------------------------------------------

    def commit(self, job: JobState) -> None:
        """Merges what the job's copies handed in; only this makes their steps count."""
        began = self._clock()
        inputs = [
            Contribution(
                attempt,
                self.state.started[attempt].copy,
                finished.weights,
                finished.steps,
                job.job.batch_size,
            )
            for attempt, finished in job.handed_in.items()
            if finished.weights
        ]
        if not inputs:
            return
        rules, done = self._mix.merge, len(job.done)
        warm = warmth(rules, done, job.job.target_steps)
        merged = self._consolidator.consolidate(inputs, job.weights, rules, warm)
        self.record(
            events.WeightsMerged(
                self._clock(),
                job.job.id,
                job.generation + 1,
                merged.weights,
                merged.accepted,
                merged.refused,
                self._clock() - began,
                merged.bytes,
                self._rival(job, merged.accepted),
            )
        )

    def _rival(self, job: JobState, merged: Sequence[str]) -> str:
        """What the leader of a job's last merge made alone, if it may yet be kept instead."""
        copies = [job.handed_in[attempt] for attempt in merged]
        is_last = sum(copy.steps for copy in copies) == job.remaining
        if self._mix.merge.keep != "better" or not is_last or len(copies) < 2:
            return ""
        if job.untrained is None:  # nobody can tell which of them is better
            return ""
        return max(copies, key=lambda copy: copy.steps).weights or ""


def _finite(figure: float | None) -> float | None:
    """A diverged model's figures are no numbers, which the journal does not hold."""
    return figure if figure is not None and math.isfinite(figure) else None


def _finite_only(figures: dict[str, float]) -> dict[str, float]:
    return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


def _seed(*parts: int) -> int:
    """A seed that depends on nothing but its parts."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "little")
