"""All benchmarks, by one command.

    python -m bench [--quick] [--only NAME ...] [--compare] [--out FILE]

Each stands in a file of its own and measures ours beside a rival or a physical limit in the same
run. ``--compare`` holds the ratios against the stored baseline and exits with 1 if one got worse;
``--keep`` makes this run the baseline. Quality has its own command: ``python -m bench.quality``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from bench import frame

ROOT = Path(__file__).parents[1]
BASELINE = ROOT / "bench" / "baseline.json"
BENCHES = (
    "startup",
    "decisions",
    "simulation",
    "merge",
    "adapter",
    "transfer",
    "machines",
    "data",
    "round_overhead",
    "head_load",
    "gang",
    "lone",
    "engines",
)


def commit() -> str:
    """The present commit, marked where the files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def measure(names: list[str], quick: bool) -> tuple[frame.Rows, list[str]]:
    """The rows of these benchmarks, and those that failed; each is shown as it comes."""
    found: frame.Rows = {}
    failed = []
    for name in names:
        print(name, flush=True)
        try:
            for row in importlib.import_module(f"bench.{name}").rows(quick):
                found.setdefault(name, []).append(row)
                print(frame.line(row), flush=True)
        except Exception as error:  # one that cannot run here must not hide the others
            print(f"  failed: {error!r}", flush=True)
            failed.append(name)
    return found, failed


def compare(before: frame.Run, found: frame.Rows) -> bool:
    """Shows how the ratios changed; whether one got worse."""
    print(f"against {before.commit} of {before.when} on {before.machine}:")
    some_worse = False
    for change in sorted(frame.changes(before.rows, found), key=lambda change: change.factor):
        verdict = "WORSE" if change.is_worse else "ok"
        some_worse |= change.is_worse
        ratios = f"{change.before.ratio:.2f} -> {change.now.ratio:.2f}"
        print(f"  {verdict:6} {change.bench}: {change.now.case}: {ratios} ({change.factor:.2f} x)")
    return some_worse


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases, in a minute or two")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES), metavar="NAME")
    parser.add_argument("--compare", action="store_true", help="flag what got worse")
    parser.add_argument("--keep", action="store_true", help="make this run the baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    asked = parser.parse_args()
    before = frame.read(asked.baseline) if asked.baseline.exists() else None
    if asked.compare and before is None:
        parser.error(f"there is no baseline in {asked.baseline}: make one with --keep")
    found, failed = measure(asked.only, asked.quick)
    kept = {**(before.rows if before else {}), **found} if asked.keep else found
    run = frame.Run(commit(), now(), machine(), kept)
    frame.write(asked.baseline if asked.keep else asked.out, run)
    got_worse = compare(before, found) if asked.compare and before else False
    return 1 if failed or got_worse else 0


if __name__ == "__main__":
    sys.exit(main())
