"""A run told in plain lines, one an event: for pipes, log files and simple terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from hadar_cli.core import events
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Preparing, Progressed
from hadar_cli.report.format import brief, bytes, duration, listed, plain
from hadar_cli.report.live.live_state import LiveState
from hadar_cli.report.words import describe, total_steps
from hadar_cli.runs.store import RunFacts

_EVERY_S = 5.0
STOPPING = (
    "stopping: copies hand in their work "
    "(Ctrl-C again stops at once, without what is not merged yet)"
)


def preparation(report: Preparing) -> str:
    """How far a node is with what it needs before it can train."""
    if report.now:
        return plain(f"{report.node}: {report.now}", 200)
    if report.done >= report.total:
        return f"{report.node}: {report.what} is there, {bytes(report.total)} were sent"
    return f"{report.node}: {report.what}, {bytes(report.done)} of {bytes(report.total)} sent"


def waiting_for(devices: Sequence[str], most_s: float) -> str:
    """Whom a run that ends early waits for."""
    return f"waiting for {listed(devices)} to hand in, {brief(most_s)} at the most"


class Lines:
    """Prints what is worth telling, with the time since the run began."""

    def __init__(self, facts: RunFacts, out: TextIO) -> None:
        self._facts, self._out = facts, out
        self._prepared_at: dict[str, float] = {}  # when a node's preparation was last told

    def take_facts(self, facts: RunFacts) -> None:
        """Who there is to see from now on."""
        self._facts = facts
        if hasattr(self, "_live_state"):
            self._live_state.take_facts(facts)

    def watch(
        self, state: RunState, rates: RateModel, clock: Callable[[], float], guesses: bool = False
    ) -> Lines:
        """``guesses``: nobody will report progress, as another process drives the run."""
        self._live_state = LiveState(self._facts, state, rates, clock, guesses)
        return self

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def interrupted(self) -> None:
        self._print(self._live_state.now, STOPPING)

    def happened(self, event: events.Event) -> None:
        for entry in self._live_state.happened(event):
            self._print(entry.t, entry.words)
        if isinstance(event, events.RoundPlanned):
            self._print(event.t, self._round(event))

    def progressed(self, report: Progressed) -> None:
        self._live_state.progressed(report)

    def preparing(self, report: Preparing) -> None:
        """Every few seconds of each node, and when it is done."""
        now, told_at = self._live_state.now, self._prepared_at.get(report.node)
        if report.done >= report.total or told_at is None or now >= told_at + _EVERY_S:
            self._prepared_at[report.node] = now
            self._print(now, preparation(report))

    def tell(self, words: str) -> None:
        """What is no event of the run."""
        self._print(self._live_state.now, plain(words, 400))

    def winding_up(self, devices: Sequence[str], most_s: float) -> None:
        self._print(self._live_state.now, waiting_for(devices, most_s))

    def tick(self) -> None: ...

    def _round(self, event: events.RoundPlanned) -> str:
        state = self._live_state.state
        done, target = total_steps(state)
        line = f"{describe(event, state)}, {100 * done // target} % of all steps done"
        return f"{line}, {self._live_state.left()} to go" if done < target else line

    def _print(self, t: float, line: str) -> None:
        print(f"{duration(t):>9}  {line}", file=self._out, flush=True)
