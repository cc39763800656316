"""A run told in plain lines, one an event: for pipes, log files and simple terminals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from hadar_cli.app.ports import Progressed
from hadar_cli.core import events
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.state import RunState
from hadar_cli.core.throughput import RateModel
from hadar_cli.report.format import duration
from hadar_cli.report.scene import Scene
from hadar_cli.report.words import describe, total_steps

STOPPING = (
    "stopping: copies hand in their work, nothing is lost "
    "(Ctrl-C again stops at once, without what is not merged yet)"
)


class Lines:
    """Prints what is worth telling, with the time since the run began."""

    def __init__(self, mix: Mix, devices: list[Device], out: TextIO) -> None:
        self._mix, self._devices, self._out = mix, devices, out

    def watch(
        self, state: RunState, rates: RateModel, clock: Callable[[], float], guesses: bool = False
    ) -> Lines:
        """``guesses``: nobody will report progress, as another process drives the run."""
        self._scene = Scene(self._mix, self._devices, state, rates, clock, guesses)
        return self

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def interrupted(self) -> None:
        self._print(self._scene.now, STOPPING)

    def happened(self, event: events.Event) -> None:
        for entry in self._scene.happened(event):
            self._print(entry.t, entry.words)
        if isinstance(event, events.RoundPlanned):
            self._print(event.t, self._round(event))

    def progressed(self, report: Progressed) -> None:
        self._scene.progressed(report)

    def tick(self) -> None: ...

    def _round(self, event: events.RoundPlanned) -> str:
        state = self._scene.state
        done, target = total_steps(state)
        line = f"{describe(event, state)}, {100 * done // target} % of all steps done"
        return f"{line}, {self._scene.left()} to go" if done < target else line

    def _print(self, t: float, line: str) -> None:
        print(f"{duration(t):>9}  {line}", file=self._out, flush=True)
