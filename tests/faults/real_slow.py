"""Slow phases and large checkpoints: what takes longer than a slot is let finish, and counts."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable

from hadar_cli.core import events
from hadar_cli.core.reasons import Loss
from tests.faults.checker import demand
from tests.faults.real_faults import Fault, kill_head
from tests.faults.real_run import SLOT_S, RealRun
from tests.faults.real_scenario import Scenario, Skip, was_used
from tests.faults.real_site import Site

_INTERRUPTED = 130
_QUICK_MB, _FULL_MB, _HUGE_MB = 20, 1024, 10 * 1024
_ROOM = 7  # times as large a disk: the run's checkpoints, the nodes', and what is checked later


def slow_phases() -> list[Scenario]:
    return [
        Scenario(
            "steps, saves and evaluations longer than a slot", (), _slow, proves=_let, takes_s=35.0
        ),
        Scenario("Ctrl-C with a slow save", (interrupt(),), _slow_save, takes_s=25.0),
    ]


def large_checkpoints(is_full: bool) -> list[Scenario]:
    """The head dies while one is on its way, and the next goes on in the middle."""
    sizes = {"1 GB": _FULL_MB, "10 GB, lone copy": _HUGE_MB} if is_full else {"20 MB": _QUICK_MB}
    return [
        Scenario(f"checkpoints of {name}", (kill_head("transfer"),), _holes(mb), hole_mb=mb)
        for name, mb in sizes.items()
    ]


def _slow(site: Site) -> None:
    evaluates = {"evaluate_s": 1.2 * SLOT_S}
    slow = {"step_s": 1.3 * SLOT_S, "save_s": 1.6 * SLOT_S}
    site.form_habits({**dict.fromkeys(site.others, evaluates), site.victim: {**evaluates, **slow}})


def _slow_save(site: Site) -> None:
    site.form_habits({site.victim: {"save_s": 1.5 * SLOT_S}})


def _let(run: RealRun) -> bool:
    """No copy was ended for being slow, and the user was told of a better slot. The others need not
    wait for one of which nobody knows yet how long it takes."""
    lost = [seen.event for seen in run.seen if isinstance(seen.event, events.CopyLost)]
    ended = [event.why for event in lost if event.reason is not Loss.STALE]
    demand(not ended, f"I1: ended: {ended}")
    said = " ".join(run.exits[-1][1].split())
    demand("longer than slot_s = 2: use slot_s:" in said, f"I6: no advice in: {said[-500:]}")
    copies = [seen.event for seen in run.seen if isinstance(seen.event, events.CopyFinished)]
    demand(any(copy.evaluate_s for copy in copies), "I1: nobody evaluated")
    return was_used(run)


def interrupt() -> Fault:
    """Ctrl-C: every copy hands in, however long its save takes, and what it did is kept."""

    def strike(run: RealRun) -> bool:
        if not run.is_running():
            return False
        at = time.monotonic()
        os.kill(run.head, signal.SIGINT)
        code = run.end_head()
        said = run.exits[-1][1]
        demand(code == _INTERRUPTED, f"I6: exit code {code}: {said[-300:]}")
        ends = [s.event for s in run.seen if s.at > at and isinstance(s.event, events.CopyFinished)]
        kept = {event.attempt for event in ends if event.steps}
        mine = {
            seen.event.attempt
            for seen in run.seen
            if isinstance(seen.event, events.CopyStarted) and seen.event.device == run.site.victim
        }
        demand(kept & mine, f"I1: what {run.site.victim} had trained is lost: {said[-400:]}")
        return True

    return Fault("Ctrl-C, slow save", strike, "training", lambda run: run.resume())


def _holes(mb: int) -> Callable[[Site], None]:
    def arrange(site: Site) -> None:
        free_mb = shutil.disk_usage(site.directory).free >> 20
        if free_mb < _ROOM * mb:
            raise Skip(f"{_ROOM * mb >> 10} GB of disk are needed, {free_mb >> 10} are free")
        site.form_habits({name: {"hole_mb": mb} for name in site.lab.names})

    return arrange
