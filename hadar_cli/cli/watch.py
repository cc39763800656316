"""Looks at a run through its journal: once, or until it ends. For ``status``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.segment import SegmentLines

from hadar_cli.adapters.head import devices_of
from hadar_cli.adapters.store import RunStore, contradictions_of, read_journal
from hadar_cli.cli.conduct import can_show_live
from hadar_cli.cli.options import stderr, stdout
from hadar_cli.cli.status import standing
from hadar_cli.core.events import CopyFinished, Event
from hadar_cli.core.state import RunState
from hadar_cli.core.throughput import RateModel
from hadar_cli.report.lines import Lines
from hadar_cli.report.live import LiveView, title
from hadar_cli.report.scene import Scene
from hadar_cli.report.screen import frame

_LOOK_EVERY_S = 0.5
_AROUND_ROWS, _LOG_ROWS = 9, 8  # beside devices and jobs, of a single look


class Spectator:
    """Follows a run that another process drives, or that nobody drives any more."""

    def __init__(self, store: RunStore) -> None:
        self.store, self.facts = store, store.facts
        self.devices = devices_of(self.facts.nodes)
        self.state = RunState(self.facts.mix.jobs)
        self.rates = RateModel(self.facts.mix.jobs, self.devices)
        self.standing = "unfinished"
        self._journal, self._size, self._heard = store.journal_path, 0, 0
        self._last: Event | None = None

    def now(self) -> float:
        """The run's clock: it goes on while someone drives the run."""
        if self.standing != "running":
            return self.state.now
        return self.state.now + max(0.0, time.time() - self._journal.stat().st_mtime)

    def look(self, tell: Callable[[Event], object]) -> None:
        """Takes in what happened since the last look, and tells it event by event."""
        pid = self.store.holder()  # first: a head that has left by now has written its end before
        self.standing = "unfinished"  # while events of the past pass by, the clock stands
        size = self._journal.stat().st_size if self._journal.exists() else 0
        if size != self._size:
            self._size = size
            with contradictions_of(self.store):
                for event in read_journal(self._journal)[self._heard :]:
                    self._hear(event)
                    tell(event)
        self.standing = standing(self.state, self._last, pid if self._heard else None)

    def _hear(self, event: Event) -> None:
        self._heard += 1
        self._last = event
        self.state.apply(event)
        if isinstance(event, CopyFinished):
            started = self.state.started[event.attempt]
            self.rates.observe(started.job, started.device, event.steps, event.train_s)


def show(store: RunStore) -> None:
    """Prints one look at the run."""
    seen, console = Spectator(store), stdout()
    mix = seen.facts.mix
    scene = Scene(mix, seen.devices, seen.state, seen.rates, seen.now, guesses=True)
    seen.look(scene.happened)
    scene.driven = seen.standing == "running"
    footer = [_way_on(seen.standing, store)]
    height = len(seen.devices) + len(mix.jobs) + _AROUND_ROWS + _LOG_ROWS + len(footer)
    heading = title(seen.facts.id, mix)
    lines = frame(scene, heading, seen.standing, footer, console.width, height)
    console.print(SegmentLines(lines, new_lines=True), end="")


def _way_on(standing: str, store: RunStore) -> str:
    match standing:
        case "running":
            return f"driven by process {store.holder()}; look on with: hadar status --watch"
        case "finished":
            return f"see: hadar report {store.directory.name}"
    return f"continue with: hadar resume {store.directory.name}"


def watch(store: RunStore) -> None:
    """Shows the run as `hadar run` does until it ends or the user leaves; it goes on either way."""
    seen = Spectator(store)
    facts = seen.facts
    view: LiveView | Lines = Lines(facts.mix, seen.devices, sys.stdout)
    if can_show_live():
        view = LiveView(facts.id, facts.mix, seen.devices, stdout())
    try:
        with view.watch(seen.state, seen.rates, seen.now, guesses=True):
            while True:
                seen.look(view.happened)
                if seen.standing != "running":
                    break
                view.tick()
                time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        stderr().print(f"run {facts.id} goes on")
        return
    stderr().print(f"run {facts.id} is {seen.standing}; {_way_on(seen.standing, store)}")
