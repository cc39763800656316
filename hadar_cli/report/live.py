"""The live view of a run: devices and jobs at a glance, history scrolling by above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from hadar_cli.app.ports import Progressed
from hadar_cli.core import events
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.state import JobState, RunState
from hadar_cli.core.throughput import RateModel
from hadar_cli.report.format import NOTHING, bar, figures, plain
from hadar_cli.report.lines import STOPPING, seconds_to_go, tell

_PAINT_EVERY_S = 0.4  # the head shares its cores with the training it shows
_NARROWEST, _WIDEST = 72, 120  # a terminal narrower than that crops the right edge
_HISTORY = 4  # rows of the screen left to the history
_AROUND_ROWS = 8  # rows that are neither a device's nor a job's
_ERRANDS = {"evaluate": "measuring", "prepare": "preparing"}
_DIM, _BOLD = Style(dim=True), Style(bold=True)
_RED, _GREEN = Style(color="red"), Style(color="green")

_Row: TypeAlias = tuple[str, Style | None]


@dataclass(frozen=True, slots=True)
class _Stint:
    """One copy under way and how far it has come."""

    started: events.CopyStarted
    steps: int
    seconds: float

    @property
    def quota(self) -> int:
        return sum(end - first for first, end in self.started.slices)

    @property
    def rate(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0


class LiveView:
    """Watches a run and paints it a few times a second, whenever the loop ticks."""

    def __init__(self, run: str, mix: Mix, devices: list[Device], console: Console) -> None:
        self._run, self._mix, self._devices = run, mix, devices
        self._names = [device.name for device in devices]
        self._live = Live(
            console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
        )
        self._progress: dict[str, Progressed] = {}
        self._loss: dict[int, float] = {}
        self._round_began = self._painted_at = self._ends_at = 0.0
        self._stopping = False

    def watch(self, state: RunState, rates: RateModel, clock: Callable[[], float]) -> LiveView:
        self._state, self._rates, self._clock = state, rates, clock
        self._live.update(self)
        self._live.start()
        return self

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    # -- what it hears -----------------------------------------------------------------------

    def interrupted(self) -> None:
        self._stopping = True
        self._say(self._clock(), STOPPING)

    def happened(self, event: events.Event) -> None:
        match event:
            case events.RoundPlanned():
                self._round_began = event.t
            case events.CopyFinished():
                self._progress.pop(event.attempt, None)
                if event.loss is not None:
                    self._loss[self._state.started[event.attempt].job] = event.loss
            case events.CopyLost():
                self._progress.pop(event.attempt, None)
        if isinstance(event, events.HeadStarted | events.RoundPlanned | events.WeightsMerged):
            left = seconds_to_go(self._state, self._rates, self._names, event.t)
            self._ends_at = event.t + left
        if line := tell(event, self._state):
            self._say(event.t, line)

    def progressed(self, report: Progressed) -> None:
        self._progress[report.attempt] = report
        if report.loss is not None:
            self._loss[self._state.started[report.attempt].job] = report.loss

    def tick(self) -> None:
        now = self._clock()
        if now - self._painted_at >= _PAINT_EVERY_S:
            self._painted_at = now
            self._live.refresh()

    def _say(self, t: float, line: str) -> None:
        self._live.console.print(Text(f"{clock_time(t):>7}  {line}"))

    # -- what it shows -----------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(_NARROWEST, min(options.max_width, _WIDEST))
        for line, style in self._lines(width, console.size.height):
            yield Segment(line, style)
            yield Segment.line()
        # The cursor rests on a line of its own: the ^C that a terminal echoes would else wrap.
        yield Segment("")

    def _lines(self, width: int, height: int) -> Iterator[_Row]:
        rows = height - _HISTORY - _AROUND_ROWS
        for_devices, for_jobs = _share(len(self._devices), len(self._state.jobs), rows)
        at_work = {stint.started.device: stint for stint in self._stints()}
        yield "─" * width, _DIM
        yield _fit(self._headline(), width), _BOLD
        yield self._overall_bar(width), None
        yield "", None
        yield from self._device_rows(at_work, for_devices, width)
        yield "", None
        yield from self._job_rows(list(at_work.values()), for_jobs, width)

    def _headline(self) -> str:
        now = self._clock()
        name = f"{self._mix.name} with {self._mix.policy.name}"
        if self._stopping:
            return f"{name} · stopping"
        slot_left = self._slot_left()
        round_ = f"round {self._state.round}" + (f", {slot_left:.0f} s left" if slot_left else "")
        to_go = f"about {clock_time(max(1.0, self._ends_at - now))} to go"
        if not self._state.unfinished:
            to_go = "last evaluations"
        return " · ".join([name, round_, f"{clock_time(now)} so far", to_go])

    def _overall_bar(self, width: int) -> str:
        target = sum(job.job.target_steps for job in self._state.jobs.values())
        share = sum(self._steps_done(job) for job in self._state.jobs.values()) / target
        words = f" {100 * share:3.0f} % of {target:,} steps · run {self._run}"
        return _fit(_bar(share, max(10, width - len(words))) + words, width)

    def _stints(self) -> Iterator[_Stint]:
        for job in self._state.jobs.values():
            for attempt, started in (*job.errands.items(), *job.active.items()):
                done = self._progress.get(attempt)
                yield _Stint(started, done.steps, done.seconds) if done else _Stint(started, 0, 0.0)

    def _steps_done(self, job: JobState) -> int:
        """Committed, handed in, and done by copies under way."""
        under_way = sum(self._progress[a].steps for a in job.active if a in self._progress)
        return len(job.done) + sum(f.steps for f in job.handed_in.values()) + under_way

    def _slot_left(self) -> float:
        return max(0.0, self._round_began + self._mix.slot_s - self._clock())

    # -- devices -----------------------------------------------------------------------------

    def _device_rows(self, at_work: dict[str, _Stint], rows: int, width: int) -> Iterator[_Row]:
        bar_width = _bar_width(width)
        spare = width - bar_width - 11 - 7 - 6 - 6
        name = gpu = spare // 4
        columns = _Columns(name, gpu, spare - name - gpu, bar_width, -11, -7, -6)
        yield columns.row("DEVICE", "GPU", "TRAINS", "", "STEPS", "STEPS/S", "LEFT"), _BOLD
        shown = self._devices
        if len(shown) > rows:
            shown = sorted(shown, key=lambda d: d.name not in at_work)[: rows - 1]
        for device in shown:
            cells = self._device_cells(device.name, at_work.get(device.name), bar_width)
            style = _RED if device.name in self._state.lost_devices else None
            yield columns.row(device.name, device.kind, *cells), style
        if len(shown) < len(self._devices):
            yield f"… {len(self._devices) - len(shown)} more", _DIM

    def _device_cells(self, name: str, stint: _Stint | None, bar_width: int) -> tuple[str, ...]:
        if stint is None:
            return NOTHING, "lost" if name in self._state.lost_devices else "idle"
        job = self._state.jobs[stint.started.job].job.name
        if stint.started.purpose in _ERRANDS:
            return job, _ERRANDS[stint.started.purpose]
        steps = f"{_count(stint.steps)}/{_count(stint.quota)}"
        if not stint.rate:
            return job, "starting", steps
        left = min((stint.quota - stint.steps) / stint.rate, self._slot_left())
        progress = _bar(stint.steps / stint.quota, bar_width)
        return job, progress, steps, figures(stint.rate), clock_time(left)

    # -- jobs --------------------------------------------------------------------------------

    def _job_rows(self, stints: list[_Stint], rows: int, width: int) -> Iterator[_Row]:
        bar_width = 2 * _bar_width(width) - 4
        columns = _Columns(width - bar_width - 45, bar_width, -13, -6, -7, -6, -7)
        yield columns.row("JOB", "", "STEPS", "COPIES", "LOSS", "MERGES", "LEFT"), _BOLD
        jobs = shown = list(self._state.jobs.values())
        if len(jobs) > rows:
            shown = sorted(jobs, key=lambda job: (job.is_trained, not job.active))[: rows - 1]
        for job in shown:
            style = _GREEN if job.is_trained else None
            yield columns.row(*self._job_cells(job, stints, bar_width)), style
        if hidden := len(jobs) - len(shown):
            done = sum(job.is_trained for job in jobs) - sum(job.is_trained for job in shown)
            yield f"… {hidden} more, {done} of them done", _DIM

    def _job_cells(self, job: JobState, stints: list[_Stint], bar_width: int) -> tuple[str, ...]:
        mine = [s for s in stints if s.started.job == job.job.id and s.started.purpose == "train"]
        done, target = self._steps_done(job), job.job.target_steps
        return (
            job.job.name,
            _bar(done / target, bar_width),
            f"{_count(done)}/{_count(target)}",
            str(len(mine)) if mine else NOTHING,
            figures(self._loss.get(job.job.id)),
            str(job.generation),
            self._job_left(job, mine, target - done),
        )

    def _job_left(self, job: JobState, mine: list[_Stint], steps: int) -> str:
        if job.is_trained:
            return "done"
        wait = job.job.arrives_s - self._clock()
        if wait > 0:
            return f"+{clock_time(wait)}"
        speed = sum(stint.rate for stint in mine)
        return clock_time(steps / speed) if speed else NOTHING


class _Columns:
    """Fixed columns, one space apart; a negative width sets its column to the right.

    Rich's tables lay themselves out anew for every frame, at ten times the cost.
    """

    def __init__(self, *widths: int) -> None:
        self._widths = widths

    def row(self, *cells: str) -> str:
        return " ".join(map(self._cell, cells, self._widths)).rstrip()

    @staticmethod
    def _cell(text: str, width: int) -> str:
        text = _fit(text, abs(width))
        padding = " " * (abs(width) - cell_len(text))
        return padding + text if width < 0 else text + padding


def clock_time(seconds: float) -> str:
    """`0:07`, `2:05`, `3:07:00`: short, and of steady width."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _share(devices: int, jobs: int, rows: int) -> tuple[int, int]:
    """How many rows devices and jobs get: all if there is room, else about half each."""
    rows = max(4, rows)
    if devices + jobs <= rows:
        return devices, jobs
    for_devices = min(devices, max(rows // 2, rows - jobs))
    return for_devices, rows - for_devices


def _count(steps: int) -> str:
    return f"{steps:,}" if steps < 100_000 else f"{steps / 1000:,.0f}k"


def _bar(share: float, width: int) -> str:
    return bar(share, width).replace(" ", "·")


def _bar_width(width: int) -> int:
    return 9 if width < 100 else 12


def _fit(text: str, width: int) -> str:
    """At most ``width`` cells of a text without control characters."""
    text = plain(text, 4 * width)
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
