"""Trains every script of styles/ by hand and under hadar, and writes docs/scripts.md.

    python -m bench.scripts [--seeds 3] [--only NAME ...] [--columns try hand one ssh]

What was measured is kept in bench/results/scripts.json; the page is written from all of it.

A line of a script that ends with ``# hadar`` is not in the script by hand; one that ends with
``# hadar: …`` stands there as the comment says.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.scripts.page import page
from hadar_cli.core.events import WeightsMerged
from hadar_cli.runs.store import read_journal
from tests.support.lab import running

ROOT = Path(__file__).parents[2]
STYLES = Path(__file__).parent / "styles"
PAGE = ROOT / "docs" / "scripts.md"
RESULTS = ROOT / "bench" / "results" / "scripts.json"
# By script: how many steps (updates) it has, of how many samples each.
LENGTHS = {
    "epochs": (256, 32),
    "gpt": (200, 16),
    "recurrent": (147, 16),
    "ema_amp": (256, 32),
    "weighted": (192, 32),
    "stream": (192, 32),
    "accumulated": (256, 32),
    "two_models": (192, 32),
    "early": (1920, 32),
    "accelerated": (256, 32),
    "trainer": (150, 16),
    "sft_lora": (150, 8),
    "lit": (256, 32),
}
ALONE = """[[node]]
name = "here"
host = "local"
gpus = [{ model = "T4" }, { model = "T4" }, { model = "T4" }, { model = "T4" }]
emulate = { speed = 1.0 }
"""
# Of a core, over SSH: so slow that a job of some hundred steps outlasts its second copy's start.
SPEED = 0.015
SPEEDS = {"recurrent": 0.02, "gpt": 0.03, "lit": 0.03, "trainer": 0.05, "sft_lora": 0.08}
RULES = {"slot_s": 10, "merge": {"solo": 0, "every_s": 4}}
AT_ONCE = 5  # trainings


def by_hand(text: str) -> str:
    """The script as it was before hadar."""
    lines = []
    for line in text.splitlines():
        marked = re.match(r"^(\s*).*?\s+# hadar(?:: (.*))?$", line)
        if not marked:
            lines.append(line)
        elif marked[2]:
            lines.append(marked[1] + marked[2])
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=sorted(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--columns", nargs="*", choices=COLUMNS, default=list(COLUMNS))
    given = parser.parse_args()
    for column in given.columns:
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                COLUMNS[column](Path(folder), given.only, seed)
    _write_page()


def _keep(column: str, name: str, seed: int, measured: dict[str, Any]) -> None:
    """Adds to the results, which other columns may be writing to at the same time."""
    print(f"{name:12} {column}, seed {seed}: {measured}", flush=True)
    with RESULTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        results = json.load(file)
        results.setdefault(name, {}).setdefault(column, {})[str(seed)] = measured
        file.seek(0)
        file.truncate()
        json.dump(results, file, indent=1, sort_keys=True)
        file.write("\n")


def _write_page() -> None:
    results = json.loads(RESULTS.read_text())
    texts = {name: (STYLES / f"{name}.py").read_text() for name in LENGTHS}
    PAGE.write_text(page(texts, results))


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HADAR_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def _hand(here: Path, names: list[str], seed: int) -> None:
    for name in names:
        (here / f"{name}.py").write_text(by_hand((STYLES / f"{name}.py").read_text()))
    command = [sys.executable, str(Path(__file__).with_name("hand.py")), str(seed)]
    command += [str(here / f"{name}.py") for name in names]
    ran = subprocess.run(command, cwd=here, env=_environment(), capture_output=True, text=True)
    values: dict[str, float] = {}
    for line in ran.stdout.splitlines():
        if line.startswith("script "):
            name = line.removeprefix("script ")
        elif line.startswith("quality "):
            (values[name],) = ast.literal_eval(line.removeprefix("quality ")).values()
    if missing := [name for name in names if name not in values]:
        raise SystemExit(f"by hand, no quality of {missing}: {ran.stderr[-2000:]}")
    for name, value in values.items():
        _keep("hand", name, seed, {"value": value})


def _one(here: Path, names: list[str], seed: int) -> None:
    """Four jobs at a time, each on one device of this computer."""
    nodes = here / "nodes.toml"
    nodes.write_text(ALONE)
    _under_hadar(here, "one", names, seed, nodes, {"slot_s": 60}, {"fork": "never"})


def _ssh(here: Path, names: list[str], seed: int) -> None:
    """Each job in a run of its own: of several, only the last to end would be forked."""
    with running(here / "lab", 2) as lab:
        sizes = {"model_size": "extra-high", "dataset_size": "XL"}  # else taken for short

        def train(name: str) -> None:
            (here / name).mkdir()
            nodes = lab.inventory.with_name(f"{name}.toml")
            paced = f"speed = {SPEEDS.get(name, SPEED)}"
            nodes.write_text(re.sub("speed = [0-9.]+", paced, lab.inventory.read_text()))
            _under_hadar(here / name, "ssh", [name], seed, nodes, RULES, sizes)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(train, names))


def _try(here: Path, names: list[str], seed: int) -> None:
    """Whether ``hadar try`` finds anything; with the first seed only."""

    def tried(name: str) -> None:
        command = [sys.executable, "-m", "hadar_cli.cli.main", "try", str(STYLES / f"{name}.py")]
        command += ["--json", "--patience", "300", "--", "--seed", str(seed)]
        ran = subprocess.run(command, cwd=here, env=_environment(), capture_output=True, text=True)
        if ran.returncode not in (0, 2) or not ran.stdout:
            raise SystemExit(f"hadar try {name}: {ran.stderr[-3000:]}")
        found: dict[str, list[str]] = {"passed": [], "warned": [], "failed": []}
        for check in json.loads(ran.stdout)["checks"]:
            found[check["status"]].append(f"{check['name']}: {check['what']}")
        _keep("try", name, seed, {**found, "passed": len(found["passed"])})

    if not seed:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(tried, names))


COLUMNS = {"try": _try, "hand": _hand, "one": _one, "ssh": _ssh}


def _under_hadar(
    here: Path,
    column: str,
    names: list[str],
    seed: int,
    nodes: Path,
    rules: dict[str, Any],
    of_each: dict[str, Any],
) -> None:
    jobs = [
        {
            "name": name,
            "script": str(STYLES / f"{name}.py"),
            "args": ["--seed", seed],
            "steps": LENGTHS[name][0],
            "batch_size": LENGTHS[name][1],
            "sync": str(STYLES),
            **of_each,
        }
        for name in names
    ]
    mix = here / "styles.yaml"
    run = f"{column}-{names[0]}-{seed}"  # several use the nodes at once: not all of one name
    mix.write_text(json.dumps({"name": run, "seed": seed, **rules, "jobs": jobs}))
    command = [sys.executable, "-m", "hadar_cli.cli.main", "run", str(mix), "-n", str(nodes)]
    ran = subprocess.run(
        [*command, "--json"], cwd=here, env=_environment(), capture_output=True, text=True
    )
    if ran.returncode not in (0, 3) or not ran.stdout:  # 3: some jobs failed, and the rows say so
        raise SystemExit(f"hadar run: {ran.stderr[-3000:]}")
    told = json.loads(ran.stdout)
    journal = read_journal(here / "runs" / told["run"] / "journal.jsonl")
    merges = [event for event in journal if isinstance(event, WeightsMerged)]
    for number, job in enumerate(told["jobs"]):
        together = [merge for merge in merges if merge.job == number and len(merge.accepted) > 1]
        measured = {
            "value": job["value"],
            "failed": job["failed"],
            "copies": max((len(merge.accepted) for merge in together), default=1),
            "merges": len(together),
            "bytes": sum(merge.bytes_in for merge in together),
        }
        _keep(column, job["name"], seed, measured)


if __name__ == "__main__":
    main()
