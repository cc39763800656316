"""Brings home what jobs left in ``HADAR_OUT``: bounded, and never outside of the run's folder.

A node may be hostile: it names the files. Only names of plain parts are taken, into directories
that were made here just now, so that none of them can lead elsewhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hadar_cli.core.model import Job
from hadar_cli.errors import HadarError
from hadar_cli.nodes.connection import Connection, Listed
from hadar_cli.nodes.wire import AgentError, said

MOST_FILES = 10_000
_MOST_BYTES = 8 << 30
_LONGEST_PART, _LONGEST_NAME, _DEEPEST = 200, 1000, 20
_DEADLINE_S = 900.0
_LATEST_NS = 1 << 62  # more than this no file system holds


def bring_home(
    connections: Sequence[Connection], jobs: Mapping[str, Sequence[Job]], folder: Path
) -> list[str]:
    """Fetches each node's jobs' files to ``folder/JOB``, all nodes at once; what went wrong.

    What came before, and is still the same there, is not fetched again.
    """
    problems: list[str] = []
    threads = []
    for connection in connections:
        if wanted := jobs.get(connection.node.name):
            arguments = (connection, wanted, folder, problems)
            thread = threading.Thread(target=_bring_all, args=arguments, daemon=True)
            thread.start()
            threads.append((connection, thread))
    for connection, thread in threads:
        thread.join(_DEADLINE_S)
        if thread.is_alive():
            connection.abort()
            problems.append(f"{connection.node.name}: what its jobs left takes too long to fetch")
    return problems


def _bring_all(
    connection: Connection, jobs: Iterable[Job], folder: Path, problems: list[str]
) -> None:
    for job in jobs:
        try:
            problems.extend(bring_job(connection, job, folder / job.name))
        except (HadarError, OSError) as error:
            place, why = connection.node.name, said(str(error))
            problems.append(f"{job.name}: what it left on {place} did not come: {why}")
    connection.close()


def bring_job(connection: Connection, job: Job, target: Path) -> list[str]:
    """Makes ``target`` what the job has left by now; what stays there. All of it comes, or none."""
    listed, others = connection.list_out(job.id)
    taken, budget = [], _MOST_BYTES
    for name, size, time_ns in listed[:MOST_FILES]:
        if _is_safe(name) and 0 <= size <= budget and 0 <= time_ns < _LATEST_NS:
            taken.append((name, size, time_ns))
            budget -= size
    if taken:
        _take(connection, job, taken, target)
    if not (others := others + len(listed) - len(taken)):
        return []
    return [
        f"{job.name}: {others} of what it left on {connection.node.name} stay there: links, "
        f"odd names, or beyond {MOST_FILES:,} files and {_MOST_BYTES / 1e9:.0f} GB"
    ]


def _take(connection: Connection, job: Job, listed: Iterable[Listed], target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700, parents=True)
    for name, size, time_ns in listed:
        path, before = part.joinpath(*name.split("/")), target.joinpath(*name.split("/"))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_same(before, size, time_ns):
            path.hardlink_to(before)
        else:
            connection.fetch_out(job.id, name, size, path)
            os.utime(path, ns=(time_ns, time_ns))
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)


def _is_same(path: Path, size: int, time_ns: int) -> bool:
    """Whether what came home before is what the node still has."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    is_file = stat.S_ISREG(facts.st_mode)
    return is_file and (facts.st_size, facts.st_mtime_ns) == (size, time_ns)


def _is_safe(name: object) -> bool:
    """Whether a name has nothing but plain parts, as any disk can hold and any terminal show."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST_NAME:
        return False
    parts = name.split("/")
    return len(parts) <= _DEEPEST and all(
        part not in ("", ".", "..") and "\\" not in part and len(part.encode()) <= _LONGEST_PART
        for part in parts
    )


def read_list(answer: object) -> tuple[list[Listed], int]:
    """A node's list as what it should be; AgentError where it is not."""
    if isinstance(answer, dict) and isinstance(answer.get("files"), list):
        rows = [tuple(row) for row in answer["files"] if isinstance(row, list)]
        good = [row for row in rows if tuple(map(type, row)) == (str, int, int)]
        others = answer.get("others")
        if len(good) == len(answer["files"]) and type(others) is int and others >= 0:
            return good, others
    raise AgentError(f"its list of files makes no sense: {said(answer, 80)}")
