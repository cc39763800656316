"""The processes that give a run's points to its observers while a head drives it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from hadar_cli.core.events import Event, HeadStarted
from hadar_cli.engine.ports import Observer, Observers
from hadar_cli.observers.catalog import Choice
from hadar_cli.observers.writing import ObserverFiles
from hadar_cli.runs.store import RunStore, storage_errors

_LOOK_EVERY_S = 2.0
_TO_END_S = 60.0  # for the last points; a sink's library alone may take seconds to load
_TO_TELL_S = 2.0


class ObserverProcesses(Observer):
    """Starts a process for each observer once the run is held. What becomes of them never matters
    to the run: the journal has it all, and they can be made up for later."""

    def __init__(
        self, store: RunStore, choices: Iterable[Choice], tell: Callable[[str], None]
    ) -> None:
        self._store, self.tell = store, tell
        self._choices = list(choices)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self._looked_at = 0.0

    def beside(self, *others: Observer) -> Observer:
        """Who watches the run: the others, and these."""
        return Observers([*others, self])

    def happened(self, event: Event) -> None:
        if isinstance(event, HeadStarted):
            for choice in self._choices:
                if choice.name not in self._processes:
                    self._processes[choice.name] = self._start(choice)

    def _start(self, choice: Choice) -> subprocess.Popen[bytes]:
        files = ObserverFiles(self._store, choice.name)
        files.keep(choice)  # its fields may be secret: they are in no command line
        run = str(self._store.directory)
        words = ["-m", "hadar_cli.cli.main", "report", run, "--to", choice.name, "--follow"]
        with storage_errors(files.log), files.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the head
            )

    def tick(self) -> None:
        if time.monotonic() >= self._looked_at + _LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            for name in self._processes.keys() - self._told:
                if problem := self._problem(name):
                    self._told.add(name)
                    self.tell(f"warning: {problem}; training goes on, and it is tried again")

    def _problem(self, name: str) -> str:
        """What keeps an observer from writing; a process that fails tells why at its end."""
        files = ObserverFiles(self._store, name)
        if problem := files.problem:
            return problem
        if not self._processes[name].poll():
            return ""
        lines = files.log.read_text(errors="replace").strip().splitlines() or ["it ended early"]
        return f"{name}: {lines[-1].strip()[:300]}"

    def end(self, waits: bool = True) -> None:
        """Lets them write the last points; says what is missing, and how to make up for it."""
        until = time.monotonic() + (_TO_END_S if waits else 0.0)
        tell_at: float | None = time.monotonic() + _TO_TELL_S
        try:
            while self._open and time.monotonic() < until:
                if tell_at and time.monotonic() >= tell_at:
                    self.tell(f"waiting for {', '.join(self._open)} to take the last points")
                    tell_at = None
                time.sleep(0.05)
        finally:
            for name, process in self._processes.items():
                is_late = process.poll() is None
                if is_late:
                    process.kill()
                    process.wait()
                if is_late or process.returncode:
                    why = self._problem(name) or f"{name}: not all points were written in time"
                    run = self._store.directory
                    self.tell(f"warning: {why}\n  fix: hadar report {run} --to {name}")

    @property
    def _open(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.poll() is None]
