"""Faults that strike a real run: who, how, and at which stage of a copy's way."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hadar_cli.core import events
from tests.faults.real_run import RealRun

STAGES = ("start", "transfer", "training", "hand-in", "merge")
FOUND_WITHIN_S = 90.0  # a stage or a process, on a loaded machine
RECOVERED_WITHIN_S = 60.0
WORKER_S, NODE_S = 2.0, 15.0  # stated: by then a killed worker, a lost node is on record
LOADED = 3.0  # times as long on a machine that does other things
LOSSES = (events.CopyLost, events.DeviceLost)


class TooLateError(Exception):
    """The run ended before the fault could strike: it is played again."""


@dataclass
class Strike:
    """A fault that fired, and what came of it, in seconds after it."""

    kind: str
    at: float = 0.0
    noticed_s: float | None = None  # until a copy or device was recorded as lost
    recovered_s: float | None = None  # until a copy on the victim counted that ended after it
    others_s: float | None = None  # the longest time in which no copy elsewhere counted


@dataclass(frozen=True)
class Fault:
    """``strike`` does it at the stage and says whether it fired; ``mend`` undoes it later."""

    kind: str
    strike: Callable[[RealRun], object]
    stage: str = "training"
    mend: Callable[[RealRun], object] = field(default=lambda run: None)
    lasts_s: float = 0.0
    noticed_within_s: float | None = None  # stated: a loss has to be on record by then
    afterwards: Callable[[RealRun], object] = field(default=lambda run: None)  # checks of its own


def inflict(fault: Fault, run: RealRun) -> Strike:
    """Waits for the stage, strikes, mends, and waits until the victim's steps count again."""
    reach(fault.stage, run)
    run.jitter(0.4 if fault.stage in ("start", "training") else 0.05)
    strike = Strike(f"{fault.kind} at {fault.stage}", time.monotonic())
    if not fault.strike(run):
        raise TooLateError(f"{strike.kind}: it did not fire")
    is_loss = fault.noticed_within_s is not None and _is_under_way(run)
    if fault.lasts_s:
        end = strike.at + fault.lasts_s
        run.await_that(lambda: time.monotonic() > end or not run.is_running(), 90.0, "no mending")
    since = time.monotonic() if fault.lasts_s > NODE_S else strike.at
    fault.mend(run)
    # A policy may leave the victim alone from then on: then the run just has to end.
    until = time.monotonic() + RECOVERED_WITHIN_S
    run.await_that(
        lambda: (
            not run.is_running()
            or _recovery(run, strike.at, since) is not None
            or time.monotonic() > until
        ),
        2 * RECOVERED_WITHIN_S,
        "time stands still",
    )
    if fault.noticed_within_s and is_loss:
        limit_s = LOADED * fault.noticed_within_s
        what = f"I5: {strike.kind} was not noticed"
        run.await_that(lambda: run.first_after(strike.at, *LOSSES), limit_s, what)
    strike.noticed_s = run.first_after(strike.at, *LOSSES)
    strike.recovered_s = _recovery(run, strike.at, since)
    strike.others_s = _others(run, strike.at, strike.at + (strike.recovered_s or 0.0))
    return strike


def _is_under_way(run: RealRun) -> bool:
    """Whether a copy on the victim has an order and has not left its result."""
    orders = run.site.node.home.glob(".hadar/runs/*/*/attempts/*/order.json")
    return any(not path.with_name("result.json").exists() for path in orders)


def _recovery(run: RealRun, at: float, since: float) -> float | None:
    ended = {
        seen.event.attempt
        for seen in run.seen
        if seen.at > since and isinstance(seen.event, events.CopyFinished)
    }
    return next((t - at for t, counted in _merges(run, True) if t > at and counted & ended), None)


def _others(run: RealRun, first: float, last: float) -> float | None:
    times = [first, *(t for t, _ in _merges(run, False) if first < t < last), last]
    return max((b - a for a, b in itertools.pairwise(times)), default=None)


def _merges(run: RealRun, of_victim: bool) -> list[tuple[float, set[str]]]:
    """When copies on the victim, or elsewhere, were counted, and which."""
    started = [seen.event for seen in run.seen if isinstance(seen.event, events.CopyStarted)]
    victim = run.site.victim
    mine = {copy.attempt for copy in started if (victim in copy.devices) is of_victim}
    merges = [(s.at, s.event) for s in run.seen if isinstance(s.event, events.WeightsMerged)]
    found = [(at, mine & set(event.accepted)) for at, event in merges]
    return [(at, counted) for at, counted in found if counted]


# -- stages --------------------------------------------------------------------------------------


def reach(stage: str, run: RealRun) -> None:
    """Returns when a copy on the victim is newly at that stage."""
    run.look()
    known, before = set(_files(run, stage)), run.count(*_RECORDS.get(stage, ()))

    def is_there() -> bool:
        if not run.is_running():
            raise TooLateError("the run ended before the fault could strike")
        if stage in _RECORDS:
            return run.count(*_RECORDS[stage]) > before
        return bool(set(_files(run, stage)) - known)

    within_s = FOUND_WITHIN_S + 3 * run.slot_s
    run.await_that(is_there, within_s, f"stage {stage} was not reached")


_RECORDS = {"start": (events.CopyStarted,), "merge": (events.CopyFinished,)}


def _files(run: RealRun, stage: str) -> list[str]:
    """What shows, by being there, that a copy is at the stage."""
    there = run.site.node.home / ".hadar" / "runs"
    match stage:
        case "transfer":
            found = [*there.glob("*/*/objects/*.part")]
            found += run.store.directory.glob(f"objects/from-{run.site.victim}-*.part")
        case "training":
            found = [p for p in there.glob("*/*/attempts/*/progress.json") if _steps(p) > 3]
        case "hand-in":
            found = [*there.glob("*/*/attempts/*/result.json")]
        case _:
            found = []
    return [str(path) for path in found]


def _steps(progress: Path) -> int:
    try:
        return int(json.loads(progress.read_text())["steps"])
    except (OSError, ValueError):
        return 0


# -- kills and stops -----------------------------------------------------------------------------


def kill(who: str, stage: str) -> Fault:
    """kill -9 on the victim."""
    is_loss = stage == "training" and who in ("worker", "supervisor")
    return Fault(
        f"{who} killed",
        lambda run: _signal(run, who, signal.SIGKILL),
        stage,
        noticed_within_s=WORKER_S if is_loss else None,
    )


def stop(who: str, stage: str, lasts_s: float) -> Fault:
    """Hangs for a while, and then goes on as if nothing had happened."""
    hung: list[int] = []

    def strike(run: RealRun) -> bool:
        hung[:] = find(run, who)
        for pid in hung:
            os.kill(pid, signal.SIGSTOP)
        return bool(hung)

    def mend(run: RealRun) -> None:
        for pid in hung:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue

    is_loss = who == "everyone" and lasts_s > NODE_S
    within_s = NODE_S if is_loss else None
    return Fault(f"{who} hung for {lasts_s:.0f} s", strike, stage, mend, lasts_s, within_s)


def kill_head(stage: str) -> Fault:
    """And somebody types ``hadar resume`` a moment later."""

    def strike(run: RealRun) -> bool:
        was_running = run.is_running()
        run.kill()
        run.end_head()
        return was_running

    def mend(run: RealRun) -> None:
        run.jitter(1.0)
        run.resume()

    return Fault("head killed", strike, stage, mend)


def find(run: RealRun, who: str) -> list[int]:
    """Their pids, once there are any."""
    if who == "head":
        return [run.head]
    run.await_that(
        lambda: run.site.pids(who) or not run.is_running(), FOUND_WITHIN_S, f"no {who} there"
    )
    return run.site.pids(who)


def _signal(run: RealRun, who: str, signum: int) -> int:
    find(run, who)
    return run.site.signal_all(who, signum)


# -- links ---------------------------------------------------------------------------------------


def cut(stage: str, lasts_s: float) -> Fault:
    """Nothing passes, and nobody is told."""

    def strike(run: RealRun) -> bool:
        run.site.link.is_cut = True
        return True

    def mend(run: RealRun) -> None:
        run.site.link.is_cut = False

    within_s = NODE_S if lasts_s > NODE_S else None
    return Fault(f"link cut for {lasts_s:.0f} s", strike, stage, mend, lasts_s, within_s)


def reset(stage: str) -> Fault:
    return Fault("connections reset", lambda run: run.site.link.reset(), stage)
