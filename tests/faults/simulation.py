"""Many schedules and all mutants, as sections of ``scripts/faults``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from tests.faults.misfortune import KINDS
from tests.faults.mutants import MUTANTS, OF_GANGS
from tests.faults.sections import Findings, Size, section
from tests.faults.world import Outcome, run_schedule

QUICK, FULL = 600, 100_000
QUICK_GANGS, FULL_GANGS = 220, 20_000
MOST_TRIES = 600  # schedules within which a mutant has to be noticed
# Where each of the mutants that are noticed late was noticed first: tried before all others.
TELLING = {
    "a stop keeps what copies held": 893,
    "merge without weights": 234,
    "a member does not count": 1540,
    "checkpoints are not verified": 155,
    "the hung are waited for": 93,
    "a failed job ends the run": 70,
    "frozen parts do not matter": 63,
    "the journal is not synced": 59,
    "updates fit any weights": 40,
    "members of a lost gang live on": 39,
    "every copy hears that it was merged": 19,
    "requests are removed before they are journalled": 24,
    "what a killed head journalled is not carried out": 24,
    "the next head trains on drained nodes": 10,
}

# Not noticed within as many tries: while an order is on its way ahead, another copy has to make the
# weights of the same generation. --full looks for it longer; test_state.py holds the rule.
HARD = {"whom a copy follows does not matter"}


@dataclass
class Tally:
    """Outcomes of many schedules, added up."""

    schedules: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    heads: int = 0
    events: int = 0
    checked: int = 0
    steps: int = 0
    steps_redone: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.fired.update(outcome.fired)
        self.passed.update(outcome.passed)
        self.heads += outcome.heads
        self.events += outcome.events
        self.checked += outcome.checked
        self.steps += outcome.steps
        self.steps_redone += outcome.steps_redone
        self.recoveries_s += outcome.recoveries_s
        if outcome.violation:
            self.violations.append(f"seed {outcome.seed}: {outcome.violation}")


def run_many(seeds: Iterable[int], processes: int = 1, gangs: bool = False) -> Tally:
    tally, run = Tally(), partial(run_schedule, gangs=gangs)
    if processes == 1:
        for seed in seeds:
            tally.add(run(seed))
        return tally
    with get_context("fork").Pool(processes) as pool:
        for outcome in pool.imap_unordered(run, seeds, chunksize=20):
            tally.add(outcome)
    tally.violations.sort()
    return tally


@section("simulated schedules")
def run_schedules(size: Size) -> Findings:
    count = FULL if size.is_full else QUICK
    tally = run_many(range(size.seed, size.seed + count), size.processes)
    never = [kind for kind in KINDS if not tally.fired[kind]]
    return Findings(
        trials=tally.schedules,
        fired=tally.fired,
        checked=tally.checked,
        violations=tally.violations + [f"{kind}: it never fired" for kind in never],
        recoveries_s=tally.recoveries_s,
        steps=tally.steps,
        steps_redone=tally.steps_redone,
        details={
            "amounts": {"heads started": tally.heads, "journal records checked": tally.events},
            "faults fired": {kind: tally.fired[kind] for kind in KINDS},
            "places passed": dict(sorted(tally.passed.items())),
        },
    )


@section("simulated gangs")
def run_gangs(size: Size) -> Findings:
    """Jobs that are not forked, but have several devices at once."""
    count = FULL_GANGS if size.is_full else QUICK_GANGS
    tally = run_many(range(size.seed, size.seed + count), size.processes, gangs=True)
    return Findings(
        trials=tally.schedules,
        fired=tally.fired,
        checked=tally.checked,
        violations=[f"gangs, {violation}" for violation in tally.violations],
        recoveries_s=tally.recoveries_s,
        steps=tally.steps,
        steps_redone=tally.steps_redone,
    )


def find_violation(name: str, first_seed: int = 1) -> Outcome | None:
    """The first schedule in which a mutant is noticed."""
    tries = 10 * MOST_TRIES if name in HARD else MOST_TRIES
    told = [TELLING[name]] if name in TELLING else []
    run = partial(run_schedule, gangs=name in OF_GANGS)
    with MUTANTS[name]():
        outcomes = map(run, (*told, *range(first_seed, first_seed + tries)))
        return next((outcome for outcome in outcomes if outcome.violation), None)


@section("mutants")
def run_mutants(size: Size) -> Findings:
    tried = [name for name in MUTANTS if size.is_full or name not in HARD]
    with get_context("fork").Pool(size.processes) as pool:
        find = partial(find_violation, first_seed=size.seed)
        found = dict(zip(tried, pool.map(find, tried, chunksize=1), strict=True))
    missed = [name for name, outcome in found.items() if not outcome]
    noticed_by = {
        name: f"seed {outcome.seed}: {(outcome.violation or '')[:60]}" if outcome else "nobody"
        for name, outcome in found.items()
    }
    return Findings(
        trials=len(found),
        fired=Counter(found.keys()),
        checked=len(found),
        violations=[f"mutant not noticed: {name}" for name in missed],
        details={"noticed by": noticed_by},
    )
