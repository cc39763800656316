"""Asks for more trials of a sweep when those that it has are over, as ``hadar add`` would.

The request is named by the sweep and by how many trials it has: a head that was killed in between
asks for the same, and it is granted once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hadar_cli.config.sweeps import base_of, is_higher, more_trials
from hadar_cli.core.events import RequestRefused
from hadar_cli.core.model import Job, Search, Value
from hadar_cli.core.state import JobState
from hadar_cli.engine.ports import Observer
from hadar_cli.engine.tracker import Tracker
from hadar_cli.runs.requests import AddJobs, Inbox
from hadar_cli.runs.store import RunStore
from hadar_cli.suggestions import suggest


class SweepSearch(Observer):
    """Looks at every tick, and once more when all is trained."""

    def __init__(self, store: RunStore, tracker: Tracker, clock: Callable[[], float]) -> None:
        self._inbox, self._tracker, self._clock = Inbox(store), tracker, clock
        self._state = tracker.state
        self._is_needed = any(_search(job) for job in self._state.jobs.values())

    def tick(self) -> None:
        if self._is_needed:
            self.look()

    def look(self) -> None:
        sweeps: dict[str, list[JobState]] = {}
        for job in self._state.jobs.values():
            if _search(job) and job.job.trial:
                sweeps.setdefault(job.job.trial.sweep, []).append(job)
        for name, trials in sweeps.items():
            search, number = _search(trials[0]), f"optuna-{name}-{len(trials)}"
            if not search or len(trials) >= search.trials or number in self._state.requests:
                continue
            if not all(map(_is_over, trials)) or number in self._inbox.waiting():
                continue
            if why := _hopeless(search, trials):
                why = f"no more trials of {name}: {why}"
                self._tracker.record(RequestRefused(self._clock(), number, why))
            else:
                self._inbox.put(AddJobs(_next(search, trials)), number)


def _hopeless(search: Search, trials: list[JobState]) -> str:
    """Why suggestions would be mere guesses, if so: nothing can be learned of what there is."""
    if any(_told(search, trial)[1] is not None for trial in trials):
        return ""
    figures = sorted({figure for trial in trials for figure in trial.quality or ()})
    only = f", only {', '.join(figures)}" if figures else ""
    return f"none of the {len(trials)} reports '{search.metric}'{only}"


def _next(search: Search, trials: list[JobState]) -> tuple[Job, ...]:
    base, ordered = base_of(trials[0].job), sorted(trials, key=_number)
    points = suggest(search, is_higher(search.metric, base), [_told(search, t) for t in ordered])
    return tuple(more_trials(base, search, len(trials), points))


def _told(search: Search, job: JobState) -> tuple[Mapping[str, Value], float | None]:
    assert job.job.trial
    came_to = None if job.failed or job.is_cancelled else (job.quality or {}).get(search.metric)
    return job.job.trial.params, came_to


def _search(job: JobState) -> Search | None:
    return job.job.trial.search if job.job.trial else None


def _number(job: JobState) -> int:
    return job.job.trial.number if job.job.trial else 0


def _is_over(job: JobState) -> bool:
    """Whether what came of it is known, or never will be."""
    return (job.is_over or job.is_cancelled) and not job.is_unmeasured
