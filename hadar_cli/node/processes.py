"""Processes by pid *and* start time, so that a reused pid is never mistaken for ours. Linux only
where it reads /proc; elsewhere it falls back to what the pid alone tells."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_BITS = 44  # of a process's start, below the boot
_LINUX = sys.platform.startswith("linux")


def start_time(pid: int) -> int | None:
    """When the process began: which boot, and the kernel's ticks; None if it is gone or a zombie.

    With the boot in it, what was noted before a reboot never fits a process of now.
    """
    if not _LINUX:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return 0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else _boot() << _TICK_BITS | int(fields[19])


@cache
def _boot() -> int:
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return 0


def is_alive(pid: int, started: int) -> bool:
    return start_time(pid) == started


def kill_group(pid: int, started: int, signum: int = signal.SIGKILL) -> None:
    """Signals the group that ``pid`` led; whoever merely reuses its number is left alone."""
    if started >> _TICK_BITS == _boot() * _LINUX and start_time(pid) in (started, None):
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
    for pid in _pids():
        with suppress(OSError):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _pids() -> list[int]:
    if not _LINUX:
        return []
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def _prctl(option: int, argument: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
