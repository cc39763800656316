"""One card of this machine for one worker: how the worker is shown it, and who holds it.

A card is held by a lock file that all users of the machine share, so that two runs never train on
one GPU, whoever's they are. The worker inherits the lock: it lasts until the last process is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hadar_cli.node.gpus.reading import read_gpus

LOCKS = Path("/tmp")  # noqa: S108 - the one folder that every user of a machine may write to
_LONGEST_NOTE = 500
_CUDA, _HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


def visible(index: int, uuid: str | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a worker sees its card and no other.

    What the node's own environment shows, by a batch system's or an administrator's will, is
    chosen from and never widened: ``index`` counts within it.
    """
    variable = _HIP if inherited.get(_HIP) else _CUDA
    shown = [word.strip() for word in inherited.get(variable, "").split(",") if word.strip()]
    if not shown:
        # Numbered as nvidia-smi does, by which `hadar check` tells who uses which.
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", variable: uuid or str(index)}
    if uuid:
        return {variable: uuid}
    if index >= len(shown):
        raise ValueError(f"{variable}={','.join(shown)} shows no GPU number {index} there")
    return {variable: shown[index]}


def identity(shown: str) -> str:
    """The card's own name, whichever way a worker is shown it: all runs must mean the same one."""
    for gpu in read_gpus(())["gpus"]:
        uuid = gpu["uuid"] or ""
        if shown == str(gpu["index"]) or (uuid and uuid.startswith(shown)):
            return uuid or f"gpu-{shown}"
    return f"gpu-{shown}"


def threads(sharers: int) -> str:
    """This worker's part of the machine's cores, where each of its GPUs has a worker."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not everywhere
        cores = os.cpu_count() or 1
    return str(max(1, cores // max(1, sharers)))


class CardLock:
    """Held by one worker at a time; the others can read who that is."""

    def __init__(self, card: str, folder: Path | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9]+", "-", card)
        self._path = (folder or LOCKS) / f"hadar-{name}.lock"
        self._descriptor = -1

    def take(self, note: Mapping[str, Any]) -> bool:
        """Whether it is ours now; ``note`` is for those who will wait for it."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._path.exists() or os.fstat(descriptor).st_ino != self._path.stat().st_ino:
                raise BlockingIOError  # it was given back between; the next try finds a new one
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"user": _me(), **note}).encode())
        self._descriptor = descriptor
        return True

    def _open(self) -> int:
        """Anyone's plain file, for everyone to lock; a link in its place is never followed."""
        flags = os.O_RDWR | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._path, flags)
        except FileNotFoundError:
            try:
                descriptor = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)
            except FileExistsError:
                return self._open()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{self._path} is no plain file")
        return descriptor

    def give_back(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink()  # while it is ours, or another's could be taken away
            os.close(self._descriptor)
            self._descriptor = -1

    def is_held(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)

    def note(self) -> dict[str, Any]:
        """What its holder wrote; it may be anyone, and so may the words."""
        try:
            with self._path.open("rb") as file:
                told = json.loads(file.read(_LONGEST_NOTE))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def holder(self) -> str:
        """Who holds it, in words."""
        told = self.note()
        run, user = (str(told.get(name, "?"))[:80] for name in ("run", "user"))
        return f"run {run} of {user}"


def _me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
