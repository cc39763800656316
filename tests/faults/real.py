"""Real faults over real SSH servers, as a section of ``scripts/faults``."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from random import Random

from tests.faults.checker import Count, Violation
from tests.faults.real_catalog import kills, scenarios
from tests.faults.real_checker import check_no_process, check_run
from tests.faults.real_faults import Strike, TooLateError, inflict
from tests.faults.real_run import RealRun
from tests.faults.real_scenario import Scenario, Skip
from tests.faults.real_site import Site
from tests.faults.sections import Findings, Size, section

REAL = "real faults"
AT_ONCE = 8
_TRIES = 3
_LONGEST_SHOWN = 20
_MOST_MISSED = 0.1  # of the scenarios: faults that found nothing to strike, in all tries


@dataclass
class Outcome:
    name: str
    seed: int
    strikes: list[Strike] = field(default_factory=list)
    violation: str | None = None
    checked: int = 0
    steps: int = 0
    redone: int = 0
    skipped: str | None = None
    too_late: bool = False  # a fault found nothing left to strike
    seconds: float = 0.0  # all tries


def run_scenario(scenario: Scenario, site: Site, directory: Path, seed: int) -> Outcome:
    """A run with its faults; whatever does not hold is the outcome's violation."""
    outcome = Outcome(scenario.name, seed, steps=scenario.steps)
    site.heal()
    site.empty()
    try:
        if scenario.arrange:
            scenario.arrange(site)
        _play(scenario, site, directory, outcome)
    except Skip as reason:
        outcome.skipped = f"{scenario.name}: {reason}"
    finally:
        site.heal()
        scenario.tidy(site)
    return outcome


def _play(scenario: Scenario, site: Site, directory: Path, outcome: Outcome) -> None:
    dice = Random(f"{scenario.name} {outcome.seed}")
    site.link.bytes_per_s = scenario.bytes_per_s
    run = RealRun(site, directory, dice, outcome.steps, **scenario.shape)
    try:
        run.start()
        for fault in scenario.faults:
            outcome.strikes.append(inflict(fault, run))
        finish(run)
        check_no_process(site)
        check_run(run)
        for fault in scenario.faults:
            fault.afterwards(run)
        if scenario.proves:
            if not scenario.proves(run):
                raise TooLateError("what was arranged was not met")
            outcome.strikes.append(Strike(scenario.name))
        outcome.redone = site.steps_trained() - outcome.steps
    except Exception as error:  # whatever it is, the others go on
        said = (directory / "stderr").read_text(errors="replace")[-400:]
        what = error if isinstance(error, Violation) else repr(error)
        outcome.too_late = isinstance(error, TooLateError)
        outcome.violation = f"{scenario.name} (seed {outcome.seed}): {what}; head said: {said}"
    finally:
        if run.is_running():
            run.kill()


def finish(run: RealRun) -> None:
    """To the end, resumed as often as the message says so."""
    for _ in range(4):
        code = run.end_head()
        if code == 0:
            return
        run.resume()
    raise Violation(f"I4: still not finished: exit codes {[code for code, _ in run.exits]}")


@contextmanager
def sites(directory: Path, count: int) -> Iterator[SimpleQueue[Site]]:
    """A few clusters, lent out one at a time."""
    with ThreadPoolExecutor(count) as pool:
        made = list(pool.map(Site, [directory / f"site-{number}" for number in range(count)]))
    free: SimpleQueue[Site] = SimpleQueue()
    for one in made:
        free.put(one)
    try:
        yield free
    finally:
        for one in made:
            one.heal()
            one.down()


def run_scenarios(scenarios: list[Scenario], seed: int, at_once: int = AT_ONCE) -> list[Outcome]:
    """Most of their time is spent waiting, so several go on at once."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with sites(directory, min(at_once, len(scenarios))) as free:

            def play(number: int) -> Outcome:
                """Once; again with another seed if a fault came too late, three times at most."""
                site, place = free.get(), directory / f"run-{number}"
                began = time.monotonic()
                try:
                    for again in range(_TRIES):
                        one = seed + number + again * len(scenarios)
                        outcome = run_scenario(scenarios[number], site, place, one)
                        shutil.rmtree(place, ignore_errors=True)
                        if not outcome.too_late:
                            break
                    outcome.seconds = time.monotonic() - began
                    return outcome
                finally:
                    free.put(site)

            with ThreadPoolExecutor(at_once) as pool:
                return list(pool.map(play, range(len(scenarios))))


@section(REAL, waits=True)
def run_real(size: Size) -> Findings:
    chosen = scenarios(size.is_full) + (kills() * 16 if size.is_full else [])
    chosen = [scenario for scenario in chosen if size.scenario in scenario.name]
    chosen.sort(key=lambda scenario: -scenario.length)  # so that none is left over at the end
    checked = Count.checked
    outcomes = run_scenarios(chosen, size.seed)
    strikes = [strike for outcome in outcomes for strike in outcome.strikes]
    kinds: dict[str, list[Strike]] = {}
    for strike in strikes:
        kinds.setdefault(strike.kind.split(" at ")[0], []).append(strike)
    missed = [o.violation for o in outcomes if o.violation and o.too_late]
    violations = [o.violation for o in outcomes if o.violation and not o.too_late]
    if len(missed) > _MOST_MISSED * len(outcomes):  # what hardly ever strikes shows nothing
        violations += missed
    return Findings(
        trials=len(strikes),
        fired=Counter(strike.kind for strike in strikes),
        checked=Count.checked - checked,
        violations=violations,
        recoveries_s=[s.recovered_s for s in strikes if s.recovered_s is not None],
        steps=sum(outcome.steps for outcome in outcomes),
        steps_redone=sum(outcome.redone for outcome in outcomes),
        skipped=[
            *(o.skipped for o in outcomes if o.skipped),
            *(f"not struck in {_TRIES} tries: {one.partition('; head said')[0]}" for one in missed),
        ],
        details={
            "worst, in seconds": {kind: _worst(found) for kind, found in kinds.items()},
            "longest scenarios": {
                o.name: f"{o.seconds:.0f} s"
                for o in sorted(outcomes, key=lambda o: -o.seconds)[:_LONGEST_SHOWN]
            },
        },
    )


def _worst(strikes: list[Strike]) -> str:
    noticed = [s.noticed_s for s in strikes if s.noticed_s is not None]
    counted = [s.recovered_s for s in strikes if s.recovered_s is not None]
    words = [f"{len(strikes)} fired"]
    words += [f"a loss recorded after {max(noticed):.1f}"] if noticed else []
    words += [f"the victim's steps counted after {max(counted):.1f}"] if counted else []
    others = [s.others_s for s in strikes if s.others_s is not None]
    words += [f"others at most {max(others):.1f} without a merge"] if others else []
    return ", ".join(words)
