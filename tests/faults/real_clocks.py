"""Clocks that are wrong, or are set while a run goes on.

A node's monotonic clock is moved by a time namespace. The wall clock has none: it is stepped by a
library between the processes and their C library, see ``stepped_clock.c``.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

from tests.faults.real_faults import Fault
from tests.faults.real_run import RealRun
from tests.faults.real_scenario import Scenario, Skip, was_used
from tests.faults.real_site import PYTHON, Site

SOURCE = Path(__file__).with_name("stepped_clock.c")
AHEAD_S = 777_777  # nine days
_HEARD_WITHIN_S = 30.0


def clocks() -> list[Scenario]:
    there_and_back = (step(AHEAD_S), step(-AHEAD_S), step(0))
    return [
        Scenario("clock moved", (), _other_clock, proves=was_used),
        Scenario("node's wall clock stepped", there_and_back, _on_node, proves=was_used),
        Scenario("head's wall clock stepped", there_and_back, _on_head, proves=_ended_well),
    ]


def step(offset_s: int) -> Fault:
    """From now on the wall clock is off by so much: a step forward or back from where it was."""

    def strike(run: RealRun) -> bool:
        clock = SteppedClock(run.site)
        clock.set(offset_s)
        before = clock.times_asked()
        run.await_that(
            lambda: clock.times_asked() > before or not run.is_running(),
            _HEARD_WITHIN_S,
            "nobody asked for the time",
        )
        return clock.times_asked() > before

    return Fault(f"wall clock off by {offset_s} s", strike, lasts_s=0.5)


class SteppedClock:
    """The wall clock of the processes that are started with ``variables``."""

    def __init__(self, site: Site) -> None:
        self._file, self._library = site.directory / "clock", site.directory / "clock.so"

    @property
    def variables(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "HADAR_CLOCK": str(self._file)}

    def make(self) -> None:
        """Right at first; a clock that was there before is forgotten."""
        compiler = shutil.which("cc")
        if not compiler:
            raise Skip("there is no C compiler here")
        words = [compiler, "-O1", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skip(f"the C compiler cannot make it: {done.stderr.strip()[-200:]}")
        self._file.write_bytes(struct.pack("=qq", 0, 0))

    def set(self, offset_s: int) -> None:
        with self._file.open("r+b") as file:  # in place: the processes have it in their memory
            file.write(struct.pack("=q", offset_s))

    def times_asked(self) -> int:
        """How often somebody asked, whatever the answer."""
        asked: int = struct.unpack("=qq", self._file.read_bytes())[1]
        return asked


def _on_node(site: Site) -> None:
    """For all that is started there by the node's Python, which is all of hadar's."""
    clock = SteppedClock(site)
    clock.make()
    settings = " ".join(f"{name}='{value}'" for name, value in clock.variables.items())
    _use_python(site, "python-stepped", f'export {settings}\nexec {PYTHON} "$@"\n')


def _on_head(site: Site) -> None:
    clock = SteppedClock(site)
    clock.make()
    site.head_env.update(clock.variables)


def _ended_well(run: RealRun) -> bool:
    """The one head needed no help: a step of its clock is no reason to stop."""
    return [code for code, _ in run.exits] == [0]


def _other_clock(site: Site) -> None:
    """The node's monotonic clock is days ahead of the head's."""
    if os.geteuid() or subprocess.run(["unshare", "-T", "true"], check=False).returncode:
        raise Skip("no time namespaces here")
    ahead = f"--monotonic {AHEAD_S} --boottime {AHEAD_S}"
    _use_python(site, "python-ahead", f'exec unshare -T {ahead} {PYTHON} "$@"\n')


def _use_python(site: Site, name: str, words: str) -> None:
    script = site.furnish(name, f"#!/bin/sh\n{words}")
    site.extra.setdefault(site.victim, {}).update(python=str(script))
