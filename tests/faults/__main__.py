"""``scripts/faults``: injects faults by size and says what came of it."""

from __future__ import annotations

import argparse
import os
import sys

from tests.faults import simulation  # noqa: F401 - its sections register themselves
from tests.faults.sections import SECTIONS, Findings, Size
from tests.faults.world import run_schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help="minutes; the default")
    amount.add_argument("--full", action="store_true", help="hours")
    parser.add_argument("--seed", type=int, help="run this one schedule again")
    parser.add_argument("--first-seed", type=int, default=1, help="begin with this one")
    parser.add_argument("--only", choices=SECTIONS, help="run this section alone")
    parser.add_argument("-j", "--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return _repeat(options.seed)
    size = Size(options.full, options.first_seed, options.processes)
    violations = 0
    for name in [options.only] if options.only else SECTIONS:
        findings = SECTIONS[name](size)
        _print(findings)
        violations += len(findings.violations)
    print("no violation" if not violations else f"{violations} violations")
    return 1 if violations else 0


def _print(findings: Findings) -> None:
    for title, table in findings.tables.items():
        print(f"\n{title}")
        width = max((len(name) for name in table), default=0)
        for name, figure in table.items():
            print(f"  {name:<{width}}  {figure}")
    for violation in findings.violations:
        print(f"VIOLATION {violation}")
    print(flush=True)


def _repeat(seed: int) -> int:
    outcome = run_schedule(seed)
    print(f"seed {seed}: {outcome.heads} heads, {outcome.events} records, {outcome.seconds:.0f} s")
    for kind, count in sorted(outcome.fired.items()):
        print(f"  {kind} × {count}")
    print(outcome.violation or "no violation")
    return 1 if outcome.violation else 0


if __name__ == "__main__":
    sys.exit(main())
