"""Looks at a run through its journal, while another process drives it or when nobody does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from hadar_cli.core.estimates.gangs import speeds_seen
from hadar_cli.core.events import CopyFinished, Event, HeadStarted, JobsAdded, RunStopped
from hadar_cli.core.model import devices_of
from hadar_cli.core.state import RunState
from hadar_cli.runs.store import RunStore, contradictions_of, read_journal

if TYPE_CHECKING:
    from hadar_cli.core.estimates.throughput import RateModel


def _nobody(event: Event) -> None: ...


class JournalFollower:
    """Follows a run; ``standing`` is `running`, `finished`, `stopped` in order or `unfinished`."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.facts = store.facts.with_added(read_journal(store.journal_path))
        self.devices = devices_of(self.facts.nodes)
        self.state = RunState(self.facts.mix.jobs)
        self.standing = "unfinished"
        self.pid: int | None = None  # of the head that drives it
        self._journal, self._size, self._heard = store.journal_path, 0, 0
        self._last: Event | None = None

    @cached_property
    def rates(self) -> RateModel:
        """What the run measured, from the first look on if it is asked for before."""
        from hadar_cli.core.estimates.throughput import RateModel  # numpy: slow to import

        return RateModel(self.facts.mix.jobs, self.devices)

    def now(self) -> float:
        """The run's clock: it goes on while someone drives the run."""
        if self.standing != "running" or not self._heard:
            return self.state.now
        return self.state.now + max(0.0, time.time() - self._journal.stat().st_mtime)

    def look(self, tell: Callable[[Event], object] = _nobody) -> None:
        """Takes in what happened since the last look, and tells it event by event."""
        self.pid = self.store.holder()  # first: a head that has left has written its end before
        self.standing = "unfinished"  # while events of the past pass by, the clock stands
        size = self._journal.stat().st_size if self._journal.exists() else 0
        if size != self._size:
            self._size = size
            with contradictions_of(self.store):
                for event in read_journal(self._journal)[self._heard :]:
                    self._hear(event)
                    tell(event)
        self.standing = self._standing()

    def _hear(self, event: Event) -> None:
        self._heard += 1
        self._last = event
        self.state.apply(event)
        if isinstance(event, JobsAdded) or (isinstance(event, HeadStarted) and event.goes_on):
            self._look_anew()
        if isinstance(event, CopyFinished) and "rates" in self.__dict__:
            started = self.state.started[event.attempt]
            for device, *seen in speeds_seen(started, event):
                self.rates.observe(started.job, device, *seen)

    def _look_anew(self) -> None:
        """Jobs or nodes have come or gone."""
        facts = self.store.facts
        jobs = tuple(job.job for job in self.state.jobs.values())
        self.facts = replace(facts, mix=replace(facts.mix, jobs=jobs))
        self.devices = devices_of(facts.nodes)
        if "rates" in self.__dict__:
            self.rates.widen(jobs, self.devices)

    def _standing(self) -> str:
        if self.state.finished:
            return "finished"
        if self.pid:
            return "running"
        return "stopped" if isinstance(self._last, RunStopped) else "unfinished"
