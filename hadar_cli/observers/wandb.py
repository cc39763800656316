"""Runs of W&B: one for each series, grouped by hadar's run. Offline ones are for `wandb sync`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Observing offline means that nobody is told, of crashes neither.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb
from wandb.util import get_core_path

from hadar_cli.core.measures.points import Point
from hadar_cli.observers.sink import Subject

_READ_S = 120.0  # for wandb to list what a file of its own holds
# As `wandb leet inspect --json` does it, without the seconds that its command line takes.
_INSPECT = ("leet", "inspect", "--no-observability", "--json", "--run-file")
_QUIET = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
}


class Wandb:
    """W&B counts rows of a run (`_step`), and this is the number of the point in its series. How
    many rows there are W&B itself says: the server of a run that is resumed, or its files here."""

    def __init__(self, subject: Subject, fields: Mapping[str, str]) -> None:
        self._subject, self._fields = subject, fields
        self._mode = fields.get("mode", "offline")
        self._folder = Path(fields.get("dir") or subject.directory)
        self._runs: dict[str, Any] = {}
        self._there: dict[str, int] = {}
        self._told: dict[str, int] = {}

    @property
    def place(self) -> str:
        if self._mode == "online":
            return f"W&B, project {self._project}, group {self._subject.facts.id}"
        return f"wandb sync {self._folder}/wandb/offline-run-*"

    @property
    def _project(self) -> str:
        return self._fields.get("project") or self._subject.facts.mix.name

    def write(self, points: Sequence[Point]) -> int:
        count = 0
        for point in points:
            series, row = point.series, self._told.get(point.series, 0)
            self._told[series] = row + 1
            if row >= self._known(series):
                values = {**point.values, "steps": point.step, "seconds": point.t}
                self._run(series).log(values, step=row, commit=True)
                count += len(point.values)
        return count

    def _known(self, series: str) -> int:
        """Rows that were there at first."""
        if series not in self._there:
            is_offline = self._mode == "offline"
            self._there[series] = self._rows(series) if is_offline else self._run(series).step
        return self._there[series]

    def _run(self, series: str) -> Any:
        if series not in self._runs:
            self._runs[series] = self._begin(series)
        return self._runs[series]

    def _id(self, series: str) -> str:
        return hashlib.sha256(self._subject.key(series).encode()).hexdigest()[:16]

    def _begin(self, series: str) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=self._project,
            entity=self._fields.get("entity"),
            id=self._id(series),
            name=f"{self._subject.facts.id}/{series}",
            group=self._subject.facts.id,
            config=self._subject.settings(series),
            dir=self._folder,
            mode=self._mode,  # type: ignore[arg-type]  # one of two words, as checked
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**_QUIET),
        )
        run.define_metric("steps", hidden=True)
        run.define_metric("*", step_metric="steps")
        return run

    def _rows(self, series: str) -> int:
        """How many rows earlier processes left, as wandb reads its own files."""
        name, last = self._id(series), -1
        # Folders of the same second are told apart by a number at their end.
        for path in self._folder.glob(f"wandb/offline-run-*-{name}*/run-{name}.wandb"):
            command = [get_core_path(), *_INSPECT, str(path), str(path.parent)]
            done = subprocess.run(command, capture_output=True, timeout=_READ_S, check=True)
            records = map(json.loads, done.stdout.splitlines())
            rows = [one["history"]["item"]["_step"] for one in records if one["type"] == "history"]
            last = max([last, *rows])
        return last + 1

    def close(self, standings: Mapping[str, str]) -> None:
        for run in self._runs.values():
            run.finish()
