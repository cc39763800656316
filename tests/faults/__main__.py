"""``scripts/faults``: injects faults by size and says what came of it."""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults import table
from tests.faults.engine_mix import strike_mix
from tests.faults.engines import PLACES, strike_all
from tests.faults.real import REAL
from tests.faults.sections import Findings, Size, load
from tests.faults.world import run_schedule

_ONLY_FULL = ("engines", "whole mixes")


def main() -> int:
    options = _parser().parse_args()
    if options.seed is not None:
        return _repeat(options.seed)
    size = Size(options.full, options.first_seed, options.processes, options.scenario)
    if options.into:
        options.into.write_bytes(pickle.dumps(load()[options.only[0]].run(size)))
        return 0
    began = time.monotonic()
    if options.engine:
        mix = options.mix
        strike = (lambda name: strike_mix(name, mix)) if mix else strike_all
        findings = {name: strike(name) for name in options.engine}
    else:
        chosen = [REAL] if options.scenario else options.only or _sections(size)
        findings = _run_all(chosen, size)
    for name, found in findings.items():
        table.print_details(name, found, options.table)
    print(table.rows(findings))
    violations = [violation for found in findings.values() for violation in found.violations]
    for violation in violations:
        print(f"VIOLATION {violation}")
    print(f"{len(violations) or 'no'} violations in {time.monotonic() - began:.0f} s", end="")
    print(f", seeds from {size.seed}")
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help="minutes; the default")
    amount.add_argument("--full", action="store_true", help="hours")
    parser.add_argument("--seed", type=int, help="run this one schedule again")
    parser.add_argument("--first-seed", type=int, default=1, help="begin with this one")
    parser.add_argument("--only", action="append", choices=load(), help="run this section")
    parser.add_argument("--scenario", default="", help="real faults whose names have this in them")
    parser.add_argument("--engine", action="append", choices=PLACES, help="faults behind this one")
    parser.add_argument("--mix", type=Path, help="with --engine: this one, and the engine's whims")
    parser.add_argument("--table", action="store_true", help="print the table, and no details")
    parser.add_argument("-j", "--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # a section's own process
    return parser


def _sections(size: Size) -> list[str]:
    return [name for name in load() if size.is_full or name not in _ONLY_FULL]


def _run_all(names: list[str], size: Size) -> dict[str, Findings]:
    """Those that compute one after another, those that wait beside them, two at a time."""
    with (
        tempfile.TemporaryDirectory() as directory,
        ThreadPoolExecutor(1) as computing,
        ThreadPoolExecutor(2) as waiting,
    ):
        results = {}
        for name in names:
            lane = waiting if load()[name].waits else computing
            results[name] = lane.submit(_run_apart, name, size, Path(directory))
        return {name: result.result() for name, result in results.items()}


def _run_apart(name: str, size: Size, directory: Path) -> Findings:
    """In a process of its own: sections fork, patch and count threads."""
    into = directory / name.replace(" ", "-")
    words = ["--only", name, "--into", str(into), "--first-seed", str(size.seed)]
    words += ["-j", str(size.processes), *(["--full"] if size.is_full else [])]
    words += ["--scenario", size.scenario]
    began = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "tests.faults", *words], check=False).returncode
    took = time.monotonic() - began
    print(f"{name}: {took:.0f} s", file=sys.stderr, flush=True)
    if code:
        return Findings(violations=[f"{name}: the section itself ended with {code}"])
    findings: Findings = pickle.loads(into.read_bytes())
    return findings


def _repeat(seed: int) -> int:
    outcome = run_schedule(seed)
    print(f"seed {seed}: {outcome.heads} heads, {outcome.events} records, {outcome.seconds:.0f} s")
    for kind, count in sorted(outcome.fired.items()):
        print(f"  {kind} × {count}")
    print(outcome.violation or "no violation")
    return 1 if outcome.violation else 0


if __name__ == "__main__":
    sys.exit(main())
