"""What has been measured, kept in one JSON file and never measured twice."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.quality import costs
from bench.quality.costs import Costs
from bench.quality.course import Outcome, run, solo
from bench.quality.plan import Task
from bench.quality.scheduled import merges_in_mix
from hadar_cli.core.model import PAPER_MERGE

SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


class Results:
    """Outcomes by task; a recipe is what it does, whatever it is called."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def __getitem__(self, task: Task) -> Outcome:
        row = self._rows[_key(task)]
        return Outcome(**row | {"curve": tuple(map(tuple, row.get("curve", ())))})

    def __contains__(self, task: Task) -> bool:
        return _key(task) in self._rows

    def add(self, task: Task, outcome: Outcome) -> None:
        self._rows[_key(task)] = asdict(outcome)
        part = self._path.with_suffix(".part")
        lines = (f"{json.dumps(key)}: {json.dumps(row)}" for key, row in self._rows.items())
        part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        part.replace(self._path)


@dataclass(frozen=True, slots=True)
class Kept:
    """All that the page is written from."""

    quality: Results  # after all steps
    travel: Results  # with smaller hand-ins
    curves: Results  # with looks on the way
    costs: dict[str, Costs]  # on the lab, by workload

    @classmethod
    def beside(cls, path: Path) -> Kept:
        travel, curves = (Results(path.with_name(f"{name}.json")) for name in ("travel", "curves"))
        return cls(Results(path), travel, curves, costs.kept(path.with_name("costs.json")))


def _key(task: Task) -> str:
    """What bears on the outcome, and no more: a new rule or default leaves old outcomes valid."""
    recipe = asdict(task.recipe)
    del recipe["name"]
    rules = asdict(task.recipe.rules).items()
    plain = asdict(PAPER_MERGE) | {"every_s": task.recipe.rules.every_s}  # ``every`` says it
    recipe["rules"] = {name: value for name, value in rules if value != plain[name]}
    if len(task.recipe.speeds) == 1:
        recipe["rules"] = {}
    elif not task.recipe.in_mix:
        recipe["rules"]["solo"] = solo(task.recipe, task.steps)  # in steps, whatever the rule says
    if recipe.pop("in_mix"):
        merges = json.dumps(merges_in_mix(task.workload, task.seed))
        recipe["schedule"] = hashlib.sha256(merges.encode()).hexdigest()[:12]
    return json.dumps([task.workload, task.steps, task.seed, recipe], separators=(",", ":"))


def measure(tasks: Iterable[Task], results: Results, processes: int) -> None:
    """Do what has not been done yet, several at a time, keeping each outcome as it comes."""
    missing = list({_key(task): task for task in tasks if task not in results}.values())
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        done = pool.imap_unordered(_measure, missing)
        for number, (task, outcome) in enumerate(done, start=1):
            results.add(task, outcome)
            title = f"{task.workload}, {task.recipe.name}, seed {task.seed}"
            print(f"{number}/{len(missing)}  {title}: {outcome.loss:.4f}", flush=True)


def _measure(task: Task) -> tuple[Task, Outcome]:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        where = Path(folder)
        return task, run(task.workload, task.recipe, task.steps, task.seed, where, task.looks)
