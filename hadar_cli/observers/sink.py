"""What an observer writes to: the port that each library has a file for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from hadar_cli.core.measures.points import Point
from hadar_cli.core.model import Job
from hadar_cli.core.state import RunState
from hadar_cli.runs.store import RunFacts


@dataclass(frozen=True)
class Subject:
    """The run that is observed, and where it lies."""

    directory: Path
    facts: RunFacts
    state: RunState  # for jobs may come later

    def key(self, series: str) -> str:
        """What no other run's series is called, whatever their names."""
        return f"{self.facts.id}/{self.facts.token or self.facts.started_at}/{series}"

    @property
    def began_at(self) -> float:
        """On the wall's clock. Points follow the run's clock from there, which stands still while
        nobody drives it."""
        return datetime.fromisoformat(self.facts.started_at).timestamp()

    def settings(self, series: str) -> dict[str, str | bool | int | float]:
        """What sets the series apart from others."""
        mix = self.facts.mix
        about: dict[str, str | bool | int | float] = {"run": self.facts.id, "mix": mix.name}
        about["policy"] = mix.policy.name
        jobs = (each.job for each in self.state.jobs.values())
        job = next((job for job in jobs if job.name == series), None)
        return {**about, **_settings(job)} if job else about


def _settings(job: Job) -> dict[str, str | bool | int | float]:
    what = job.launch.workload or job.launch.module or Path(job.launch.script or "").name
    told: dict[str, str | bool | int | float] = {
        "job": job.name,
        "trains": what,
        "steps": job.target_steps,
    }
    return {**told, "batch_size": job.batch_size, **(job.trial.params if job.trial else {})}


class Sink(Protocol):
    """Takes points in their order. After every opening it is told all of them from the first on,
    and leaves out what it has already."""

    @property
    def place(self) -> str:
        """Where to look, for people."""

    def write(self, points: Sequence[Point]) -> int:
        """How many values were new. What it has taken outlives this process."""

    def close(self, standings: Mapping[str, str]) -> None:
        """Nothing more comes from here; `finished` and `failed` series never go on."""


class Missing:
    """Finds out by counting which values of a series are not there yet."""

    def __init__(self, there: Mapping[str, int]) -> None:
        self._there = Counter(there)

    def of(self, point: Point) -> dict[str, float]:
        new = {}
        for tag, value in point.values.items():
            if self._there[tag] > 0:
                self._there[tag] -= 1
            else:
                new[tag] = value
        return new
