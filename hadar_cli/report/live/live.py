"""The live view of a run: the whole terminal, painted anew a few times a second.

It leaves no trace on the screen: when it closes, the log of the run is printed in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from hadar_cli.core import events
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Preparing, Progressed
from hadar_cli.report.format import clock, count, plain
from hadar_cli.report.live.lines import preparation, waiting_for
from hadar_cli.report.live.live_state import LiveState
from hadar_cli.report.live.screen import frame
from hadar_cli.report.log import Entry
from hadar_cli.runs.store import RunFacts

_PAINT_EVERY_S = 0.4  # the head shares its cores with the training it shows
_ON_LEAVING = 40  # lines of the log
_PROMISE = ("Ctrl-C: the copies hand in their work and stop; hadar resume goes on later",)
_WATCHING = ("Ctrl-C closes this view; the run goes on",)


class LiveView:
    """Watches a run and paints it whenever the loop ticks."""

    def __init__(
        self, facts: RunFacts, console: Console, past: Iterable[events.Event] = ()
    ) -> None:
        """``past``: what the run's state holds already when it is first watched."""
        self._facts, self._past = facts, past
        self._live = Live(console=console, auto_refresh=False, screen=True)
        self._painted_at = 0.0
        self._stopping, self._waiting = False, ""
        self._preparing: dict[str, str] = {}  # nodes that are not ready yet

    def take_facts(self, facts: RunFacts) -> None:
        """Who there is to see from now on."""
        self._facts = facts
        if hasattr(self, "live_state"):
            self.live_state.take_facts(facts)

    def watch(
        self, state: RunState, rates: RateModel, clock: Callable[[], float], guesses: bool = False
    ) -> LiveView:
        """``guesses``: nobody will report progress, as another process drives the run."""
        self._guesses = guesses
        if not hasattr(self, "live_state"):  # else jobs or nodes have come or gone
            before = RunState(self._facts.mix.jobs)
            self.live_state = LiveState(self._facts, before, rates, lambda: before.now, guesses)
            for event in before.following(self._past):
                self.live_state.happened(event)
        self.live_state.follow(state, rates, clock)
        self._live.update(self)
        self._live.start()
        return self

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._live.is_started:
            return
        self._live.stop()
        news = [entry for entry in self.live_state.story if entry.tone != "quiet"]
        trouble = [entry for entry in news[:-_ON_LEAVING] if entry.tone == "bad"]
        for entry in (*trouble[-_ON_LEAVING:], *news[-_ON_LEAVING:]):
            words = Text(f"{clock(entry.t):>7}  {entry.words}", overflow="fold")
            self._live.console.print(words, highlight=False)

    def happened(self, event: events.Event) -> None:
        self.live_state.happened(event)

    def progressed(self, report: Progressed) -> None:
        self.live_state.progressed(report)

    def preparing(self, report: Preparing) -> None:
        self._preparing[report.node] = preparation(report)
        if report.done >= report.total:
            del self._preparing[report.node]

    def interrupted(self) -> None:
        self._stopping = True
        self.paint()

    def tell(self, words: str) -> None:
        """What is no event of the run."""
        self.live_state.log.append(Entry(self.live_state.now, plain(words, 400), "bad"))

    def winding_up(self, devices: Sequence[str], most_s: float) -> None:
        self._waiting = f"; {waiting_for(devices, most_s)}"

    def tick(self) -> None:
        if self.live_state.now - self._painted_at >= _PAINT_EVERY_S:
            self.paint()

    def paint(self) -> None:
        self._painted_at = self.live_state.now
        self._live.refresh()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        standing = "stopping" if self._stopping else "running"
        width, height = options.max_width, options.height or console.height
        heading = title(self._facts)
        lines = frame(self.live_state, heading, standing, self._footer(), width, height)
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            yield from line

    def _footer(self) -> Sequence[str]:
        if self._stopping:
            return stopping(self.live_state, self._waiting)
        if self._guesses:
            return _WATCHING
        if self._preparing:
            return ("Before training, what jobs need is sent", " · ".join(self._preparing.values()))
        if self.live_state.is_waiting:
            run = self._facts.id
            return (f"hadar add {run} MIX brings work; hadar close {run} ends the run",)
        return _PROMISE


def title(facts: RunFacts) -> str:
    return f"{facts.mix.name} with {facts.mix.policy.name} · run {facts.id}"


def stopping(shown: LiveState, waiting: str = "") -> tuple[str, str]:
    """What Ctrl-C has begun, and what a second one would cost."""
    return (
        f"Stopping: copies hand in their work, hadar resume goes on later{waiting}",
        f"Ctrl-C again stops at once, without {count(shown.steps_unmerged, 'step')} not merged yet",
    )
