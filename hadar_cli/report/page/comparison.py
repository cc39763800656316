"""The charts of several runs beside each other; a run keeps its colour, dash and pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hadar_cli.report.format import NOTHING, duration, figures, percent
from hadar_cli.report.page.charts import completions
from hadar_cli.report.page.figure import (
    PARTS,
    Clock,
    Figure,
    Trace,
    axis,
    category,
    colour,
    label,
    layout,
    part_marker,
    pattern,
    percents,
)
from hadar_cli.report.record import RunRecord
from hadar_cli.report.terminal.runs import Comparison, JobOutcome


def of_runs(records: Sequence[RunRecord], compared: Comparison) -> Iterator[Figure]:
    yield _times(records)
    yield completions(records)
    yield _split(records)
    yield _job_times(compared)
    yield _effective(compared)


def _times(records: Sequence[RunRecord]) -> Figure:
    """TTD, mean JCT and the lower bound of each run."""
    measures: dict[str, list[float | None]] = {
        "TTD": [record.summary.ttd_s for record in records],
        "mean JCT": [record.summary.mean_jct_s for record in records],
        "lower bound of TTD": [record.summary.lower_bound_s for record in records],
    }
    clock = Clock.lasting(max(record.summary.ttd_s for record in records))
    names = [label(record.summary.run, 24) for record in records]
    data: list[Trace] = [
        {
            "type": "bar",
            "name": measure,
            "x": names,
            "y": [None if value is None else clock.at(value) for value in values],
            "text": [duration(value) for value in values],
            "textposition": "auto",
            "marker": {"color": colour(i), "pattern": pattern(i)},
            "hovertemplate": f"%{{x}}: {measure} %{{text}}<extra></extra>",
        }
        for i, (measure, values) in enumerate(measures.items())
    ]
    fastest = min(records, key=lambda record: record.summary.ttd_s).summary
    return Figure(
        "times",
        "Time to train everything",
        f"{fastest.run} had the shortest TTD, {duration(fastest.ttd_s)}.",
        data,
        layout(320, axis(type="category"), axis(clock.unit), barmode="group"),
        ("run", *measures),
        [
            [record.summary.run, *(duration(values[i]) for values in measures.values())]
            for i, record in enumerate(records)
        ],
    )


def _split(records: Sequence[RunRecord]) -> Figure:
    """All devices' time of each run, split."""
    shares = [_shares(record) for record in records]
    names = [label(record.summary.run, 24) for record in records]
    data: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names[::-1],
            "x": [round(share[part], 4) for share in shares[::-1]],
            "marker": part_marker(part),
            "hovertemplate": f"%{{y}}: {name} %{{x:.1%}}<extra></extra>",
        }
        for part, (name, _, _) in PARTS.items()
        if any(share[part] for share in shares)
    ]
    return Figure(
        "split",
        "Where the time went",
        "; ".join(f"{one.summary.run}: CRU {percent(one.summary.cru)}" for one in records),
        data,
        layout(130 + 40 * len(records), percents(""), axis(type="category"), barmode="stack"),
        ("run", *(name for name, _, _ in PARTS.values())),
        [
            [record.summary.run, *(percent(share[part]) for part in PARTS)]
            for record, share in zip(records, shares, strict=True)
        ],
    )


def _shares(record: RunRecord) -> dict[str, float]:
    summary = record.summary
    whole = len(summary.devices) * summary.ttd_s or 1.0
    seconds = {"busy_s": summary.busy_s} | {
        part: getattr(summary.overhead, part) for part in PARTS if part != "busy_s"
    }
    return {part: value / whole for part, value in seconds.items()}


def _job_times(compared: Comparison) -> Figure:
    longest = max((o.jct_s or 0.0 for job in compared.jobs for o in job.outcomes), default=0.0)
    clock = Clock.lasting(longest)
    return _by_job(
        compared,
        ("jcts", "When each job was done", "JCT of each job in each run."),
        lambda outcome: None if outcome.jct_s is None else clock.at(outcome.jct_s),
        lambda outcome: duration(outcome.jct_s),
        axis(clock.unit),
    )


def _effective(compared: Comparison) -> Figure:
    """What merging left of the steps, with the quality reached in the table."""

    def share(outcome: JobOutcome) -> float | None:
        return outcome.effective_steps / outcome.steps_done if outcome.steps_done else None

    def words(outcome: JobOutcome) -> str:
        quality = f", {outcome.metric} {figures(outcome.value)}" if outcome.metric else ""
        return percent(share(outcome)) + quality

    return _by_job(
        compared,
        ("effective", "Effective steps and quality", "Effective steps over steps counted."),
        share,
        words,
        percents("of steps counted"),
    )


def _by_job(
    compared: Comparison,
    words: tuple[str, str, str],
    value: Callable[[JobOutcome], float | None],
    text: Callable[[JobOutcome], str],
    yaxis: dict[str, object],
) -> Figure:
    """Bars of every job, one for each run; ``words`` are the figure's id, title and text."""
    names = [category(job.job) for job in compared.jobs]
    found = [{outcome.run: outcome for outcome in job.outcomes} for job in compared.jobs]
    data: list[Trace] = []
    for i, one in enumerate(compared.runs):
        outcomes = [by_run.get(one.run) for by_run in found]
        data.append(
            {
                "type": "bar",
                "name": label(one.run, 24),
                "x": names,
                "y": [value(outcome) if outcome else None for outcome in outcomes],
                "customdata": [text(outcome) if outcome else NOTHING for outcome in outcomes],
                "marker": {"color": colour(i), "pattern": pattern(i)},
                "hovertemplate": f"%{{x}}, {label(one.run, 24)}: %{{customdata}}<extra></extra>",
            }
        )
    return Figure(
        *words,
        data,
        layout(320, axis(type="category"), yaxis, barmode="group"),
        ("job", *(one.run for one in compared.runs)),
        [
            [
                job.job,
                *(text(by_run[one.run]) if one.run in by_run else NOTHING for one in compared.runs),
            ]
            for job, by_run in zip(compared.jobs, found, strict=True)
        ],
    )
