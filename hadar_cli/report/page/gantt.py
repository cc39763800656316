"""Devices over time: a row a device, a bar for each stretch of a job, rounds as lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hadar_cli.core.measures.timeline import Span, Timeline
from hadar_cli.core.model import Job
from hadar_cli.report.format import duration, percent
from hadar_cli.report.page.figure import (
    Clock,
    Figure,
    Trace,
    axis,
    colour,
    label,
    layout,
    mark,
    pattern,
    upright_line,
)
from hadar_cli.report.terminal.gantt import key

_FINEST = 1500  # bars closer than this share of the time cannot be told apart
_ROOM_FOR_LETTER = 0.02
_MOST_LINES = 60
_MOST_NUMBERS = 14
AROUND, LOST = "start, transfer, evaluate", "lost"
_DEVICE_HIGH, _BELOW, _NAMES_A_ROW = 44, 46, 5  # pixels, pixels, about so many


@dataclass(frozen=True, slots=True)
class _Bar:
    device: str
    what: str | int  # a job in training, or AROUND or LOST
    begin: float
    end: float


def gantt(
    timeline: Timeline,
    jobs: Sequence[Job],
    id: str = "gantt",
    title: str = "Devices over time",
    until: float | None = None,
) -> Figure:
    """The chart; runs beside each other are drawn ``until`` the same time."""
    place = {job.id: i for i, job in enumerate(jobs)}
    until = until or timeline.ends_at
    clock = Clock.lasting(until)
    bars = [bar for spans in timeline.spans.values() for bar in _bars(spans, until)]
    data = [
        _trace(f"{key(i)}  {label(job.name)}", [bar for bar in bars if bar.what == job.id], clock)
        | {"marker": {"color": colour(i), "pattern": pattern(i), "line": {"width": 0}}}
        for i, job in enumerate(jobs)
    ]
    for what, fill, shape in ((AROUND, "rgba(128,128,128,0.45)", ""), (LOST, "#D55E00", "x")):
        if found := [bar for bar in bars if bar.what == what]:
            marker = {"color": fill, "pattern": {"shape": shape}, "line": {"width": 0}}
            data.append(_trace(what, found, clock) | {"marker": marker, "width": 0.35})
    data.append(_letters(bars, place, clock, until))
    lines, numbers = _rounds(timeline, clock, until)
    devices = [label(device, 16) for device in timeline.spans]
    bars_high, names_high = _DEVICE_HIGH * len(devices), 20 * (len(jobs) // _NAMES_A_ROW)
    frame = layout(
        150 + bars_high + names_high,
        clock.axis(until) | {"showgrid": False},
        axis(type="category", categoryorder="array", categoryarray=devices[::-1]),
        barmode="overlay",
        bargap=0.25,
        shapes=lines,
        annotations=numbers,
        margin={"l": 8, "r": 12, "t": 26, "b": 8},
    )
    frame["legend"]["y"] = -_BELOW / max(1, bars_high)  # below the axis and its title
    return Figure(
        id,
        title,
        _words(timeline, len(jobs)),
        data,
        frame,
        ("device", "job", "trained", "of the time", "stretches"),
        _rows(timeline, jobs),
        "Letters are jobs. Dotted lines begin rounds, numbered above.",
    )


def _words(timeline: Timeline, jobs: int) -> str:
    return (
        f"{len(timeline.spans)} devices trained {jobs} jobs for {duration(timeline.ends_at)}"
        f" in {len(timeline.rounds)} rounds."
    )


def _bars(spans: Iterable[Span], ends_at: float) -> Iterator[_Bar]:
    """The device's bars; neighbours of one kind that touch, as far as one can see, are one."""
    latest: dict[str | int, _Bar] = {}
    for span in spans:
        for begin, end, part in span.stages():
            what = span.job if part == "busy_s" else LOST if part == "lost_s" else AROUND
            last = latest.get(what)
            if last and begin - last.end < ends_at / _FINEST:
                latest[what] = replace(last, end=end)
                continue
            if last:
                yield last
            if end > begin:
                latest[what] = _Bar(span.device, what, begin, end)
    yield from latest.values()


def _trace(name: str, bars: Sequence[_Bar], clock: Clock) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [label(bar.device, 16) for bar in bars],
        "base": [clock.at(bar.begin) for bar in bars],
        "x": [clock.at(bar.end - bar.begin) for bar in bars],
        "customdata": [duration(bar.end - bar.begin) for bar in bars],
        "hovertemplate": f"{name} on %{{y}}<br>%{{customdata}} from %{{base:.2f}} {clock.unit}"
        "<extra></extra>",
    }


def _letters(bars: Sequence[_Bar], place: dict[int, int], clock: Clock, ends_at: float) -> Trace:
    """A job's letter in the midst of every stretch that has room for it."""
    trained = sorted(
        (bar for bar in bars if isinstance(bar.what, int)), key=lambda bar: (bar.device, bar.begin)
    )
    chosen = []
    for _, group in groupby(trained, key=lambda bar: (bar.device, bar.what)):
        stretch = list(group)
        if stretch[-1].end - stretch[0].begin > _ROOM_FOR_LETTER * ends_at:
            chosen.append(stretch[len(stretch) // 2])
    return {
        "type": "scatter",
        "mode": "text",
        "x": [clock.at((bar.begin + bar.end) / 2) for bar in chosen],
        "y": [label(bar.device, 16) for bar in chosen],
        "text": [f"<b>{key(place[int(bar.what)])}</b>" for bar in chosen],
        "textfont": {"color": "#111", "size": 13, "shadow": "0 0 4px #fff, 0 0 2px #fff"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _rounds(timeline: Timeline, clock: Clock, until: float) -> tuple[list[Trace], list[Trace]]:
    begins = [clock.at(begin) for begin, _ in timeline.rounds]
    every = 1 + len(begins) // _MOST_LINES
    lines = [upright_line(x) for x in begins[::every]]
    apart = until / clock.seconds / _MOST_NUMBERS
    numbers: list[Trace] = []
    for number, x in enumerate(begins, start=1):
        if not numbers or x - numbers[-1]["x"] >= apart:
            numbers.append(mark(x, str(number)))
    return lines, numbers


def _rows(timeline: Timeline, jobs: Sequence[Job]) -> list[list[str]]:
    rows = []
    for device, spans in timeline.spans.items():
        for job in jobs:
            mine = [span for span in spans if span.job == job.id and span.train_s]
            if mine:
                seconds = sum(span.train_s for span in mine)
                share = percent(seconds / timeline.ends_at)
                rows.append([device, job.name, duration(seconds), share, str(len(mine))])
    return rows
