"""Runs side by side: the same measures of each, and which is best in what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hadar_cli.core.measures.summary import JobSummary, RunSummary
from hadar_cli.report.format import NOTHING, duration, figures, percent, plain
from hadar_cli.report.record import RunRecord
from hadar_cli.report.terminal.summary import STATE_STYLES
from hadar_cli.report.terminal.tables import BEST, measured, name, table

# Measures of which one run can be the best, by title: field, and whether more is better.
MEASURES = {
    "TTD": ("ttd_s", False),
    "× bound": ("over_bound", False),
    "mean JCT": ("mean_jct_s", False),
    "CRU": ("cru", True),
    "effective": ("effective_share", True),
}
_WIDEST = 140
_ROOMY = 100  # columns from which the table shows everything
_NAME = 24


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run in one row; its names are those in the JSON."""

    run: str
    mix: str
    policy: str
    slot_s: float
    seed: int
    state: str
    devices: int
    rounds: int
    ttd_s: float
    over_bound: float | None  # TTD over the run's own lower bound
    mean_jct_s: float | None
    cru: float | None
    effective_share: float | None  # effective steps over counted ones


@dataclass(frozen=True, slots=True)
class JobOutcome:
    run: str
    jct_s: float | None
    steps_done: int
    effective_steps: float
    metric: str | None
    value: float | None


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """A job in every run that had it."""

    job: str
    outcomes: tuple[JobOutcome, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    runs: tuple[ComparedRun, ...]
    best: dict[str, str]  # a measure's field: the run that is best in it
    jobs: tuple[ComparedJob, ...]
    caveats: tuple[str, ...]  # why the runs may not be comparable


def compare(records: Sequence[RunRecord]) -> Comparison:
    runs = tuple(_row(record) for record in records)
    names = dict.fromkeys(job.name for record in records for job in record.summary.jobs)
    return Comparison(
        runs,
        {field: best for field, more in MEASURES.values() if (best := _best(runs, field, more))},
        tuple(_job(name, records) for name in names),
        tuple(_caveats(records)),
    )


def _row(record: RunRecord) -> ComparedRun:
    mix, summary = record.facts.mix, record.summary
    counted = sum(job.steps_done for job in summary.jobs)
    return ComparedRun(
        run=summary.run,
        mix=summary.mix,
        policy=summary.policy,
        slot_s=mix.slot_s,
        seed=mix.seed,
        state=summary.state,
        devices=len(summary.devices),
        rounds=summary.rounds,
        ttd_s=summary.ttd_s,
        over_bound=_over_bound(summary),
        mean_jct_s=summary.mean_jct_s,
        cru=summary.cru,
        effective_share=(
            sum(job.effective_steps for job in summary.jobs) / counted if counted else None
        ),
    )


def _over_bound(summary: RunSummary) -> float | None:
    if summary.state != "finished" or not summary.lower_bound_s:
        return None
    return summary.ttd_s / summary.lower_bound_s


def _best(runs: Sequence[ComparedRun], field: str, more: bool) -> str | None:
    """The best of the finished runs, if one can see a difference between them."""
    values = {
        one.run: value
        for one in runs
        if one.state == "finished" and (value := getattr(one, field)) is not None
    }
    if len({measure_text(field, value) for value in values.values()}) < 2:
        return None
    return (max if more else min)(values, key=values.__getitem__)


def _job(name: str, records: Sequence[RunRecord]) -> ComparedJob:
    def outcome(run: str, job: JobSummary) -> JobOutcome:
        return JobOutcome(
            run, job.jct_s, job.steps_done, job.effective_steps, job.metric, job.value
        )

    return ComparedJob(
        name,
        tuple(
            outcome(record.summary.run, job)
            for record in records
            for job in record.summary.jobs
            if job.name == name
        ),
    )


def _caveats(records: Sequence[RunRecord]) -> Iterator[str]:
    first, *others = records
    wanted = {job.name: job.target_steps for job in first.facts.mix.jobs}
    there = sorted(device.name for device in first.devices)
    for record in others:
        run, mix = record.summary.run, record.facts.mix
        if {job.name: job.target_steps for job in mix.jobs} != wanted:
            yield f"{run} trained other jobs than {first.summary.run}: their times say little"
        if sorted(device.name for device in record.devices) != there:
            yield f"{run} had other devices than {first.summary.run}"
    for record in records:
        if record.summary.state != "finished":
            yield f"{record.summary.run} is {record.summary.state}: its times are so far only"


# -- on the terminal -------------------------------------------------------------------------


def measure_text(field: str, value: float | None) -> str:
    """A measure as people read it."""
    if field == "over_bound":
        return NOTHING if value is None else f"{value:.3f}"
    return percent(value) if field in ("cru", "effective_share") else duration(value)


def show(comparison: Comparison, console: Console) -> None:
    width = min(console.width, _WIDEST)
    for part in _parts(comparison, roomy=width >= _ROOMY):
        console.print(part, width=width, no_wrap=True)


def _parts(comparison: Comparison, roomy: bool) -> Iterator[RenderableType]:
    yield ""
    yield _runs(comparison, roomy)
    remark = f"{BEST} best   × bound: TTD over the least possible"
    remark += "   effective: of steps counted" * roomy
    yield Text(remark, "dim", overflow="ellipsis")
    for caveat in comparison.caveats:
        yield Text(f"note: {plain(caveat, 200)}", "yellow", overflow="ellipsis")
    yield ""
    yield Text.assemble(("Jobs", "bold"), ("   JCT, and quality when trained", "dim"))
    yield _jobs(comparison)
    yield ""


def _runs(comparison: Comparison, roomy: bool) -> Table:
    measures = [one for one in MEASURES.items() if roomy or one[0] != "effective"]
    titles = ["~run", "~policy", *(("~mix", "~state") if roomy else ()), ">slot"]
    titles += [*(f">{title}" for title, _ in measures), ">rounds"]
    rows = table(*titles, gap=2 if roomy else 1)
    for one in comparison.runs:
        state = Text(one.state, STATE_STYLES.get(one.state, ""), no_wrap=True)
        cells = [_cell(comparison, one, field) for _, (field, _) in measures]
        more = (name(one.mix), state) if roomy else ()
        slot = f"{one.slot_s:g} s"
        rows.add_row(name(one.run), name(one.policy), *more, slot, *cells, str(one.rounds))
    return rows


def _cell(comparison: Comparison, one: ComparedRun, field: str) -> Text:
    text = measure_text(field, getattr(one, field))
    return measured(text, comparison.best.get(field) == one.run)


def _jobs(comparison: Comparison) -> Table:
    rows = table("~job", *(f">{plain(one.run, _NAME)}" for one in comparison.runs))
    for job in comparison.jobs:
        by_run = {outcome.run: outcome for outcome in job.outcomes}
        rows.add_row(name(job.job), *(_outcome(by_run.get(one.run)) for one in comparison.runs))
    return rows


def _outcome(outcome: JobOutcome | None) -> str:
    if outcome is None:
        return NOTHING
    quality = f"  {plain(outcome.metric, 12)} {figures(outcome.value)}" if outcome.metric else ""
    return duration(outcome.jct_s) + quality
