"""Seeded bugs: each breaks one promise of the product, and the checker has to notice.

Where two places hold the same promise, both are broken: a checker that only sees the second one
speak up would not be known to bite.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import msgspec
import numpy as np

from hadar_cli import assembly as head
from hadar_cli.core import events
from hadar_cli.core.estimates.suitability import Suitability
from hadar_cli.core.reasons import Loss
from hadar_cli.core.state import JobState, RunState
from hadar_cli.core.steps import StepSet, all_steps
from hadar_cli.engine.failures import Failures
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import Consolidated, CopyOrder, Failed, HandedIn
from hadar_cli.engine.report_handler import ReportHandler
from hadar_cli.engine.tracker import Tracker
from hadar_cli.errors import UnfinishedError
from hadar_cli.nodes.gangs import Gangs
from hadar_cli.nodes.session.decisions import NodeSession
from hadar_cli.runs import housekeeping, store
from hadar_cli.runs.consolidation import StoreConsolidator
from hadar_cli.runs.request_handler import RequestHandler
from hadar_cli.runs.requests import Inbox, Request
from hadar_cli.runs.store import FileJournal, RunStore
from hadar_cli.weights import late
from hadar_cli.weights import validation as contributions
from hadar_cli.weights.late import LateCopy
from hadar_cli.weights.safetensors_file import Array, Checkpoint
from hadar_cli.weights.updates import UPDATE_OF, Update
from hadar_cli.weights.validation import Layout

Mutant: TypeAlias = Callable[[], AbstractContextManager[object]]
MUTANTS: dict[str, Mutant] = {}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__.replace("_", " ")] = make
    return make


def _instead(owner: object, name: str, stand_in: object) -> AbstractContextManager[object]:
    return patch.object(owner, name, stand_in)


@contextmanager
def _all(*patches: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


# -- counting ----------------------------------------------------------------------------------


def _trusting_finish(state: RunState, event: events.CopyFinished) -> None:
    """``RunState._finish`` without its own checks."""
    started = state.started[event.attempt]
    job = state.jobs[started.job]
    job.active.pop(event.attempt, None)
    job.side_tasks.pop(event.attempt, None)
    if heir := job.take_back(started, StepSet.of(event.slices)):
        state.started[heir.attempt] = heir
    if event.quality is not None:
        if started.generation == 0:
            job.untrained = event.quality
        else:
            job.quality = event.quality
        state._look_for_quality(job)
    if event.steps:
        job.handed_in[event.attempt] = event


@mutant
def results_are_not_deduplicated() -> AbstractContextManager[object]:
    def is_under_way(tracker: Tracker, attempt: str) -> bool:
        return attempt in tracker.state.started

    return _all(
        _instead(Tracker, "is_under_way", is_under_way),
        _instead(RunState, "_finish", _trusting_finish),
    )


@mutant
def claims_are_not_bounded() -> AbstractContextManager[object]:
    return _all(
        _instead(Tracker, "_objection", lambda *_: None),
        _instead(RunState, "_finish", _trusting_finish),
    )


@mutant
def late_copies_count() -> AbstractContextManager[object]:
    return _instead(JobState, "is_based_on_latest", lambda job, copy: True)


@mutant
def whom_a_copy_follows_does_not_matter() -> AbstractContextManager[object]:
    return _instead(
        JobState, "is_based_on_latest", lambda job, copy: copy.generation == job.generation
    )


@mutant
def generations_do_not_matter() -> AbstractContextManager[object]:
    return _instead(
        JobState,
        "is_based_on_latest",
        lambda job, copy: not copy.follows or job.made_by == (copy.follows,),
    )


@mutant
def steps_count_before_they_are_committed() -> AbstractContextManager[object]:
    real = RunState._finish

    def finish(state: RunState, event: events.CopyFinished) -> None:
        real(state, event)
        job = state.jobs[state.started[event.attempt].job]
        job.remaining -= event.steps
        if job.is_trained:
            job.handed_in.clear()
            state._open.pop(job.job.id, None)

    return _instead(RunState, "_finish", finish)


@mutant
def steps_done_go_back_to_the_pool() -> AbstractContextManager[object]:
    real = RunState._finish

    def finish(state: RunState, event: events.CopyFinished) -> None:
        real(state, event)
        job = state.jobs[state.started[event.attempt].job]
        job.free = job.free | StepSet.of(event.slices)

    return _instead(RunState, "_finish", finish)


@mutant
def steps_of_lost_copies_stay_away() -> AbstractContextManager[object]:
    def lose(state: RunState, event: events.CopyLost) -> None:
        job = state.jobs[state.started[event.attempt].job]
        state._close(job, event.attempt)

    return _instead(RunState, "_lose", lose)


@mutant
def refused_copies_count() -> AbstractContextManager[object]:
    real = StoreConsolidator.consolidate

    def consolidate(self: StoreConsolidator, *arguments: Any) -> Consolidated:
        found = real(self, *arguments)
        everyone = (*found.accepted, *(one.attempt for one in found.refused))
        return replace(found, accepted=everyone if found.accepted else (), refused=())

    return _instead(StoreConsolidator, "consolidate", consolidate)


@mutant
def merged_copies_are_merged_again() -> AbstractContextManager[object]:
    real = RunState._commit

    def commit(state: RunState, event: events.WeightsMerged) -> None:
        job = state.jobs[event.job]
        kept = dict(job.handed_in)
        real(state, event)
        job.handed_in |= kept if not job.is_trained else {}

    return _instead(RunState, "_commit", commit)


@mutant
def a_stop_keeps_what_copies_held() -> AbstractContextManager[object]:
    def drop(state: RunState) -> None:
        for job in state.jobs.values():
            job.active.clear()
            job.side_tasks.clear()
            job.handed_in.clear()

    return _instead(RunState, "_drop_copies", drop)


@mutant
def a_stop_frees_even_steps_done() -> AbstractContextManager[object]:
    def drop(state: RunState) -> None:
        for job in state.jobs.values():
            job.active.clear()
            job.side_tasks.clear()
            job.handed_in.clear()
            job.free = all_steps(job.job.target_steps)

    return _instead(RunState, "_drop_copies", drop)


# -- who is late -------------------------------------------------------------------------------


@mutant
def late_work_is_thrown_away() -> AbstractContextManager[object]:
    return _instead(JobState, "may_count", JobState.is_based_on_latest)


@mutant
def late_copies_are_merged_as_if_in_time() -> AbstractContextManager[object]:
    return _instead(Tracker, "_lateness", lambda *_: None)


@mutant
def late_updates_count_twice() -> AbstractContextManager[object]:
    real = LateCopy.update

    def update(copy: LateCopy, *where: Any) -> Any:
        did, given = real(copy, *where)
        return 2 * did, given

    return _instead(LateCopy, "update", update)


@mutant
def neither_age_nor_direction_matters() -> AbstractContextManager[object]:
    return _instead(late, "late_share", lambda lr_scale, merges, cosine: 1 / lr_scale)


@mutant
def what_late_copies_began_with_is_garbage() -> AbstractContextManager[object]:
    return _instead(housekeeping, "_needed", lambda job: job.files)


@mutant
def steps_of_late_copies_are_given_to_others() -> AbstractContextManager[object]:
    real = RunState._commit

    def commit(state: RunState, event: events.WeightsMerged) -> None:
        real(state, event)
        job = state.jobs[event.job]
        for copy in job.active.values():
            if copy.generation < job.generation:
                job.free = job.free | StepSet.of(copy.slices)

    return _instead(RunState, "_commit", commit)


@mutant
def a_late_copy_makes_weights_that_others_follow() -> AbstractContextManager[object]:
    real = RunState._commit

    def commit(state: RunState, event: events.WeightsMerged) -> None:
        real(state, event)
        state.jobs[event.job].made_by = event.accepted

    return _instead(RunState, "_commit", commit)


# -- weights -----------------------------------------------------------------------------------


@mutant
def merge_without_weights() -> AbstractContextManager[object]:
    real = Tracker.handed_in

    def handed_in(tracker: Tracker, report: HandedIn) -> events.CopyFinished | None:
        others = [
            f.weights
            for j in tracker.state.jobs.values()
            for f in j.handed_in.values()
            if f.weights
        ]
        if report.weights is None and report.result.steps and others:
            report = replace(report, weights=others[0])
        return real(tracker, report)

    return _instead(Tracker, "handed_in", handed_in)


@mutant
def updates_fit_any_weights() -> AbstractContextManager[object]:
    def opened(path: Path, base: Checkpoint | None) -> Checkpoint:
        checkpoint = Checkpoint(path)
        return Update(path, base) if base and UPDATE_OF in checkpoint.metadata else checkpoint

    return _instead(contributions, "open_hand_in", opened)


@mutant
def frozen_parts_do_not_matter() -> AbstractContextManager[object]:
    real = contributions.difference

    def difference(layout: Layout, wanted: Layout) -> str | None:
        names = frozenset((name, "") for name, _ in layout.frozen)
        wanted_names = frozenset((name, "") for name, _ in wanted.frozen)
        return real(replace(layout, frozen=names), replace(wanted, frozen=wanted_names))

    return _instead(contributions, "difference", difference)


@mutant
def whole_numbers_are_not_scaled() -> AbstractContextManager[object]:
    real = Update._decoded

    def decoded(update: Update, name: str, start: int, size: int) -> Array:
        values = real(update, name, start, size)
        return np.asarray(np.sign(values), values.dtype)

    return _instead(Update, "_decoded", decoded)


@mutant
def the_last_optimizer_state_is_not_sent() -> AbstractContextManager[object]:
    return _instead(JobState, "older_optimizer", property(lambda job: None))


@mutant
def the_last_optimizer_state_is_garbage() -> AbstractContextManager[object]:
    def files(job: JobState) -> list[str]:
        return [job.weights] if job.weights else []

    return _instead(JobState, "files", property(files))


@mutant
def state_travels_with_every_merge_but_the_journal_says_not() -> AbstractContextManager[object]:
    real = StoreConsolidator.consolidate

    def consolidate(self: StoreConsolidator, *arguments: Any) -> Consolidated:
        return replace(real(self, *arguments), optimizer=False)

    return _instead(StoreConsolidator, "consolidate", consolidate)


@mutant
def no_copy_hears_that_it_was_merged() -> AbstractContextManager[object]:
    real = Tracker._order_of

    def order_of(tracker: Tracker, *arguments: Any) -> CopyOrder:
        return replace(real(tracker, *arguments), merged_of=())

    return _instead(Tracker, "_order_of", order_of)


@mutant
def every_copy_hears_that_it_was_merged() -> AbstractContextManager[object]:
    real = Tracker._order_of

    def order_of(tracker: Tracker, *arguments: Any) -> CopyOrder:
        return replace(real(tracker, *arguments), merged_of=tuple(tracker.state.started))

    return _instead(Tracker, "_order_of", order_of)


@mutant
def copies_weigh_the_same() -> AbstractContextManager[object]:
    real = StoreConsolidator.consolidate

    def consolidate(self: StoreConsolidator, inputs: Any, *more: Any) -> Consolidated:
        return real(self, [replace(copy, steps=1) for copy in inputs], *more)

    return _instead(StoreConsolidator, "consolidate", consolidate)


@mutant
def orders_carry_old_weights() -> AbstractContextManager[object]:
    real = Tracker._order_of

    def order_of(tracker: Tracker, started: events.CopyStarted, seconds: float) -> CopyOrder:
        order = real(tracker, started, seconds)
        return replace(order, weights=None) if started.generation == 1 else order

    return _instead(Tracker, "_order_of", order_of)


@mutant
def checkpoints_are_not_verified() -> AbstractContextManager[object]:
    return _instead(RunStore, "verify", lambda *_: None)


@mutant
def checkpoints_are_not_synced() -> AbstractContextManager[object]:
    def keep(self: RunStore, scratch: Path, digest: str) -> None:
        scratch.replace(self.object_path(digest))

    return _instead(RunStore, "keep", keep)


@mutant
def models_are_not_synced() -> AbstractContextManager[object]:
    return _instead(housekeeping, "replace_durably", lambda part, path: part.replace(path))


@mutant
def garbage_includes_what_is_needed() -> AbstractContextManager[object]:
    def collect(self: RunStore, keep: Any, arriving: bool) -> None:
        for path in (self.directory / "objects").iterdir():
            path.unlink()

    return _instead(RunStore, "collect_garbage", collect)


# -- journal, lock and heads -------------------------------------------------------------------


@mutant
def the_journal_is_not_synced() -> AbstractContextManager[object]:
    def append(self: FileJournal, event: events.Event) -> None:
        with patch("os.fsync", lambda _: None):
            real(self, event)

    real = FileJournal.append
    return _instead(FileJournal, "append", append)


@mutant
def the_journal_is_written_after_the_act() -> AbstractContextManager[object]:
    real = FileJournal.append

    def append(self: FileJournal, event: events.Event) -> None:
        waiting = self.__dict__.setdefault("waiting", [])
        if not isinstance(event, events.CopyStarted):
            for each in waiting:
                real(self, each)
            waiting.clear()
            real(self, event)
        else:
            waiting.append(event)

    return _instead(FileJournal, "append", append)


@mutant
def short_writes_pass() -> AbstractContextManager[object]:
    def append(self: FileJournal, event: events.Event) -> None:
        body = msgspec.json.encode([type(event).__name__, event])
        self._file.write(b"%08x " % zlib.crc32(body) + body + b"\n")
        os.fsync(self._file.fileno())

    return _instead(FileJournal, "append", append)


@mutant
def a_torn_tail_is_not_cut() -> AbstractContextManager[object]:
    return _instead(head, "mend_journal", store.read_journal)


@mutant
def two_heads_may_drive() -> AbstractContextManager[object]:
    return _instead(RunStore, "locked", lambda self: nullcontext())


@mutant
def epochs_stand_still() -> AbstractContextManager[object]:
    real = RunState.take

    def take(state: RunState, event: events.Event) -> None:
        real(state, event)
        if isinstance(event, events.HeadStarted):
            state.epoch = 0

    return _instead(RunState, "take", take)


@mutant
def copies_under_way_are_not_adopted() -> AbstractContextManager[object]:
    return _instead(Tracker, "under_way", lambda self: [])


# -- the loop ----------------------------------------------------------------------------------


@mutant
def a_lost_copy_keeps_its_device() -> AbstractContextManager[object]:
    real = ReportHandler._take_from_copy

    def take(report_handler: ReportHandler, report: Any) -> None:
        if isinstance(report, Failed):
            report_handler.tracker.failed(report)
        else:
            real(report_handler, report)

    return _instead(ReportHandler, "_take_from_copy", take)


@mutant
def a_late_copy_frees_its_device() -> AbstractContextManager[object]:
    real = ReportHandler.close_overdue_meetings

    def close(report_handler: ReportHandler) -> bool:
        closed = real(report_handler)
        for attempt in list(report_handler.held.late):
            report_handler.held.free(attempt)
        return closed

    return _instead(ReportHandler, "close_overdue_meetings", close)


@mutant
def an_order_sent_ahead_is_forgotten() -> AbstractContextManager[object]:
    real = Occupancy.free

    def free(held: Occupancy, attempt: str) -> tuple[str, ...]:
        held.ahead.clear()
        return real(held, attempt)

    return _instead(Occupancy, "free", free)


@mutant
def nobody_gives_up_a_hopeless_job() -> AbstractContextManager[object]:
    return _instead(Failures, "judge", lambda *_: None)


@mutant
def a_failed_job_ends_the_run() -> AbstractContextManager[object]:
    real = Tracker.fail

    def fail(tracker: Tracker, job: JobState) -> None:
        real(tracker, job)
        raise UnfinishedError(f"job {job.job.name!r} failed")

    return _instead(Tracker, "fail", fail)


@mutant
def an_avoided_pair_is_used_all_the_same() -> AbstractContextManager[object]:
    return _instead(Suitability, "allows", lambda *_: True)


@mutant
def out_of_memory_is_blamed_on_the_device() -> AbstractContextManager[object]:
    return _instead(Loss, "is_too_large", property(lambda reason: False))


@mutant
def the_batch_stays_whole() -> AbstractContextManager[object]:
    real = Tracker._order_of

    def order_of(tracker: Tracker, *arguments: Any) -> CopyOrder:
        return replace(real(tracker, *arguments), micro_batches=1)

    return _instead(Tracker, "_order_of", order_of)


@mutant
def a_failed_job_stays_failed() -> AbstractContextManager[object]:
    def begin_anew(state: RunState, event: events.HeadStarted) -> None:
        state.epoch = event.epoch

    return _instead(RunState, "_begin_anew", begin_anew)


@mutant
def the_hung_are_waited_for() -> AbstractContextManager[object]:
    return _instead(ReportHandler, "close_overdue_meetings", lambda report_handler: False)


# -- what people ask ---------------------------------------------------------------------------


@mutant
def requests_are_removed_before_they_are_journalled() -> AbstractContextManager[object]:
    real = Inbox.read

    def read(inbox: Inbox, number: str) -> Request:
        request = real(inbox, number)
        inbox.take_back(number)
        return request

    return _instead(Inbox, "read", read)


@mutant
def what_a_killed_head_journalled_is_not_carried_out() -> AbstractContextManager[object]:
    real = RequestHandler._take

    def take(handler: RequestHandler, number: str) -> bool:
        is_known = number in handler._tracker.state.requests
        return False if is_known and handler._inbox.take_back(number) else real(handler, number)

    return _instead(RequestHandler, "_take", take)


@mutant
def the_next_head_trains_on_drained_nodes() -> AbstractContextManager[object]:
    return _instead(RunState, "drained", property(lambda state: set()))


# -- gangs -------------------------------------------------------------------------------------

OF_GANGS: set[str] = set()


def mutant_of_gangs(make: Mutant) -> Mutant:
    OF_GANGS.add(make.__name__.replace("_", " "))
    return mutant(make)


@mutant_of_gangs
def members_of_a_lost_gang_live_on() -> AbstractContextManager[object]:
    return _instead(NodeSession, "abandon", lambda session, attempts: None)


@mutant_of_gangs
def gangs_of_other_processes_have_one_name() -> AbstractContextManager[object]:
    real = Gangs._send

    def send(gangs: Gangs, gang: Any, name: str, meets_at: str) -> None:
        real(gangs, gang, f"job {gang.order.job.id}", meets_at)

    return _instead(Gangs, "_send", send)


@mutant_of_gangs
def a_member_does_not_count() -> AbstractContextManager[object]:
    """The loss of one that is not rank 0 is overheard: the others wait for it in vain."""
    real = Gangs._take_loss

    def take_loss(gangs: Gangs, gang: Any, report: Failed, now: float) -> None:
        if report.attempt == gang.order.attempt:
            real(gangs, gang, report, now)

    return _instead(Gangs, "_take_loss", take_loss)
