"""The charts of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hadar_cli.core.measures.summary import JobSummary, RunSummary
from hadar_cli.core.measures.timeline import Timeline, split_over_time
from hadar_cli.report.format import count, duration, figures, listed, percent, plain, rate, times
from hadar_cli.report.page.figure import (
    DASHES,
    GREY,
    PARTS,
    SYMBOLS,
    Clock,
    Figure,
    Trace,
    axis,
    category,
    colour,
    label,
    layout,
    mark,
    part_marker,
    percents,
    upright_line,
)
from hadar_cli.report.record import RunRecord

_CELLS = 120  # of the utilisation over time
_MOST_NAMED = 10  # jobs side by side, in half of the page's width


def of_run(record: RunRecord) -> Iterator[Figure]:
    """All charts but the Gantt and the jobs' own, in the order of the page."""
    yield completions([record])
    yield utilisation(record.timeline, record.summary)
    yield where_time_went(record.summary)
    if record.summary.rates:
        yield throughput(record.summary)
    yield steps(record.summary)


# -- progress ----------------------------------------------------------------------------------


def completions(records: Sequence[RunRecord]) -> Figure:
    """Jobs done and steps counted over time; of several runs, a pair of curves for each."""
    ends_at = max(record.summary.ttd_s for record in records)
    clock = Clock.lasting(ends_at)
    data: list[Trace] = []
    rows = []
    for position, record in enumerate(records):
        name = f"{label(record.summary.run)}: " if len(records) > 1 else ""
        hue = colour(position)
        done = _jobs_done(record)
        data.append(
            _curve(f"{name}jobs done", done, clock)
            | {
                "line": {
                    "shape": "hv",
                    "width": 3,
                    "color": hue,
                    "dash": DASHES[position % len(DASHES)],
                }
            }
        )
        if len(records) == 1:
            data.append(
                _curve("steps counted", _steps_counted(record), clock)
                | {"line": {"width": 2, "color": colour(1), "dash": "dash"}}
            )
        rows += [[record.summary.run, duration(t), percent(share)] for t, share in done[1:]]
    marks, lines = _limits(records[0], clock) if len(records) == 1 else ([], [])
    return Figure(
        "completions",
        "Progress" if len(records) == 1 else "Jobs done over time",
        "; ".join(_progress_words(record) for record in records),
        data,
        layout(
            320,
            clock.axis(max([ends_at, *(line["x0"] * clock.seconds for line in lines)])),
            percents("of all"),
            shapes=lines,
            annotations=marks,
            margin={"l": 8, "r": 12, "t": 24, "b": 8},
        ),
        ("run", "time", "jobs done"),
        rows,
    )


def _progress_words(record: RunRecord) -> str:
    jobs = record.summary.jobs
    done = sum(job.steps_done >= job.steps_target for job in jobs)
    words = f"{record.summary.run}: {done} of {count(len(jobs), 'job')} done"
    last = max((job.jct_s for job in jobs if job.jct_s is not None), default=None)
    return words if last is None or not done else f"{words}, the last after {duration(last)}"


def _curve(name: str, points: Sequence[tuple[float, float]], clock: Clock) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [clock.at(t) for t, _ in points],
        "y": [round(share, 4) for _, share in points],
        "hovertemplate": f"%{{y:.0%}} {name}<br>after %{{x:.2f}} {clock.unit}<extra></extra>",
    }


def _jobs_done(record: RunRecord) -> list[tuple[float, float]]:
    ends = sorted(h.finished_at for h in record.histories if h.finished_at is not None)
    points = [(t, (i + 1) / len(record.histories)) for i, t in enumerate(ends)]
    last = points[-1][1] if points else 0.0
    return [(0.0, 0.0), *points, (record.summary.ttd_s, last)]


def _steps_counted(record: RunRecord) -> list[tuple[float, float]]:
    target = sum(job.target_steps for job in record.facts.mix.jobs)
    gains = []
    for history in record.histories:
        before = 0
        for commit in history.commits:
            gains.append((commit.t, commit.steps - before))
            before = commit.steps
    points, total = [(0.0, 0.0)], 0
    for t, steps_more in sorted(gains):
        total += steps_more
        points.append((t, total / target))
    return points


def _limits(record: RunRecord, clock: Clock) -> tuple[list[Trace], list[Trace]]:
    """Marks for the time no schedule can beat, and for the time that was forecast."""
    times = {"bound": record.summary.lower_bound_s}
    if record.facts.forecast:
        times["forecast"] = record.facts.forecast.ttd_s
    known = {words: clock.at(t) for words, t in times.items() if t}
    # One above the other at the bottom, where the curves have left, for they may lie close.
    marks = [
        mark(x, f"{words} ", 0.02 + 0.07 * i) | {"xanchor": "right"}
        for i, (words, x) in enumerate(known.items())
    ]
    return marks, [upright_line(x, "dash", 1.5) for x in known.values()]


# -- where the time went -------------------------------------------------------------------------


def utilisation(timeline: Timeline, summary: RunSummary) -> Figure:
    clock = Clock.lasting(timeline.ends_at)
    shares = split_over_time(timeline, _CELLS) if timeline.ends_at else {}
    width_s = timeline.ends_at / _CELLS
    centres = [clock.at((cell + 0.5) * width_s) for cell in range(_CELLS)]
    data: list[Trace] = [
        {
            "type": "bar",
            "name": PARTS[part][0],
            "x": centres,
            "y": [round(share, 4) for share in row],
            "width": clock.at(width_s),
            "marker": part_marker(part),
            "hovertemplate": f"{PARTS[part][0]} %{{y:.0%}}<br>at %{{x:.2f}} {clock.unit}"
            "<extra></extra>",
        }
        for part, row in shares.items()
        if any(row)
    ]
    tenth = _CELLS // 10
    rows = [
        [f"{10 * i} to {10 * i + 10} %"]
        + [percent(sum(row[i * tenth : (i + 1) * tenth]) / tenth) for row in shares.values()]
        for i in range(10)
        if shares
    ]
    return Figure(
        "utilisation",
        "Utilisation over time",
        f"Training filled {percent(summary.cru)} of all device time (CRU).",
        data,
        layout(
            320, clock.axis(timeline.ends_at), percents("of devices"), barmode="stack", bargap=0
        ),
        ("of the run", *(PARTS[part][0] for part in shares)),
        rows,
    )


def where_time_went(summary: RunSummary) -> Figure:
    """Each device's time, split; the parts add up to the TTD."""
    devices = list(summary.devices)[::-1]  # plotly draws from below
    whole = summary.ttd_s or 1.0
    data: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [label(device.name, 16) for device in devices],
            "x": [round(getattr(device, part) / whole, 4) for device in devices],
            "customdata": [duration(getattr(device, part)) for device in devices],
            "marker": part_marker(part),
            "hovertemplate": f"%{{y}}: {name} %{{customdata}}, %{{x:.1%}}<extra></extra>",
        }
        for part, (name, _, _) in PARTS.items()
        if any(getattr(device, part) for device in devices)
    ]
    busiest = max(devices, key=lambda device: device.busy_share, default=None)
    says = (
        f"{busiest.name} trained most, {percent(busiest.busy_share)} of the time" if busiest else ""
    )
    return Figure(
        "split",
        "Where the time went",
        says,
        data,
        layout(
            120 + 34 * len(devices),
            percents(""),
            axis(type="category"),
            barmode="stack",
            bargap=0.3,
        ),
        ("device", *(name for name, _, _ in PARTS.values())),
        [
            [device.name, *(duration(getattr(device, part)) for part in PARTS)]
            for device in summary.devices
        ],
    )


# -- speed and steps -------------------------------------------------------------------------------


def throughput(summary: RunSummary) -> Figure:
    """Measured over estimated speed, a point for each pair; on the diagonal they agree."""
    devices = [device.name for device in summary.devices]
    data = [
        *_speeds_of_jobs(summary, devices),
        *(_shape_of(device, i) for i, device in enumerate(devices)),
        _diagonal([s for p in summary.rates for s in (p.steps_per_s, p.estimated_steps_per_s)]),
    ]
    factors = sorted(
        max(p.steps_per_s / p.estimated_steps_per_s, p.estimated_steps_per_s / p.steps_per_s)
        for p in summary.rates
    )
    return Figure(
        "throughput",
        "Speed: formula against measured",
        f"The formula was off by a factor of {factors[len(factors) // 2]:.2f} (median of "
        f"{count(len(factors), 'pair')}); what was measured replaced it as the run went on.",
        data,
        layout(
            380,
            axis("formula, steps/s", type="log", dtick="D2", tickformat="~g"),
            axis("measured, steps/s", type="log", dtick="D2", tickformat="~g"),
        ),
        ("job", "device", "formula", "measured", "measured / formula", "steps"),
        [
            [
                pair.job,
                pair.device,
                rate(pair.estimated_steps_per_s),
                rate(pair.steps_per_s),
                figures(pair.steps_per_s / pair.estimated_steps_per_s),
                f"{pair.steps:,}",
            ]
            for pair in summary.rates
        ],
        "Colours are jobs, shapes are devices.",
    )


def _speeds_of_jobs(summary: RunSummary, devices: list[str]) -> Iterator[Trace]:
    """A job's points have its colour, and each the shape of its device."""
    jobs = [job.name for job in summary.jobs]
    for job in dict.fromkeys(pair.job for pair in summary.rates):
        pairs = [pair for pair in summary.rates if pair.job == job]
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": label(job),
            "x": [pair.estimated_steps_per_s for pair in pairs],
            "y": [pair.steps_per_s for pair in pairs],
            "text": [label(pair.device) for pair in pairs],
            "marker": {
                "size": 12,
                "color": colour(jobs.index(job)),
                "symbol": [SYMBOLS[devices.index(pair.device) % len(SYMBOLS)] for pair in pairs],
                "line": {"width": 1, "color": GREY},
            },
            "hovertemplate": "%{text}: formula %{x:.3g}/s, measured %{y:.3g}/s",
        }


def _diagonal(speeds: list[float]) -> Trace:
    ends = [0.8 * min(speeds), 1.25 * max(speeds)]
    line = {"color": GREY, "dash": "dash", "width": 1.5}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "equal",
        "x": ends,
        "y": ends,
        "line": line,
        "hoverinfo": "skip",
    }


def _shape_of(device: str, position: int) -> Trace:
    """The device's shape for the legend, without a point."""
    marker = {"size": 9, "color": GREY, "symbol": SYMBOLS[position % len(SYMBOLS)]}
    name = label(device, 16)
    return {"type": "scatter", "mode": "markers", "name": name, "marker": marker} | {
        "x": [None],
        "y": [None],
        "legendgroup": "devices",
    }


def steps(summary: RunSummary) -> Figure:
    """Steps counted, how far they moved the merged model, and what the busiest copy did alone."""
    kinds: dict[str, tuple[list[float], str, str]] = {
        "counted": ([job.steps_done for job in summary.jobs], colour(4), ""),
        "effective": ([job.effective_steps for job in summary.jobs], colour(0), ""),
        "busiest copy alone": ([job.lead_steps for job in summary.jobs], GREY, "/"),
    }
    names = [category(job.name) for job in summary.jobs]
    targets = [job.steps_target for job in summary.jobs]
    data: list[Trace] = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": [round(v / target, 4) for v, target in zip(values, targets, strict=True)],
            "customdata": [f"{value:,.0f}" for value in values],
            "marker": {"color": fill, "pattern": {"shape": shape, "solidity": 0.3}},
            "hovertemplate": f"%{{x}}: %{{customdata}} steps {name}, %{{y:.0%}}<extra></extra>",
        }
        for name, (values, fill, shape) in kinds.items()
    ]
    counted = sum(job.steps_done for job in summary.jobs)
    effective = sum(job.effective_steps for job in summary.jobs)
    lost = [plain(job.name, 24) for job in summary.jobs if not job.forking_pays]
    return Figure(
        "steps",
        "Steps counted against effective",
        f"{counted:,} steps were counted; they moved the merged models as far as {effective:,.0f}"
        f" steps ({percent(effective / counted if counted else None)}). "
        + (f"Forking did not pay for {listed(lost)}." if lost else "Forking paid for every job."),
        data,
        layout(340, _job_axis(names), percents("of target", rangemode="tozero"))
        | {"barmode": "group"},
        (
            *("job", "target", "counted", "effective", "busiest copy alone", "copies", "merges"),
            "speed-up over the best device",
        ),
        [_steps_row(job) for job in summary.jobs],
        "An average of unequal copies moves less far than their steps add up to.",
    )


def _job_axis(names: list[str]) -> dict[str, Any]:
    """Names of many would lie across each other."""
    if len(names) <= _MOST_NAMED:
        return axis(type="category")
    return axis("jobs; their names in the table", type="category", showticklabels=False)


def _steps_row(job: JobSummary) -> list[str]:
    steps = (job.steps_target, job.steps_done, job.effective_steps, job.lead_steps)
    counts = str(job.copies), str(job.merges), times(job.speedup)
    return [job.name, *(f"{number:,.0f}" for number in steps), *counts]
