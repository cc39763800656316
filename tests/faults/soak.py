"""A long run under random faults: the head's memory, handles, threads and disk stay flat."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from tests.faults.checker import Count, Violation, demand
from tests.faults.real import finish
from tests.faults.real_catalog import cut, reset
from tests.faults.real_checker import check_no_process, check_run
from tests.faults.real_faults import Fault, Strike, inflict, kill, stop
from tests.faults.real_run import RealRun
from tests.faults.real_site import Site, site
from tests.faults.sections import Findings, Size, section

QUICK_S, FULL_S = 20.0, 1800.0
_WARM_S = 5.0  # until everything is imported and every node was met once
_REST_S = 1800.0  # for the steps that are left then: on a busy machine, most of them
_FLOATS = 20_000
# What may come and go between two looks: a merge, a connection, a file under way.
_SLACK = {"memory": 12 << 20, "handles": 8, "threads": 5, "disk": 5 * 8 * _FLOATS}


@dataclass(frozen=True)
class Sample:
    """What the head has, at one moment."""

    memory: int  # bytes resident
    handles: int
    threads: int
    disk: int  # bytes of checkpoints; the journal grows by design


def look(run: RealRun) -> Sample:
    process = Path(f"/proc/{run.head}")
    pages = int((process / "statm").read_text().split()[1])
    objects = run.store.object_path("").iterdir()
    return Sample(
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        sum(path.stat().st_size for path in objects if path.exists()),
    )


def faults(run: RealRun) -> list[Fault]:
    """A nursery that was killed is there again only when the next worker is to be born."""
    victims = ["worker", "agent", "supervisor", "session"]
    killed = [kill(who, "training") for who in victims]
    if run.site.pids("nursery"):
        killed.append(kill("nursery", "start"))
    return [*killed, stop("worker", "training", 1.0), cut("training", 1.0), reset("start")]


@section("soak", waits=True)
def run_soak(size: Size) -> Findings:
    lasts_s, checked = FULL_S if size.is_full else QUICK_S, Count.checked
    findings, samples, strikes = Findings(), [], list[Strike]()
    steps = int(200 * (lasts_s + _WARM_S)) + 400  # at the most; the rest is trained in peace
    with tempfile.TemporaryDirectory() as name, site(Path(name) / "site") as cluster:
        run = RealRun(cluster, Path(name) / "run", Random(f"soak {size.seed}"), steps, _FLOATS)
        try:
            samples = _endure(run, lasts_s, strikes)
            _check_flat(samples)
            _end(run, cluster)
        except Violation as violation:
            findings.violations.append(f"soak (seed {size.seed}): {violation}")
        finally:
            if run.is_running():
                run.kill()
        findings.steps_redone = max(0, cluster.steps_trained() - steps)
    findings.trials = len(strikes)
    findings.fired = Counter(strike.kind for strike in strikes)
    findings.recoveries_s = [s.recovered_s for s in strikes if s.recovered_s is not None]
    findings.steps, findings.checked = steps, Count.checked - checked
    findings.details = {"the head": _figures(samples)}
    return findings


def _endure(run: RealRun, lasts_s: float, strikes: list[Strike]) -> list[Sample]:
    run.start()
    run.await_that(lambda: run.seen, 60.0, "the head does not start")
    begins = time.monotonic() + _WARM_S
    run.await_that(lambda: time.monotonic() > begins, 60.0, "time stands still")
    samples = [look(run)]
    while time.monotonic() < begins + lasts_s:
        strikes.append(inflict(run.dice.choice(faults(run)), run))
        samples.append(look(run))
    return samples


def _end(run: RealRun, cluster: Site) -> None:
    """In order, as a user would who has seen enough."""
    os.kill(run.head, 15)
    demand(run.end_head() == 130, f"I6: {run.exits[-1]}")
    check_no_process(cluster)
    check_run(run, is_finished=False)
    run.resume()
    run.await_that(lambda: not run.is_running(), _REST_S, "the rest is never trained")
    finish(run)
    check_run(run)


def _check_flat(samples: list[Sample]) -> None:
    """The last third is no higher than the first, but for what comes and goes."""
    third = max(1, len(samples) // 3)
    for name, slack in _SLACK.items():
        before = median(getattr(sample, name) for sample in samples[:third])
        after = median(getattr(sample, name) for sample in samples[-third:])
        demand(after <= 1.1 * before + slack, f"flat: {name} grew from {before} to {after}")


def _figures(samples: list[Sample]) -> dict[str, object]:
    return {
        name: f"{getattr(samples[0], name):,} at first, {getattr(samples[-1], name):,} at last, "
        f"{max(getattr(sample, name) for sample in samples):,} at most"
        for name in _SLACK
        if samples
    }
