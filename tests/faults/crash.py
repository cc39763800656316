"""The head killed at every call that changes its run's directory, and at every named place.

A kill in front of call N leaves what a kill behind call N - 1 does, so one side is enough. Which
call is the Nth differs a little from run to run: nodes answer when they do.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.faults.checker import Count, Violation
from tests.faults.real import finish
from tests.faults.real_checker import check_no_process, check_run
from tests.faults.real_head import POINTS
from tests.faults.real_run import RealRun
from tests.faults.real_site import Site, site
from tests.faults.sections import Findings, Size, section

AT_ONCE = 4
QUICK_CALLS = 10  # of all, by lot
STEPS = 300
_UNPASSED = {"lock!"}  # behind it, the run is over


@dataclass(frozen=True)
class Crash:
    """Where the head dies: in front of a call, or at a place."""

    option: str
    where: str

    @property
    def words(self) -> tuple[str, str]:
        return (f"--die-{self.option}", self.where)


def places() -> list[Crash]:
    """Before and behind each, and on the second passage where a run has one."""
    words = [word for point in POINTS for word in (point, f"{point}!", f"{point}2")]
    return [Crash("in", word) for word in words if word not in _UNPASSED | {"lock2"}]


def list_calls(cluster: Site, directory: Path) -> list[str]:
    """All calls of an undisturbed run."""
    run = RealRun(cluster, directory, Random(0), STEPS)
    run.start("--log", "calls")
    if run.end_head():
        raise Violation(f"an undisturbed run failed: {run.exits}")
    check_run(run)
    return (directory / "calls").read_text().splitlines()


def crash(where: Crash, cluster: Site, directory: Path, seed: int) -> RealRun:
    """A run whose head dies there, and is resumed until it is done."""
    run = RealRun(cluster, directory, Random(f"{where} {seed}"), STEPS)
    try:
        run.start(*where.words)
        code = run.end_head()
        if code == 0:
            return run  # this run had fewer calls: nothing fired
        if code != -9:
            raise Violation(f"I6: {where.words}: exit code {code}: {run.exits[-1][1][-300:]}")
        run.jitter(0.5)
        if not (run.store.directory / "run.json").exists():
            run.start()  # it never came to be
        else:
            run.resume()
        finish(run)
        return run
    finally:
        if run.is_running():
            run.kill()


@section("crash points", waits=True)
def run_crashes(size: Size) -> Findings:
    findings, checked = Findings(steps_redone=0), Count.checked
    with tempfile.TemporaryDirectory() as name, site(Path(name) / "site") as cluster:
        calls, done = list_calls(cluster, Path(name) / "undisturbed"), [STEPS]
        chosen = list(range(1, len(calls) + 1))
        named = places()
        if not size.is_full:
            dice = Random(f"crashes {size.seed}")
            chosen, named = dice.sample(chosen, QUICK_CALLS), dice.sample(named, QUICK_CALLS)
        crashes = [*(Crash("at", str(number)) for number in chosen), *named]

        def play(number: int) -> None:
            directory = Path(name) / f"run-{number}"
            try:
                run = crash(crashes[number], cluster, directory, size.seed)
                check_run(run)
                done.append(STEPS)
                if len(run.exits) > 1:
                    findings.fired[_kind(crashes[number], calls)] += 1
                    findings.trials += 1
            except Exception as error:
                what = error if isinstance(error, Violation) else repr(error)
                findings.violations.append(f"{crashes[number].words}: {what}")
            finally:
                shutil.rmtree(directory, ignore_errors=True)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(play, range(len(crashes))))
        try:
            check_no_process(cluster, within_s=25.0)
        except Violation as violation:
            findings.violations.append(f"{violation}")
        findings.steps = sum(done)
        findings.steps_redone = max(0, cluster.steps_trained() - findings.steps)
    findings.checked = Count.checked - checked
    findings.details = {
        "calls of an undisturbed run": Counter(line.split()[1] for line in calls),
        "died in front of, or at": dict(sorted(findings.fired.items())),
    }
    return findings


def _kind(where: Crash, calls: list[str]) -> str:
    return f"at {where.where}" if where.option == "in" else calls[int(where.where) - 1].split()[1]
