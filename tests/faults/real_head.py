"""The real ``hadar`` in a process that watches itself, and may kill itself where it is told to.

    python -m tests.faults.real_head [--kept DIR] [--log FILE] [--die-at N] [--die-in POINT] -- …

``--kept`` links there whatever is about to be removed from the run's store, so that merges can be
recomputed later. ``--log`` lists every call that changes the run's directory. ``--die-at`` ends the
process, as kill -9 does, in front of the Nth of them; ``--die-in`` at a place in the code.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}

# Where a head may die: every place between two of its promises.
POINTS = {
    "lock": "hadar_cli.assembly:_drive",  # is reached with the lock in hand
    "intent": "hadar_cli.engine.tracker:Tracker.hand_out",
    "launch": "hadar_cli.nodes.executor:NodeExecutor.start",
    "poll": "hadar_cli.nodes.executor:NodeExecutor.wait",
    "pull": "hadar_cli.nodes.remote:RemoteConnection.pull",
    "verify": "hadar_cli.engine.tracker:Tracker.handed_in",
    "merge": "hadar_cli.runs.consolidation:StoreConsolidator.consolidate",
    "write": "hadar_cli.runs.store:RunStore.keep",
    "rename": "pathlib:Path.replace",
    "journal": "hadar_cli.runs.store:FileJournal.append",
    "commit": "hadar_cli.engine.tracker:Tracker.merged",
    "collect garbage": "hadar_cli.runs.housekeeping:Housekeeper._tidy",
    "put out": "hadar_cli.runs.housekeeping:Housekeeper._put_out_if_trained",
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal takes the process before this thread does anything


class Watch:
    """Numbers the calls that change a run's directory."""

    def __init__(self, kept: Path | None, log: Path | None, die_at: int) -> None:
        self._kept, self._die_at = kept, die_at
        self._log = log.open("w") if log else None
        self._number = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        sys.addaudithook(self._hear)
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            self._count("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        os.fsync = fsync  # type: ignore[assignment]

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            if event == "os.remove":
                self._keep(arguments[0])
            self._count(event, arguments[0])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            self._count(event, arguments[0])

    def _keep(self, path: Any) -> None:
        if self._kept and os.fspath(path).find("/objects/") > 0:
            with suppress(OSError):
                os.link(path, self._kept / Path(path).name)

    def _count(self, call: str, path: Any) -> None:
        if not isinstance(path, (str, os.PathLike)) or "runs/" not in os.fspath(path):
            return
        with self._lock:
            self._number += 1
            if self._log:
                self._log.write(f"{self._number} {call} {os.fspath(path)}\n")
                self._log.flush()
            if self._number == self._die_at:
                die()


def arm(word: str) -> None:
    """Dies before a place (``merge``), behind it (``merge!``), or the second time (``merge2``)."""
    name = word.rstrip("!").rstrip("0123456789")
    passages = int(word.rstrip("!")[len(name) :] or 1)
    module, _, place = POINTS[name].partition(":")
    *path, attribute = place.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    inner: Callable[..., Any] = getattr(owner, attribute)
    left = [passages]

    @functools.wraps(inner)
    def deadly(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not word.endswith("!"):
            die()
        answer = inner(*arguments, **named)
        if left[0] == 0:
            die()
        return answer

    setattr(owner, attribute, deadly)


def begin(words: Sequence[str], directory: Path, settings: dict[str, str]) -> None:
    """The same in a process that was forked of a warm one."""
    os.setsid()
    os.chdir(directory)
    os.environ.update(settings)
    with (directory / "stderr").open("wb") as errors, open(os.devnull, "r+b") as nothing:
        for source, number in ((nothing, 0), (nothing, 1), (errors, 2)):
            os.dup2(source.fileno(), number)
    sys.argv = ["real_head", *words]
    main()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--die-in")
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    if options.die_in:
        arm(options.die_in)
    Watch(options.kept, options.log, options.die_at).install()
    sys.argv = ["hadar", *options.words]
    from hadar_cli.cli.main import main as hadar

    hadar()


if __name__ == "__main__":
    main()
