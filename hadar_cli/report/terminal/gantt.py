"""Devices over time in plain characters: a row a device, a letter a job."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from hadar_cli.core.measures.timeline import Span, Timeline
from hadar_cli.report.format import duration, plain

IDLE, AROUND, LOST = " ", "·", "×"
_KEYS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_TICK_CELLS = 12  # between labels


def key(position: int) -> str:
    """The letter of the job at that position in its mix."""
    return _KEYS[position] if position < len(_KEYS) else "?"


def colour(position: int) -> str:
    return _COLOURS[position % len(_COLOURS)]


def chart(timeline: Timeline, jobs: Sequence[int], width: int) -> list[Text]:
    """The chart's lines, none longer than ``width``; nothing when there is no time to show."""
    if not timeline.ends_at or not timeline.spans:
        return []
    labels = {device: plain(device, 16) for device in timeline.spans}
    margin = max(cell_len(label) for label in ("rounds", *labels.values()))
    cells = width - margin - 3
    position = {job: i for i, job in enumerate(jobs)}
    per_cell_s = timeline.ends_at / cells
    lines = []
    for device, spans in timeline.spans.items():
        row = Text(f"{set_cell_size(labels[device], margin)} ▕", no_wrap=True)
        for job in _dominant(spans, per_cell_s, cells):
            if isinstance(job, int):
                row.append(key(position[job]), style=colour(position[job]))
            else:
                row.append(job, style="red" if job == LOST else "dim")
        lines.append(row.append("▏"))
    rounds = [(int(begin / per_cell_s), str(i + 1)) for i, (begin, _) in enumerate(timeline.rounds)]
    lines.append(_axis("rounds", rounds, margin, cells))
    lines.append(_axis("", _ticks(timeline.ends_at, cells), margin, cells))
    return lines


def _dominant(spans: Sequence[Span], per_cell_s: float, cells: int) -> list[int | str]:
    """What filled most of each cell: a job in training, the work around it, or nothing."""
    filled: list[Counter[int | str]] = [Counter() for _ in range(cells)]
    for begin, end, what in _stages(spans):
        for cell in range(int(begin / per_cell_s), min(cells, int(end / per_cell_s) + 1)):
            overlap = min(end, (cell + 1) * per_cell_s) - max(begin, cell * per_cell_s)
            filled[cell][what] += max(0.0, overlap)  # type: ignore[assignment]  # seconds
    for counts in filled:
        counts[IDLE] = per_cell_s - sum(counts.values())  # type: ignore[assignment]
    return [max(counts, key=counts.__getitem__) for counts in filled]


def _stages(spans: Sequence[Span]) -> Iterator[tuple[float, float, int | str]]:
    kinds = {"lost_s": LOST}
    for span in spans:
        for begin, end, part in span.stages():
            yield begin, end, span.job if part == "busy_s" else kinds.get(part, AROUND)


def _ticks(ends_at: float, cells: int) -> list[tuple[int, str]]:
    fits = [tick for tick in _TICKS_S if tick * cells / ends_at >= _TICK_CELLS]
    step = fits[0] if fits else max(_TICKS_S) * (1 + int(ends_at / max(_TICKS_S) / 5))
    count = int(ends_at / step)
    return [(int(i * step * cells / ends_at), _moment(i * step)) for i in range(count + 1)]


def _moment(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else duration(seconds).replace(" 00 s", "")


def _axis(name: str, marks: Sequence[tuple[int, str]], margin: int, cells: int) -> Text:
    """Labels under their cells; those that would touch the one before are left out."""
    line = ""
    for cell, label in marks:
        mark = f"╵{label}"
        if cell >= len(line) + bool(line) and cell + len(mark) <= cells:
            line = line.ljust(cell) + mark
    return Text(f"{name:<{margin}}  {line}", style="dim", no_wrap=True)
