"""A node's disk: full, read-only from the beginning, or turning read-only while copies train."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

from hadar_cli.core import events
from tests.faults.real_faults import Fault
from tests.faults.real_run import RealRun
from tests.faults.real_scenario import Scenario, Skip, was_lost
from tests.faults.real_site import Site

_LAYERS = 3  # more than are ever mounted over each other


def disks() -> list[Scenario]:
    return [
        Scenario("disk full", (fill("training"),), _mount, _unmount),
        Scenario("disk read-only", (), _mount_read_only, _unmount, was_lost),
        Scenario("disk turns read-only", (turn_read_only(8.0),), _mount, _unmount, _lost_by_disk),
        Scenario("disk stays read-only", (turn_read_only(0.0),), _mount, _unmount, _lost_by_disk),
    ]


def fill(stage: str) -> Fault:
    def strike(run: RealRun) -> bool:
        with (_place(run.site) / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                return True

    def mend(run: RealRun) -> None:
        (_place(run.site) / "filler").unlink()

    return Fault("node's disk full", strike, stage, mend, 3.0)


def turn_read_only(lasts_s: float) -> Fault:
    """What is open for writing can still be written, as after a remount by force; no file can be
    made, renamed or removed any more. It stays so where ``lasts_s`` is 0."""

    def strike(run: RealRun) -> bool:
        place = _place(run.site)
        _run("mount", "--bind", str(place), str(place))
        _run("mount", "-o", "remount,bind,ro", str(place))
        return _is_read_only(place)

    def mend(run: RealRun) -> None:
        if lasts_s:
            _run("umount", "-l", str(_place(run.site)))

    return Fault("node's disk read-only", strike, "training", mend, lasts_s)


def _is_read_only(place: Path) -> bool:
    try:
        (place / "filler").touch()
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def _lost_by_disk(run: RealRun) -> bool:
    """The record that names the node says what is wrong with it."""
    lost = [seen.event for seen in run.seen if isinstance(seen.event, events.DeviceLost)]
    return any(e.device == run.site.victim and "Read-only file system" in e.why for e in lost)


def _place(site: Site) -> Path:
    return site.node.home / ".hadar"


def _mount_read_only(site: Site) -> None:
    _mount(site, "ro")


def _mount(site: Site, how: str = "rw") -> None:
    """A small disk for the node's working directory."""
    _place(site).mkdir(mode=0o700)
    options = f"size=8m,mode=700,{how}"
    _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(_place(site)))


def _unmount(site: Site) -> None:
    for _ in range(_LAYERS):
        words = ["umount", "-l", str(_place(site))]
        subprocess.run(words, check=False, capture_output=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skip(f"no file system can be mounted here: {done.stderr.strip()}")
