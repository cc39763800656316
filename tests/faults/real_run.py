"""One real run of ``hadar`` over a site: started, watched, resumed, and checked at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from threading import Lock

from hadar_cli.core import events
from hadar_cli.runs.store import RunStore, decode
from tests.faults import real_head
from tests.faults.checker import Violation
from tests.faults.real_site import Site

ROOT = Path(__file__).parents[2]
SLOT_S = 2.0
LONGEST_S = 120.0  # of a run with its fault, on a loaded machine
_ENV = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
_IMPORTED = ("hadar_cli.cli.runs.run", "hadar_cli.cli.runs.resume", "hadar_cli.ssh.transport")
MIX = """
name: real
slot_s: {slot_s}
merge: {{rule: mean, every_s: {every_s}, solo: 0.0}}
jobs:
  - {{script: job.py, name: job, steps: {steps}, batch_size: 4, fork: {copies}, args: ["{floats}"]}}
"""  # a number of copies: else a victim whose merges became dear is left alone, and never struck


GANG = """
name: real
slot_s: {slot_s}
policy: hadar
jobs:
  - {{script: job.py, name: job, steps: {steps}, batch_size: 4, gpus: {copies}, args: ["{floats}"]}}
"""


class ForkedHead:
    """A head, forked of a process that has everything imported: that is most of what a short one
    does. It is asked as ``subprocess.Popen`` is."""

    _context = get_context("forkserver")
    _lock = Lock()  # whoever starts one also looks after all others

    def __init__(self, words: tuple[str, ...], directory: Path) -> None:
        with self._lock:
            self._context.set_forkserver_preload(["tests.faults.real_head", *_IMPORTED])
            self._process = self._context.Process(
                target=real_head.begin, args=(words, directory, _ENV)
            )
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    def poll(self) -> int | None:
        with self._lock:
            return self._process.exitcode

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record of the journal, and when it was first seen there."""

    at: float
    event: events.Event


@dataclass
class RealRun:
    """A run in a directory of its own; ``dice`` gives jitter."""

    site: Site
    directory: Path
    dice: Random
    steps: int = 360
    floats: int = 1000
    every_s: float = 0.7
    slot_s: float = SLOT_S
    copies: int = 9
    mix: str = MIX
    longest_s: float = LONGEST_S
    seen: list[Seen] = field(default_factory=list)
    exits: list[tuple[int, str]] = field(default_factory=list)  # of every head: code, stderr
    _head: subprocess.Popen[bytes] | ForkedHead | None = None
    _offset: int = 0

    def __post_init__(self) -> None:
        (self.directory / "kept").mkdir(parents=True)
        (self.directory / "job.py").write_text(self.site.job)
        text = self.mix.format(
            slot_s=self.slot_s,
            every_s=self.every_s,
            copies=self.copies,
            steps=self.steps,
            floats=self.floats,
        )
        (self.directory / "mix.yaml").write_text(text)
        self.site.write_inventory(self.directory / "nodes.toml")

    @property
    def store(self) -> RunStore:
        return RunStore(self.directory / "runs" / self.directory.name)

    @property
    def head(self) -> int:
        assert self._head
        return self._head.pid

    # -- heads -------------------------------------------------------------------------------

    def start(self, *options: str) -> None:
        words = ("run", "mix.yaml", "-n", "nodes.toml", "--no-live", "--name", self.directory.name)
        self._start(*words, options=options)

    def resume(self, *options: str) -> None:
        """With no flags, as the message says."""
        self._start("resume", options=options)

    def _start(self, *words: str, options: tuple[str, ...]) -> None:
        words = ("--kept", "kept", *options, "--", *words)
        self._head = self._exec(words) if self.site.head_env else ForkedHead(words, self.directory)

    def _exec(self, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """With another environment from the beginning, such as another clock."""
        with (self.directory / "stderr").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.real_head", *words],
                cwd=self.directory,
                env={**os.environ, **_ENV, **self.site.head_env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def is_running(self) -> bool:
        return self._head is not None and self._head.poll() is None

    def kill(self) -> None:
        """Like kill -9, and waits until it is gone."""
        assert self._head
        self._head.kill()
        self._head.wait()

    def end_head(self) -> int:
        """Waits for the head's end, watching the journal; its exit code."""
        assert self._head
        self.await_that(lambda: not self.is_running(), self.longest_s, "I4: the head does not end")
        said = (self.directory / "stderr").read_text(errors="replace")
        code = self._head.poll()
        assert code is not None
        self.exits.append((code, said))
        return code

    # -- watching ----------------------------------------------------------------------------

    def look(self) -> None:
        """Takes up what is new in the journal."""
        try:
            with self.store.journal_path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        now = time.monotonic()
        self.seen += [Seen(now, decode(line)) for line in whole.splitlines()]

    def count(self, *kinds: type) -> int:
        return sum(isinstance(seen.event, kinds) for seen in self.seen)

    def first_after(self, at: float, *kinds: type) -> float | None:
        """How long after that moment the first such record was seen."""
        return next(
            (s.at - at for s in self.seen if s.at > at and isinstance(s.event, kinds)), None
        )

    def await_that(self, holds: Callable[[], object], within_s: float, what: str) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            self.look()
            if time.monotonic() > deadline:
                raise Violation(f"{what} within {within_s:.0f} s")
            time.sleep(0.02)
        self.look()

    def jitter(self, most_s: float) -> None:
        time.sleep(self.dice.uniform(0.0, most_s))
