"""A script as an ordinary process, without hadar, in a copy of its project folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import hadar_cli
from hadar_cli.core.model import Launch
from hadar_cli.node.contract import DATA, PREFIX, TRACE
from hadar_cli.project.data import place_of
from hadar_cli.project.selection import Selection
from hadar_cli.trial.record import Record, read_record

_PACKAGE = Path(hadar_cli.__file__).parents[1]
_LOOK_EVERY_S = 0.1
_MOST_OFTEN = 20  # times its patience, for a script that opens files and never updates
_MOST_COPIED = 256 << 20  # bytes of what stays behind in a run, of each folder or file
_NOT_READ = ("being a virtual environment", "being a run of hadar", "hadar's own rule")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # results that can be compared


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run by hand ended: its record, and what it said last if it failed."""

    record: Record
    is_late: bool
    code: int | None
    log: str


class ByHand:
    """A process under way. It trains so many updates, then leaves."""

    def __init__(self, folder: Path, launch: Launch, updates: int) -> None:
        """``folder`` is a copy of the project, and the launch's script lies in it."""
        self._trace, log = folder.with_suffix(".trace"), folder.with_suffix(".log")
        self._log = log
        code = [launch.script] if launch.script else ["-m", str(launch.module)]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [
                    *(launch.python or sys.executable, "-m", "hadar_cli.node.trace"),
                    *(str(updates), *code, *launch.args),
                ],
                cwd=folder,
                env=_environment(folder, launch) | {TRACE: str(self._trace)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> Ended:
        """Waits for its end, or until it has recorded nothing for so many seconds."""
        began = heard = time.monotonic()
        size, late = 0, False
        while self._process.poll() is None and not late:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_EVERY_S)
            now = time.monotonic()
            if self._trace.exists() and (recorded := self._trace.stat().st_size) != size:
                size, heard = recorded, now
            late = now > min(heard + seconds, began + _MOST_OFTEN * seconds)
        self.end()
        log = self._log.read_text(errors="replace")
        return Ended(read_record(self._trace), late, self._process.returncode, log)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _environment(folder: Path, launch: Launch) -> dict[str, str]:
    """As by hand, but for what the job of a mix asks for; hadar must be found by any Python."""
    own = {k: v for k, v in os.environ.items() if not _is_hadars(k)} | dict(launch.env)
    project = Path(launch.sync) if launch.sync else None
    data = [str(folder / place_of(Path(path), project)) for path in launch.data]
    paths = filter(None, (str(_PACKAGE), own.get("PYTHONPATH")))
    found = os.pathsep.join(data) or launch.data_dir or own.get(DATA, "")
    return {
        **own,
        **ONE_THREAD,
        **({DATA: found} if found else {}),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def link_data(launch: Launch, folder: Path) -> None:
    """Shows a job's data where by hand it is."""
    for path in map(Path, launch.data):
        place = folder / place_of(path, Path(launch.sync) if launch.sync else None)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(path)


def copy_project(chosen: Selection, target: Path) -> list[Path]:
    """The folder as it is by hand: what travels, and what stays behind too, unless it is large.

    Returns what is missing in the copy.
    """
    for path in chosen.files:
        place = target / path.relative_to(chosen.root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    missing = []
    for one in chosen.left_out:
        if one.rule in _NOT_READ:
            continue
        if one.bytes > _MOST_COPIED or one.path.is_symlink():
            missing.append(one.path)
            continue
        place = target / one.path.relative_to(chosen.root)
        try:
            if one.path.is_dir():
                shutil.copytree(one.path, place, dirs_exist_ok=True)
            elif one.path.is_file():
                shutil.copy(one.path, place)
        except OSError:  # it cannot be read, or is no plain file
            missing.append(one.path)
    return missing


def _is_hadars(variable: str) -> bool:
    return variable.startswith(PREFIX) and variable != DATA
