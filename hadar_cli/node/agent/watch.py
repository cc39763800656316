"""Watches the attempts under way on a node, by the files that they and their supervisors leave."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from hadar_cli.node.agent import processes
from hadar_cli.node.agent.nursery import Nursery
from hadar_cli.node.agent.plain_files import open_plain, read_json
from hadar_cli.node.agent.supervisor import ABANDONED, LEAVING
from hadar_cli.node.agent_events import Exited, Finished, Progress, WorkerEnd
from hadar_cli.node.contract import AttemptFiles

_PROGRESS_EVERY_S = 1.0
_LOG_TAIL_BYTES = 2000
_NEVER_STARTED_S = 60.0
_JUST_FORKED_S = 2.0  # until a worker's first file is there; its nursery may be gone by then
_DISK_PAGE = 4096  # a full disk may yet take less
_HALF_WRITTEN_S = 2.0  # a result that is not JSON yet may still become it

Event: TypeAlias = Progress | Finished | Exited


class AttemptWatch:
    """What becomes of each attempt: progress, then a result or its worker's end."""

    def __init__(self, run: Path, nursery: Nursery) -> None:
        self._run, self._nursery = run, nursery
        self._active: dict[str, Path] = {}  # attempt -> its worker's directory
        self._orphaned: dict[Path, float] = {}  # not yet started, its nursery gone since then
        self._since: dict[str, float] = {}
        self._told_progress: dict[str, tuple[float, int, object]] = {}
        self._results = Results()
        self.trained_s: dict[str, float] = {}  # by worker, as the last look has told

    def add(self, attempt: str, worker: Path) -> None:
        self._active[attempt] = worker
        self._since[attempt] = time.monotonic()

    def forget(self, attempt: str) -> None:
        """Without an end that was told, it is given up, and its worker with it."""
        if directory := self._active.pop(attempt, None):
            with suppress(OSError):
                (directory / ABANDONED).touch()

    def events(self) -> list[tuple[str, Event]]:
        """What has happened to the attempts under way since the last look."""
        found: list[tuple[str, Event]] = []
        self.trained_s.clear()
        for attempt, directory in list(self._active.items()):
            event: Event | None = self._result_of(attempt) or self._end_of(attempt, directory)
            if isinstance(event, Finished) and event.result.get("waiting") is not True:
                with suppress(OSError):
                    (directory / LEAVING).touch()
            if event:
                del self._active[attempt]
            else:
                event = self._progress_of(attempt)
            if event:
                found.append((attempt, event))
                if (seconds := _trained_s(event)) > 0:
                    self.trained_s[directory.name] = seconds
        return found

    def _result_of(self, attempt: str) -> Finished | None:
        files = AttemptFiles(self._run / "attempts" / attempt)
        result = self._results.read(files.result, time.monotonic())
        if result is None:
            return None
        checkpoint = files.checkpoint
        if checkpoint.is_symlink() or checkpoint.exists():
            return Finished(result, str(checkpoint), checkpoint.lstat().st_size)
        return Finished(result)

    def _end_of(self, attempt: str, directory: Path) -> Exited | None:
        """How the worker ended, None while it lives (or is only just being started)."""
        if ended := read_json_if_any(directory / "exit.json"):
            return _exited(directory, ended)
        known = processes_of(directory)
        if any(processes.is_alive(*pair) for pair in known):
            return None
        if known:
            ended = read_json_if_any(directory / "exit.json")  # if not just now
            return _exited(directory, ended or _vanished(directory))
        # One that an earlier agent asked for may come yet: its nursery does all it was told to.
        now, is_coming = time.monotonic(), self._nursery.may_start(directory)
        gone_since = now if is_coming else self._orphaned.setdefault(directory, now)
        if now < min(self._since[attempt] + _NEVER_STARTED_S, gone_since + _JUST_FORKED_S):
            return None
        with suppress(OSError):
            (directory / "stop").touch()  # should it come up after all
        log = _tail(self._nursery.log)
        end = WorkerEnd.NEVER_STARTED if is_coming else WorkerEnd.NO_NURSERY
        return Exited(-1, end, log=log)

    def _progress_of(self, attempt: str) -> Progress | None:
        now = time.monotonic()
        told_at, steps, phase = self._told_progress.get(attempt, (0.0, 0, ""))
        if now < told_at + _PROGRESS_EVERY_S:
            return None
        progress = read_json_if_any(AttemptFiles(self._run / "attempts" / attempt).progress) or {}
        done, about = progress.get("steps"), progress.get("phase", "")
        is_news = done != steps or about != phase
        if not isinstance(done, int) or done < steps or not is_news or "seconds" not in progress:
            self._told_progress[attempt] = (now, steps, phase)
            return None
        self._told_progress[attempt] = (now, done, about)
        longest_s = progress.get("longest_s", 0.0)
        return Progress(done, progress["seconds"], progress.get("loss"), about, longest_s)


def _trained_s(event: Event) -> float:
    """How long its copy has trained for this order, if it tells."""
    told: object = None
    if isinstance(event, Progress):
        told = event.seconds if event.steps else None
    elif isinstance(event, Finished) and isinstance(seconds := event.result.get("seconds"), dict):
        told = seconds.get("train")
    return told if isinstance(told, int | float) and math.isfinite(told) else 0.0


def processes_of(worker: Path) -> list[tuple[int, int]]:
    """Pid and start time of a worker and its supervisor."""
    known = read_json_if_any(worker / "worker.json")
    if not known:
        return []
    return [(int(pid), int(started)) for pid, started in (known["worker"], known["supervisor"])]


def read_json_if_any(path: Path) -> dict[str, Any] | None:
    """None where the file is missing, half written or no JSON object."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


class Results:
    """Reads results as scripts leave them. How long one has been unreadable is not told by the
    file's own time: the wall clock may have been set since."""

    def __init__(self) -> None:
        self._unreadable_since: dict[Path, float] = {}

    def read(self, path: Path, now: float) -> dict[str, Any] | None:
        """The result; in place of one that stays unreadable, what is wrong with it."""
        try:
            return read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if now < self._unreadable_since.setdefault(path, now) + _HALF_WRITTEN_S:
                return None
            return {"problem": str(error)[:_LOG_TAIL_BYTES]}


def _exited(worker: Path, ended: dict[str, Any]) -> Exited:
    words = (ended.get("end", ""), ended.get("detail", ""))
    return Exited(ended.get("code", -1), *words, _tail(worker / "log"))


def _vanished(directory: Path) -> dict[str, Any]:
    """How a worker ended whose supervisor left no word: it was killed, or had no disk to write to,
    which is no fault of the job's."""
    probe = directory / "probe"
    try:
        probe.write_bytes(bytes(_DISK_PAGE))
        probe.unlink()
    except OSError as error:
        return {"code": -1, "end": WorkerEnd.NO_DISK, "detail": error.strerror}
    return {"code": -1, "end": WorkerEnd.SUPERVISOR_KILLED}


def _tail(path: Path) -> str:
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return (file.read(_LOG_TAIL_BYTES) or b"").decode(errors="replace")
    except (OSError, ValueError):
        return ""
