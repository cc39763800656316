"""What runs have left on a node, in files and processes, and how to be rid of it.

A place is where one node keeps its runs: ``<base>/<run>/<tail>`` for every run. Only directories
that hadar makes are ever looked into or removed; links are not followed.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadar_cli.node.agent import processes
from hadar_cli.node.agent.bootstrap import COMMAND
from hadar_cli.node.agent.plain_files import open_plain, read_json
from hadar_cli.node.contract import WORKER
from hadar_cli.node.lease import Lease

Process = tuple[int, int]  # pid and start time
_SHARED = ("code", "data", "venvs")
_GONE_S = 10.0
_LEASE_S = 30.0  # a head that lives renews its lease far more often
_BOOTSTRAP = COMMAND.partition("'")[2].rstrip("'").encode()  # as the shell hands it on


@dataclass(frozen=True, slots=True)
class Place:
    """Where this node keeps its runs; ``run`` narrows it to one of them."""

    base: Path
    tail: str
    run: str | None = None
    workdir: Path | None = None  # of what runs share, which is removed when all runs are

    @classmethod
    def of(cls, request: dict[str, Any]) -> Place:
        shared = request.get("shared")
        return cls(
            Path(request["base"]).expanduser(),
            request["tail"],
            request.get("run"),
            Path(shared).expanduser() if shared and not request.get("run") else None,
        )

    @property
    def shared(self) -> list[Path]:
        """Code, data and virtual environments that were sent or made for several runs."""
        return [self.workdir / name for name in _SHARED] if self.workdir else []

    def runs(self) -> Iterator[tuple[str, Path]]:
        """Each run's name and its directory of this node."""
        try:
            names = [self.run] if self.run else sorted(os.listdir(self.base))  # noqa: PTH208
        except OSError:
            return
        for name in names:
            directory = self.base / name / self.tail
            if directory.is_dir() and not directory.is_symlink():
                yield name, directory

    def users(self) -> Iterator[tuple[str, Path]]:
        """Whoever uses what ``place`` has: its runs; with what is shared, all nodes' runs."""
        if not self.workdir:
            yield from self.runs()
            return
        for other in self.base.glob("/".join(("*", *Path(self.tail).parts[:-1], "*"))):
            if other.is_dir() and not other.is_symlink():
                yield other.relative_to(self.base).parts[0], other


def measure(place: Place) -> dict[str, Any]:
    """Bytes and processes, run by run and in all."""
    runs: list[dict[str, Any]] = [
        {"run": name, "bytes": _bytes(directory), "processes": len(living(directory))}
        for name, directory in place.runs()
    ]
    code_bytes = sum(_bytes(path) for path in place.shared)
    return {
        "runs": runs,
        "code_bytes": code_bytes,
        "bytes": code_bytes + sum(run["bytes"] for run in runs),
        "processes": sum(run["processes"] for run in runs),
    }


def driven(place: Place, held: Collection[str] = ()) -> list[str]:
    """Runs that a head is at work on: it renewed its lease just now, and its copies live. Those
    whose tokens are ``held`` are the caller's; another run may have the name of one of them.

    Where what runs share is to go, those of other nodes with the same disk count as well. On a
    machine that merely shares the disk, such as a login node, copies cannot be seen.
    """
    others = ((name, there) for name, there in place.users() if _token_of(there) not in held)
    return sorted({name for name, there in others if _is_driven(there)})


def _token_of(directory: Path) -> object:
    """Of the run that was there last."""
    with suppress(OSError, ValueError):
        return read_json(directory / "fence.json").get("run")
    return None


def stop(place: Place) -> None:
    """Ends every process of the runs and returns when they are gone."""
    deadline = time.monotonic() + _GONE_S
    for _, directory in place.runs():
        while (left := living(directory)) and time.monotonic() < deadline:
            for pid, started in left:
                processes.kill_group(pid, started)
                if processes.is_alive(pid, started):
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def remove(place: Place) -> None:
    """Stops what still runs, then removes the runs' files and the directories left empty."""
    stop(place)
    for _, directory in place.runs():
        Lease(directory / "lease").forget()
        shutil.rmtree(directory, ignore_errors=True)
        _remove_empty(directory.parent, place.base)
    for path in place.shared:
        shutil.rmtree(path, ignore_errors=True)
    if place.workdir:
        within = place.base.is_relative_to(place.workdir)
        _remove_empty(place.base if within else place.workdir, place.workdir)


def living(directory: Path) -> list[Process]:
    """Processes of one run: agent, nursery, workers with their supervisors, and strays."""
    found = {pair for pair in _recorded(directory) if processes.is_alive(*pair)}
    for pid in (*_strays(directory), *_attendants(directory)):
        found.add((pid, processes.start_time(pid) or 0))
    return sorted(pair for pair in found if pair[1] and pair[0] != os.getpid())


def our_pids(place: Place) -> set[int]:
    return {pid for _, directory in place.runs() for pid, _ in living(directory)}


def _recorded(directory: Path) -> Iterator[Process]:
    for path in directory.glob("workers/*/worker.json"):
        with suppress(OSError, ValueError, TypeError):
            for pid, started in read_json(path).values():
                yield int(pid), int(started)


def _strays(directory: Path) -> Iterator[int]:
    """Whatever workers started carries their mark in its environment."""
    mark = f"{WORKER}=".encode() + os.fsencode(directory.resolve()) + b"/"
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes():
                yield int(path.parent.name)


def _attendants(directory: Path) -> Iterator[int]:
    """Nurseries, known by where they log to, and the agents that started them. Agents that share
    one are known by their note of it, which they hold open."""
    log, note = str(directory.resolve() / "nursery.log"), directory.resolve() / "nursery.json"
    if note.exists():
        yield from _holders(str(note))
        with suppress(OSError, ValueError, KeyError, TypeError):
            log = str(read_json(note)["log"])
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if os.readlink(path / "fd" / "2").removesuffix(" (deleted)") == log:  # noqa: PTH115
                yield int(path.name)
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                command = Path(f"/proc/{parent}/cmdline").read_bytes()
                if b"agent/agent.py" in command or _BOOTSTRAP in command:
                    yield int(parent)


def _holders(file: str) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(path) == file:  # noqa: PTH115
                yield int(path.parts[2])


def _is_driven(directory: Path) -> bool:
    lease = Lease(directory / "lease")
    is_here = lease.is_fresh(_LEASE_S) and bool(living(directory))
    return is_here or lease.is_fresh_elsewhere(_LEASE_S)


def _bytes(directory: Path) -> int:
    """What the files take up, links counted as links."""
    total = 0
    for parent, _, files in os.walk(directory):
        for name in files:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


def _remove_empty(directory: Path, top: Path) -> None:
    """Removes the directory and those above it, up to ``top``, as long as they are empty."""
    for path in (directory, *directory.parents):
        try:
            path.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        if path == top:
            return


# -- logs ----------------------------------------------------------------------------------------


def read_logs(place: Place, job: int, offsets: dict[str, int], limit: int) -> list[dict[str, Any]]:
    """New output of the job's workers, oldest worker first, at most ``limit`` bytes of each.

    Without an offset a worker's last bytes are given; the answer has the offset to go on from.
    """
    found = []
    for name, directory in place.runs():
        for worker in sorted((directory / "workers").glob(f"*-{job}-*-e*"), key=_age):
            key = f"{name}/{worker.name}"
            content, offset = _read(worker / "log", offsets.get(key), limit)
            found.append({"worker": key, "offset": offset, "text": content})
    return found


def _age(worker: Path) -> float:
    with suppress(OSError):
        return (worker / "orders" / "1.json").stat().st_mtime
    return 0.0


def _read(path: Path, offset: int | None, limit: int) -> tuple[str, int]:
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - limit) if offset is None else offset
            file.seek(start)
            content = file.read(limit) or b""
    except (OSError, ValueError):
        return "", offset or 0
    return content.decode(errors="replace"), start + len(content)
