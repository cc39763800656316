"""A LiveState as lines of a terminal: the run, its devices, its jobs, its log. Pure drawing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from hadar_cli.report.format import NOTHING, bar, brief, clock, figures, fit, fit_name
from hadar_cli.report.live.eta import Estimate
from hadar_cli.report.live.live_state import DeviceNow, JobNow, LiveState
from hadar_cli.report.live.sparkline import heat, sparkline
from hadar_cli.report.log import Entry
from hadar_cli.report.terminal import gantt
from hadar_cli.report.terminal.grid import Cell, Column, Drawing, Grid, Line, cut

_WIDEST = 160
_LEAST_LOG = 3  # rows
_LEAST_QUIET = 2
_BOLD, _DIM = Style(bold=True), Style(dim=True)
_TONES = {"bad": Style(color="red"), "good": Style(color="green"), "quiet": _DIM, "": None}
_ENDINGS = {"done": _TONES["good"], "cut": _TONES["bad"], "failed": _TONES["bad"]}
# Blue is cold: from these shares of training on, a device is warmer.
_WARMTH = ((0.85, Style(color="green")), (0.5, Style(color="yellow")), (0.0, Style(color="blue")))

_DEVICES = (
    Column("DEVICE", 10, grows=1),
    Column("GPU", 10, grows=1, needs=110),
    Column("TRAINS", 14, grows=2),
    Column("THIS ROUND", 10, grows=1),
    Column("STEPS", 9, right=True),
    Column("STEPS/S", 7, right=True),
    Column("OF EST", 6, right=True, needs=70),
    Column("BUSY", 12, needs=76),
    Column("", 5, right=True),
)
_JOBS = (
    Column("JOB", 14, grows=4),
    Column("PROGRESS", 8, grows=4),
    Column("", 5, right=True),
    Column("STEPS", 11, right=True),
    Column("EFFECTIVE", 9, right=True, needs=110),
    Column("MERGES", 6, right=True, needs=110),
    Column("ON", 8, right=True, needs=84),
    Column("LOSS", 6, grows=1, needs=76),
    Column(" ", 6, right=True),
    Column("LEFT", 14, right=True),
)


def frame(
    live_state: LiveState, title: str, standing: str, footer: Sequence[str], width: int, height: int
) -> list[Line]:
    """At most ``height`` lines, none wider than ``width``.

    ``standing`` is how the run stands: `running`, or what else to say of it.
    """
    width = min(width, _WIDEST)
    left = live_state.left()
    devices, jobs = live_state.device_rows(), live_state.job_rows(left)
    for_devices, for_jobs = _share(len(devices), len(jobs), height - 7 - len(footer) - _LEAST_LOG)
    colours = {job.name: Style(color=gantt.colour(position)) for position, job in enumerate(jobs)}
    lines = [_headline(live_state, title, standing, left, width), _overall(jobs, width), []]
    lines += [*_device_lines(devices, colours, for_devices, width), []]
    lines += [*_job_lines(jobs, colours, for_jobs, width, live_state.now), []]
    for_log = height - len(lines) - len(footer)
    log = _log_lines(live_state.story, for_log, width)
    if footer:
        log += [[]] * (for_log - len(log))
    lines += [*log, *([Segment(fit(line, width), _BOLD)] for line in footer)]
    return [cut(line, width) for line in lines[:height]]


def _headline(live_state: LiveState, title: str, standing: str, left: Estimate, width: int) -> Line:
    words, ending = [title], f"{clock(live_state.now)} so far"
    if standing == "running" and live_state.is_waiting:
        ending += f" · {live_state.ahead(left)}"
    elif standing == "running":
        words.append(f"round {live_state.state.round}")
        if slot_left := live_state.slot_left():
            words[-1] += f", {brief(slot_left)} left"
        ending += f" · {live_state.ahead(left)}"
    else:
        words.append(standing)
    beginning = fit(" · ".join(words), width)
    gap = width - cell_len(beginning) - cell_len(ending)
    if gap < 2:
        return [Segment(fit(f"{beginning} · {ending}", width), _BOLD)]
    return [Segment(beginning + " " * gap + ending, _BOLD)]


def _overall(jobs: Sequence[JobNow], width: int) -> Line:
    target = sum(job.target for job in jobs)
    share = sum(job.steps for job in jobs) / target if target else 1.0
    words = f" {_percent(share)} of {target:,} steps"
    drawn = _bar(share)(max(10, width - len(words)))
    return [Segment(drawn, Style(color="green")), Segment(words)]


# -- devices -------------------------------------------------------------------------------------


def _device_lines(
    devices: Sequence[DeviceNow], colours: dict[str, Style], rows: int, width: int
) -> list[Line]:
    grid = Grid(_DEVICES, width)
    shown = devices
    if len(devices) > rows:
        shown = sorted(devices, key=lambda d: (d.doing == "idle", not d.job))[: rows - 1]
    lines = [grid.titles(_BOLD), *(grid.row(_device_cells(d, colours)) for d in shown)]
    if hidden := len(devices) - len(shown):
        idle = sum(d.doing == "idle" for d in devices) - sum(d.doing == "idle" for d in shown)
        lines.append([Segment(f"… {hidden} more devices, {idle} of them idle", _DIM)])
    return lines


def _device_cells(now: DeviceNow, colours: dict[str, Style]) -> dict[str, Cell | str]:
    lost = Style(color="red", bold=True) if now.doing == "lost" else None
    busy = now.busy[-1] if now.busy else 0.0
    warmth = next(style for share, style in _WARMTH if busy >= share)
    cells: dict[str, Cell | str] = {
        "DEVICE": Cell(now.device.name, lost),
        "GPU": Cell(now.device.kind, _DIM),
        "TRAINS": Cell(now.doing, lost or _DIM),
        "BUSY": Cell(lambda width: heat(now.busy[-width:]), warmth),
        "": Cell(_percent(busy), warmth),
    }
    if now.job:
        cells["TRAINS"] = Cell(partial(fit_name, now.job), colours.get(now.job))
    if now.doing in ("training", "idle") and now.goal:
        cells["THIS ROUND"] = Cell(_bar(now.steps / now.goal), colours.get(now.job or ""))
        cells["STEPS"] = f"{_count(now.steps)}/{_count(now.goal)}"
    elif now.job:
        cells["THIS ROUND"] = Cell(now.doing, _DIM)
    if now.rate:
        cells["STEPS/S"] = figures(now.rate)
    if now.of_estimate:
        cells["OF EST"] = _factor(now.of_estimate)
    return cells


def _factor(share: float) -> str:
    return _percent(share) if share < 9.995 else f"{share:.0f} ×"


# -- jobs ----------------------------------------------------------------------------------------


def _job_lines(
    jobs: Sequence[JobNow], colours: dict[str, Style], rows: int, width: int, now: float
) -> list[Line]:
    grid = Grid(_JOBS, width)
    shown = jobs
    if len(jobs) > rows:
        order = ("training", "failed", "cut", "waiting", "at rung", "paused", "coming")
        places = {standing: place for place, standing in enumerate(order)}
        shown = sorted(jobs, key=lambda job: places.get(job.standing, len(order)))[: rows - 1]
    lines = [grid.titles(_BOLD), *(grid.row(_job_cells(job, colours, now)) for job in shown)]
    if hidden := len(jobs) - len(shown):
        done = sum(j.standing == "done" for j in jobs) - sum(j.standing == "done" for j in shown)
        lines.append([Segment(f"… {hidden} more jobs, {done} of them done", _DIM)])
    return lines


def _job_cells(job: JobNow, colours: dict[str, Style], now: float) -> dict[str, Cell | str]:
    share = job.steps / job.target if job.target else 1.0
    loss = job.losses[-1] if job.losses else None
    return {
        "JOB": Cell(partial(fit_name, job.name), colours.get(job.name)),
        "PROGRESS": Cell(_bar(share), colours.get(job.name)),
        "": _percent(share),
        "STEPS": f"{_count(job.steps)}/{_count(job.target)}",
        "EFFECTIVE": f"{job.effective:,.0f}",
        "MERGES": str(job.merges),
        "ON": _way(job),
        "LOSS": Cell(lambda width: sparkline(job.losses, width), _DIM),
        " ": figures(loss),
        "LEFT": _job_left(job, now),
    }


def _way(job: JobNow) -> str:
    """On how many devices, and how these go together: by shared steps, or by merges."""
    if job.copies < 2:
        return str(job.copies or NOTHING)
    return f"{job.copies} {'shared' if job.shares else 'merged'}"


def _job_left(job: JobNow, now: float) -> Cell | str:
    match job.standing:
        case "done" | "cut" | "stopped" | "dropped":
            told = f"{job.standing} {clock(job.at)}" if job.at else job.standing
            return Cell(told, _ENDINGS.get(job.standing, _DIM))
        case "failed" | "cancelled" | "paused" | "at rung":
            return Cell(job.standing, _ENDINGS.get(job.standing, _DIM))
        case "coming":
            return Cell(f"in {brief((job.at or now) - now)}", _DIM)
        case "waiting" if not job.left:
            return Cell("waits", _DIM)
    return str(job.left) if job.left else NOTHING


# -- the log -------------------------------------------------------------------------------------


def _log_lines(story: Sequence[Entry], rows: int, width: int) -> list[Line]:
    return [
        [
            Segment(f"{clock(entry.t):>7}  ", _DIM),
            Segment(fit(entry.words, max(0, width - 9)), _TONES[entry.tone]),
        ]
        for entry in _newest(story, rows)
    ]


def _newest(story: Sequence[Entry], rows: int) -> list[Entry]:
    """The newest entries; the quiet ones, which come every round, push no news off the screen."""
    quiet = [i for i, entry in enumerate(story) if entry.tone == "quiet"]
    news = [i for i, entry in enumerate(story) if entry.tone != "quiet"]
    for_news = max(0, rows - min(_LEAST_QUIET, len(quiet)))
    kept = news[max(0, len(news) - for_news) :]
    kept += quiet[max(0, len(quiet) - max(0, rows - len(kept))) :]
    return [story[i] for i in sorted(kept)]


def _share(devices: int, jobs: int, rows: int) -> tuple[int, int]:
    """How many rows devices and jobs get: all if there is room, else about half each."""
    rows = max(4, rows)
    if devices + jobs <= rows:
        return devices, jobs
    for_devices = min(devices, max(rows // 2, rows - jobs))
    return for_devices, rows - for_devices


def _count(steps: int) -> str:
    return f"{steps:,}" if steps < 100_000 else f"{steps / 1000:,.0f}k"


def _percent(share: float) -> str:
    """Whole, and 100 only when all is done."""
    whole = round(100 * share)
    return f"{99 if whole == 100 and share < 1 else whole} %"


def _bar(share: float) -> Drawing:
    return lambda width: bar(share, width).replace(" ", "·")
