"""One card of this machine for one worker: how the worker is shown it, and who holds it.

A card is held by a lock file that all users of the machine share, so that two runs never train on
one GPU, whoever's they are. The worker inherits the lock: it lasts until the last process is gone.
A device that is no card is locked in the same way: on nodes that are reached by SSH for all who
come in by the same server, on this computer for all runs of one folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from hadar_cli.node.contract import Card
from hadar_cli.node.gpus.reading import read_gpus

LOCKS = Path("/tmp")  # noqa: S108 - the one folder that every user of a machine may write to
_LONGEST_NOTE = 2000
_AMD_ID = "0x"  # AMD's unique ids begin so
_NO_CARD = ("", "-1", "NoDevFiles")  # by which CUDA is shown none, and Slurm says so
_CUDA, _HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


def visible(index: int, uuid: str | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a worker sees its card and no other.

    What the node's own environment shows, by a batch system's or an administrator's will, is
    chosen from and never widened: ``index`` counts within it.
    """
    variable = _HIP if inherited.get(_HIP) else _CUDA
    if uuid and uuid.startswith(_AMD_ID):  # HIP knows cards by their numbers only
        return _visible_amd(uuid, inherited.get(_HIP) or inherited.get(_CUDA) or "")
    words = (word.strip() for word in inherited.get(variable, "").split(","))
    shown = [word for word in words if word not in _NO_CARD]
    if uuid is None and variable in inherited and index >= len(shown):
        told = f"{variable}={inherited[variable]} shows no GPU number {index} there"
        raise ValueError(told if shown else f"{told}: ask for it, with Slurm by gres")
    if not shown:
        # Numbered as nvidia-smi does, by which `hadar check` tells who uses which.
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", variable: uuid or str(index)}
    if uuid:
        return {variable: uuid}
    return {variable: shown[index]}


def _visible_amd(uuid: str, shown: str) -> dict[str, str]:
    numbers = [str(gpu["index"]) for gpu in read_gpus(())["gpus"] if gpu["uuid"] == uuid]
    if not numbers:
        raise ValueError(f"AMD's tools know no GPU {uuid} there")
    if shown and numbers[0] not in [word.strip() for word in shown.split(",")]:
        raise ValueError(f"{_HIP}={shown} does not show GPU {uuid}, number {numbers[0]} there")
    return {_HIP: numbers[0]}


def identity(shown: str) -> str:
    """The card's own name, whichever way a worker is shown it: all runs must mean the same one."""
    for gpu in read_gpus(())["gpus"]:
        uuid = gpu["uuid"] or ""
        # A name may be cut short; a number is none, though all of AMD's names begin with a 0.
        if shown == str(gpu["index"]) or (uuid.startswith(shown) and not shown.isdigit()):
            return uuid or f"gpu-{shown}"
    return f"gpu-{shown}"


def door(environment: Mapping[str, str]) -> str:
    """The port of the SSH server that we came through: one machine may stand for several nodes."""
    port = environment.get("SSH_CONNECTION", "").rpartition(" ")[2]
    return port if port.isdigit() else ""


def lock_name(entered_by: str, device: int) -> str:
    """Of a device that is no card; empty where runs cannot know that they mean the same one."""
    return f"device-{entered_by}-{device}" if entered_by else ""


def threads(sharers: int) -> str:
    """This worker's part of the machine's cores, where each of its GPUs has a worker."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not everywhere
        cores = os.cpu_count() or 1
    return str(max(1, cores // max(1, sharers)))


def environment(card: Card, inherited: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """A worker's, in which it sees its card and has its part of the cores, unless somebody has set
    that; and how the card is shown."""
    seen = visible(card.index, card.uuid, inherited)
    whole = {"OMP_NUM_THREADS": threads(card.sharers), **inherited, **seen}
    return whole, seen[next(reversed(seen))]


class CardLock:
    """Held by one worker at a time; the others can read who that is."""

    def __init__(self, card: str, folder: Path | None = None, mode: int = 0o666) -> None:
        self._path, self._mode = (folder or LOCKS) / f"hadar-{_plain(card)}.lock", mode
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
        self._descriptor = descriptor
        self.write(note)
        return True

    def write(self, note: Mapping[str, Any]) -> None:
        """Another note than the one it was taken with; only while it is ours."""
        text = json.dumps({"user": _me(), **note}).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def _open(self) -> int:
        """Anyone's plain file, for everyone to lock; a link in its place is never followed."""
        flags = os.O_RDWR | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._path, flags)
        except FileNotFoundError:
            try:
                descriptor = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, self._mode)
                os.fchmod(descriptor, self._mode)
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
        descriptor = self._look()
        if descriptor is None:
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
        descriptor = self._look()
        if descriptor is None:
            return {}
        try:
            told = json.loads(os.read(descriptor, _LONGEST_NOTE))
        except (OSError, ValueError, RecursionError):
            return {}
        finally:
            os.close(descriptor)
        return told if isinstance(told, dict) else {}

    def _look(self) -> int | None:
        """The file as it is; no link is followed, and no pipe is waited for."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        return None

    def remove_if_left(self) -> None:
        """Takes our own file away that nobody holds any more."""
        with suppress(OSError):
            if self._path.lstat().st_uid == os.getuid() and not self.is_held():
                self._path.unlink()

    def clear_if_left(self) -> None:
        """As above, of a lock that others may want at this moment: nobody else holds it then."""
        with suppress(OSError):
            if self._path.lstat().st_uid == os.getuid() and self.take({}):
                self.give_back()

    def holder(self) -> str:
        """Who holds it, in words."""
        told = self.note()
        run, user = (str(told.get(name, "?"))[:80] for name in ("run", "user"))
        return f"run {run} of {user}"


def locks_beside(begins: str, most: int, within: str = "") -> Iterator[CardLock]:
    """The locks whose names begin so, at most so many: anyone may leave files there."""
    with os.scandir(LOCKS) as files:
        names = (file.name for file in files)
        first = f"hadar-{_plain(begins)}"
        mine = (n for n in names if n.startswith(first) and within in n and n.endswith(".lock"))
        chosen = list(islice(mine, most))
    for name in chosen:
        yield CardLock(name.removeprefix("hadar-").removesuffix(".lock"))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name)


def _me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
