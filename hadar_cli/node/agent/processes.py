"""Processes by pid *and* start time, so that a reused pid is never mistaken for ours.

From /proc where there is one, else from ``ps``, which knows seconds where the kernel knows ticks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

from hadar_cli.node.lease import boot

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_BITS = 44  # of a process's start, below the boot
_LINUX = sys.platform.startswith("linux")


def start_time(pid: int) -> int | None:
    """When the process began: which boot, and the kernel's ticks; None if it is gone or a zombie.

    With the boot in it, what was noted before a reboot never fits a process of now.
    """
    if not _LINUX:
        state, _, began = next(iter(_ps("-o", "stat=,lstart=", "-p", str(pid))), "").partition(" ")
        return zlib.crc32(began.encode()) if state and state[0] not in "ZX" else None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else boot() << _TICK_BITS | int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    return start_time(pid) == started


def kill_group(pid: int, started: int, signum: int = signal.SIGKILL) -> None:
    """Signals the group that ``pid`` led; whoever merely reuses its number is left alone."""
    if started >> _TICK_BITS == boot() * _LINUX and start_time(pid) in (started, None):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signum)


def wait_gone(processes: list[tuple[int, int]], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(is_alive(pid, started) for pid, started in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def adopt_orphans() -> None:
    """Makes grandchildren that lose their parent ours, so that none can slip away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when its parent dies, however it dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def kill_children() -> None:
    """Ends everything below this process; orphans it adopted included."""
    me = os.getpid()
    for _ in range(50):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = [pid for pid in _pids() if _parent(pid) == me]
        if not children:
            return
        for pid in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def tagged(variable: str, value: str) -> list[int]:
    """Our processes whose environment holds ``variable=value``: strays of a killed supervisor."""
    needle = f"{variable}={value}".encode()
    found = []
    if not _LINUX:
        lines = (line.split() for line in _ps("-A", "-E", "-ww", "-o", "pid=,command="))
        return [int(words[0]) for words in lines if needle.decode() in words]
    for pid in _pids():
        with suppress(OSError):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def in_sessions(leaders: set[int]) -> set[int]:
    """Processes of the sessions that these lead."""
    found = set()
    for pid in _pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in leaders:
                found.add(pid)
    return found


def _ps(*words: str) -> list[str]:
    done = subprocess.run(["/bin/ps", *words], capture_output=True, text=True, check=False)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _pids() -> list[int]:
    if not _LINUX:
        return [int(line) for line in _ps("-A", "-o", "pid=")]
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208


def _parent(pid: int) -> int | None:
    if not _LINUX:
        return next((int(line) for line in _ps("-o", "ppid=", "-p", str(pid))), None)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def _prctl(option: int, argument: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def killed_for_memory() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
