"""A run's measures: TTD, JCT, CRU, and where every second of every device went.

Each device's time is split so that it adds up to the TTD:

    busy      inside the training loop, whether or not the steps were counted in the end
    start     from the order to the first step: process, imports, data, weights
    transfer  the rest of an attempt: saving, handing over, pulling
    evaluate  attempts that only measure quality
    lost      attempts that brought nothing back: nobody knows what they did
    merge     between attempts, while the head was merging
    no_work   between attempts, while the run waited for work: for a job, or for a paused one
    idle      between attempts, otherwise

CRU is Σ busy / (devices × TTD), without the time in which there was no work. The paper's divides by
the slots that were allocated instead, which forgives devices left without work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite
from typing import TypeAlias

from hadar_cli.core import events
from hadar_cli.core.estimates.formula import estimate_steps_per_s
from hadar_cli.core.estimates.gangs import steps_of, steps_seen
from hadar_cli.core.estimates.quality import has_improved, higher_is_better
from hadar_cli.core.measures.summary import (
    DeviceSummary,
    JobSummary,
    Note,
    Overhead,
    PairRate,
    RunSummary,
)
from hadar_cli.core.measures.timeline import Timeline, gaps, trace
from hadar_cli.core.measures.ways import ways_of
from hadar_cli.core.model import Device, Job, Mix
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import JobState, RunState


def summarise(
    run: str,
    mix: Mix,
    devices: Sequence[Device],
    happened: Sequence[events.Event],
    goes_on: bool = False,
) -> RunSummary:
    """The measures of a run, finished or not, from its journal; see ``trace`` for ``goes_on``."""
    ledger = _Ledger(mix.jobs)
    for event in happened:
        ledger.add(event)
    timeline = trace((device.name for device in devices), happened, goes_on, mix.jobs)
    rates = _pair_rates(ledger.trained, mix, devices)
    states = ledger.state.jobs.values()
    ways = ways_of([state.job for state in states], devices, mix.policy.name, happened)
    jobs = tuple(replace(ledger.summary_of(state), ways=ways.get(state.job.id)) for state in states)
    each = tuple(_device_summary(device, ledger, timeline, rates) for device in devices)
    overhead = Overhead(
        *(fsum(getattr(device, part) for device in each) for part in Overhead.__slots__)
    )
    jcts = [job.jct_s for job in jobs if job.jct_s is not None]
    busy_s = fsum(device.busy_s for device in each)
    bound_s = ledger.bound_s
    return RunSummary(
        run=run,
        mix=mix.name,
        policy=mix.policy.name,
        state=ledger.ending,
        rounds=len(timeline.rounds),
        ttd_s=timeline.ends_at,
        mean_jct_s=sum(jcts) / len(jcts) if jcts else None,
        cru=_share(busy_s, len(each) * timeline.ends_at - overhead.no_work_s),
        cru_paper=_share(busy_s, _allocated_s(timeline)),
        lower_bound_s=_bound(ledger, mix, devices) if bound_s is None else bound_s,
        busy_s=busy_s,
        jobs=jobs,
        devices=each,
        overhead=overhead,
        rates=rates,
        notes=tuple(ledger.notes),
    )


def lower_bound(
    mix: Mix, devices: Sequence[Device], happened: Iterable[events.Event]
) -> float | None:
    """The fluid bound on the TTD of forked jobs, in seconds, at the speeds the run measured.

    The speeds are means over the whole run, so what the run did is itself a point of the linear
    program and no finished run can beat its own bound. Pairs never tried have modelled speeds.
    """
    ledger = _Ledger(mix.jobs)
    for event in happened:
        ledger.add(event)
    return _bound(ledger, mix, devices)


def _bound(ledger: _Ledger, mix: Mix, devices: Sequence[Device]) -> float | None:
    if not mix.jobs or not devices:
        return None
    from hadar_cli.core.estimates.fluid import forked_optimum  # numpy: slow to import
    from hadar_cli.core.estimates.throughput import RateModel

    examples = {job.throughput_class: job.id for job in mix.jobs}
    example_of = {job.id: examples[job.throughput_class] for job in mix.jobs}
    # The model forgets; told everything about a pair at once, it has nothing to forget.
    totals: _Totals = defaultdict(_Total)
    for (job, device), total in ledger.trained.items():
        totals[example_of[job], device].add(total.steps, total.seconds)
    model = RateModel(mix.jobs, devices)
    for (job, device), total in totals.items():
        model.observe(job, device, total.steps, total.seconds)
    rates = model.matrix([job.id for job in mix.jobs])
    states = [ledger.state.jobs[job.id] for job in mix.jobs]
    # Of a trial that was dropped, or a job that was cancelled, no more is trained than that.
    steps = [s.job.target_steps if s.cut_short is None else len(s.done) for s in states]
    if not any(steps):
        return None
    makespan_s = forked_optimum(steps, rates).makespan_s
    return makespan_s if isfinite(makespan_s) else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(slots=True)
class _Total:
    steps: int = 0
    seconds: float = 0.0

    def add(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self.seconds += seconds


_Totals: TypeAlias = dict[tuple[int, str], _Total]


def _alike(copy: events.CopyStarted, done: events.CopyFinished) -> list[tuple[str, int, float]]:
    """Of a gang that tells nothing of its members: no slower than equal shares would have it."""
    return [(device, done.steps, len(copy.gang) * done.train_s) for device in copy.gang]


class _Ledger:
    """Folds the events into what the summary needs beyond the run's state."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.state = RunState(jobs)
        self.trained: _Totals = defaultdict(_Total)  # by job and device
        self.counted: dict[int, Counter[str]] = defaultdict(Counter)
        self.counted_attempts: set[str] = set()
        self.losses: dict[int, float] = {}
        self.notes: list[Note] = []
        self._shared: set[str] = set()  # devices that other runs have wanted, too
        self.bound_s: float | None = None
        self.ending = "unfinished"
        self.bytes_in: Counter[int] = Counter()  # by job
        self._finished: dict[str, events.CopyFinished] = {}
        self._began: dict[int, float] = {}  # when the job's first copy did

    def add(self, event: events.Event) -> None:
        self.state.apply(event)
        match event:
            case events.CopyStarted() if event.purpose == "train":
                self._began.setdefault(event.job, event.t)
            case events.CopyFinished() if event.steps:
                copy = self.state.started[event.attempt]
                self._finished[event.attempt] = event
                if event.train_s > 0:
                    for device, steps, seconds in steps_seen(copy, event) or _alike(copy, event):
                        self.trained[copy.job, device].add(steps, seconds)
            case events.WeightsMerged():
                self._count(event)
            case events.RunFinished():
                self.ending, self.bound_s = "finished", event.lower_bound_s
            case events.RunStopped():
                self.ending = "stopped"
            case events.HeadStarted():
                self._note_resumption(event)
                self.ending = "unfinished"
        self._note(event)

    def _count(self, event: events.WeightsMerged) -> None:
        self.bytes_in[event.job] += event.bytes_in
        accepted = [self._finished.pop(attempt) for attempt in event.accepted]
        for copy in accepted:
            self.counted[event.job].update(steps_of(self.state.started[copy.attempt], copy))
            self.counted_attempts.add(copy.attempt)
        loss = mean_loss(accepted)
        if loss is not None:
            self.losses[event.job] = loss

    def _note_resumption(self, event: events.HeadStarted) -> None:
        if event.epoch > 1 and not event.goes_on:
            why = "" if self.ending == "stopped" else "the head before it ended without a word"
            self.notes.append(Note(event.t, "resumed", why))

    def _note(self, event: events.Event) -> None:
        match event:
            case events.CopyLost() if not self.state.was_called_back(event):
                self._note_copy(event.t, "copy lost", event.why, event.attempt)
            case events.WeightsMerged():
                for attempt, why in event.refused:
                    self._note_copy(event.t, "weights refused", why, attempt)
            case events.DeviceWanted() if event.by and event.device not in self._shared:
                self._shared.add(event.device)
                why = f"by turns with {', '.join(event.by)}"
                self.notes.append(Note(event.t, "shared", why, device=event.device))
            case events.DeviceLost() if event.reason is not Absence.TURN:
                what = "waits" if event.reason is Absence.AWAITED else "device lost"
                self.notes.append(Note(event.t, what, event.why, device=event.device))
            case events.JobCutShort() if not event.is_planned:
                self._note_job(event.t, "cut short", event.why, event.job)
            case events.PairAvoided():
                self._note_job(event.t, "avoided", event.why, event.job, event.device)
            case events.DeviceTooDear():
                why = f"handing in takes {event.cost_s:.1f} s there, more than a copy brings"
                self._note_job(event.t, "not forked", why, event.job, event.device)
            case events.SlotTooShort():
                self._note_job(event.t, "slot too short", event.text, event.job)
            case events.JobFailed():
                self._note_job(event.t, "failed", event.why, event.job)
            case events.RunStopped():
                self.notes.append(Note(event.t, "stopped", event.why))
            case _:
                self._note_request(event)

    def _note_request(self, event: events.Event) -> None:
        match event:
            case events.NodesReplaced():
                what = "nodes replaced" if event.gone else "nodes added"
                self.notes.append(Note(event.t, what, event.text))
            case events.NodeDrained():
                self.notes.append(Note(event.t, "drained", f"{event.node} was left"))
            case events.JobsAdded():
                for job in event.jobs:
                    self._note_job(event.t, "added", f"{job.target_steps:,} steps", job.id)
            case events.JobsPaused() | events.JobsContinued():
                what = "paused" if isinstance(event, events.JobsPaused) else "continued"
                for number in event.jobs:
                    self._note_job(event.t, what, "", number)

    def _note_job(self, t: float, what: str, why: str, job: int, device: str | None = None) -> None:
        self.notes.append(Note(t, what, why, self.state.jobs[job].job.name, device))

    def _note_copy(self, t: float, what: str, why: str, attempt: str) -> None:
        copy = self.state.started[attempt]
        self._note_job(t, what, why, copy.job, copy.device)

    # -- what it adds up to ------------------------------------------------------------------

    def summary_of(self, state: JobState) -> JobSummary:
        job, counted = state.job, self.counted[state.job.id]
        metric = next(iter(state.untrained or state.quality or {}), None)
        before, after = _get(state.untrained, metric), _get(state.quality, metric)
        higher = higher_is_better(metric, state.higher_is_better) if metric else None
        return JobSummary(
            name=job.name,
            workload=job.workload,
            steps_done=len(state.done),
            steps_target=job.target_steps,
            effective_steps=state.effective_steps,
            jct_s=None if state.finished_at is None else state.finished_at - job.arrives_s,
            metric=metric,
            value=after,
            untrained_value=before,
            loss=self.losses.get(job.id),
            merges=state.generation,
            copies=len(counted),
            lead_steps=max(counted.values(), default=0),
            speedup=self._speedup(state),
            bytes_in=self.bytes_in[job.id],
            failed=state.failed.why if state.failed else None,
            higher_is_better=higher,
            improved=has_improved(before, after, higher),
        )

    def _speedup(self, state: JobState) -> float | None:
        """How much faster the job got on than on the best single device that trained it."""
        totals = [total for (job, _), total in self.trained.items() if job == state.job.id]
        best = max((total.steps / total.seconds for total in totals), default=0.0)
        ends = self.state.now if state.finished_at is None else state.finished_at
        alone = best * (ends - self._began.get(state.job.id, ends))
        return state.effective_steps / alone if alone else None


def mean_loss(copies: Iterable[events.CopyFinished]) -> float | None:
    """The copies' training loss, weighted by their steps."""
    losses = [(copy.loss, copy.steps) for copy in copies if copy.loss is not None]
    weight = sum(steps for _, steps in losses)
    return sum(loss * steps for loss, steps in losses) / weight if weight else None


def _get(quality: Mapping[str, float] | None, metric: str | None) -> float | None:
    return quality.get(metric) if quality and metric else None


def _pair_rates(trained: _Totals, mix: Mix, devices: Sequence[Device]) -> tuple[PairRate, ...]:
    jobs, by_name = {job.id: job for job in mix.jobs}, {device.name: device for device in devices}
    rates = []
    for (job_id, device_name), total in trained.items():
        job, device = jobs[job_id], by_name.get(device_name)
        if device is None:
            continue
        estimated = estimate_steps_per_s(
            device.gpu,
            batch_size=job.batch_size,
            model_size=job.model_size,
            dataset_size=job.dataset_size,
            preset=job.launch.preset,
            emulated_speed=device.emulated_speed,
        )
        measured = total.steps / total.seconds
        rates.append(
            PairRate(job.name, device.name, total.steps, total.seconds, measured, estimated)
        )
    return tuple(rates)


def _device_summary(
    device: Device, ledger: _Ledger, timeline: Timeline, rates: Iterable[PairRate]
) -> DeviceSummary:
    spans = timeline.spans[device.name]
    trained = [span for span in spans if not (span.evaluates or span.lost)]
    busy_s = fsum(span.train_s for span in trained)
    between = list(gaps(spans, timeline.ends_at))
    parts = {
        "start_s": fsum(span.start_s for span in trained),
        "transfer_s": fsum(span.transfer_s for span in trained),
        "merge_s": fsum(timeline.merges.between(*gap) for gap in between),
        "evaluate_s": fsum(span.seconds for span in spans if span.evaluates and not span.lost),
        "lost_s": fsum(span.seconds for span in spans if span.lost),
        "no_work_s": fsum(timeline.no_work.between(*gap) for gap in between),
    }
    own = [rate for rate in rates if rate.device == device.name]
    own_s = fsum(rate.train_s for rate in own)
    return DeviceSummary(
        name=device.name,
        kind=device.kind,
        steps=sum(steps[device.name] for steps in ledger.counted.values()),
        jobs=tuple(
            ledger.state.jobs[job].job.name
            for job, steps in ledger.counted.items()
            if steps[device.name]
        ),
        steps_per_s=sum(rate.steps for rate in own) / own_s if own_s else None,
        estimated_steps_per_s=(
            fsum(rate.estimated_steps_per_s * rate.train_s for rate in own) / own_s
            if own_s
            else None
        ),
        busy_share=_share(busy_s, timeline.ends_at - parts["no_work_s"]) or 0.0,
        busy_s=busy_s,
        wasted_s=fsum(s.train_s for s in trained if s.attempt not in ledger.counted_attempts),
        idle_s=max(0.0, timeline.ends_at - busy_s - fsum(parts.values())),
        **parts,
    )


def _allocated_s(timeline: Timeline) -> float:
    """The rounds' lengths, each as often as there are devices that trained in it."""
    begins = [begin for begin, _ in timeline.rounds]
    allocated = set()
    for span in (span for spans in timeline.spans.values() for span in spans):
        if not span.evaluates:
            # A copy that was sent its order ahead trains in a later round than it was started in.
            ends = span.begin + span.start_s + span.train_s
            first, last = bisect_right(begins, span.begin), bisect_right(begins, ends - 1e-9)
            allocated |= {(i - 1, span.device) for i in range(first, max(first, last) + 1)}
    return fsum(timeline.rounds[i][1] - timeline.rounds[i][0] for i, _ in allocated if i >= 0)
