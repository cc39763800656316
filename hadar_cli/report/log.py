"""A run's log as people read it: what is news, a round's merges as one line, and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hadar_cli.core import events
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import RunState
from hadar_cli.report.format import count
from hadar_cli.report.words import (
    copies_of,
    describe,
    device_lost,
    is_news,
    job_name,
    tone,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log."""

    t: float
    words: str
    tone: str = ""


@dataclass(slots=True)
class _Merges:
    """The merges since a round began, told together: they come every few seconds."""

    round: int
    before: dict[int, tuple[int, float]]  # job -> steps left, effective steps
    t: float = 0.0
    times: Counter[int] = field(default_factory=Counter)
    copies: int = 0

    def add(self, event: events.WeightsMerged) -> None:
        self.t = event.t
        self.times[event.job] += 1
        self.copies = len(event.accepted)

    def entry(self, state: RunState) -> Entry:
        counted, effective = 0, 0.0
        for job in self.times:
            # A job that was added since has done nothing before.
            nothing = (state.jobs[job].job.target_steps, 0.0)
            left, effective_before = self.before.get(job, nothing)
            counted += left - state.jobs[job].remaining
            effective += state.jobs[job].effective_steps - effective_before
        steps = f"{count(counted, 'step')} counted, {effective:,.0f} effective"
        return Entry(self.t, f"round {self.round}: {self._what(state)}: {steps}", "quiet")

    def _what(self, state: RunState) -> str:
        merges = self.times.total()
        name = job_name(state, next(iter(self.times)))
        if merges == 1:
            return f"merged {copies_of(self.copies, name)}"
        return f"{merges} merges of {name if len(self.times) == 1 else f'{len(self.times)} jobs'}"


class RunLog:
    """Tells a run as it goes: news at once, a round's merges as one line that grows."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._merges = self._tally()
        self._orphans: dict[str, events.CopyLost] = {}  # by device, until we know if it is lost
        self._shared: set[str] = set()  # devices that runs share by turns
        self._passed_on: set[str] = set()  # those of which that was no news

    def hear(self, event: events.Event) -> list[Entry]:
        """The entries that are now certain; the state already holds the event."""
        match event:
            case events.WeightsMerged():
                self._merges.add(event)
            case events.CopyLost() if event.node_fault and is_news(event, self.state):
                self._orphans[event.device or self.state.device_of(event.attempt)] = event
                return []
            case events.DeviceLost() if event.device in self._orphans:
                lost = self.state.started[self._orphans.pop(event.device).attempt]
                return [Entry(event.t, device_lost(event, [lost], self.state), "bad")]
        entries = self._settle(event)
        if self._is_turn(event):
            return entries
        if is_news(event, self.state):
            entries.append(self._tell(event))
        return entries

    def _is_turn(self, event: events.Event) -> bool:
        """Whether a device changes hands between runs of which it is known that they share it."""
        match event:
            case events.DeviceWanted() if event.by:
                self._shared.add(event.device)
            case events.DeviceWanted():
                self._shared.discard(event.device)
            case events.DeviceLost() if (
                event.reason is Absence.TURN and event.device in self._shared
            ):
                self._passed_on.add(event.device)
                return True
            case events.DeviceReturned() if event.device in self._passed_on:
                self._passed_on.discard(event.device)
                return True
        return False

    @property
    def growing(self) -> Sequence[Entry]:
        """The round's merges so far: the newest entry, and not yet certain."""
        return [self._merges.entry(self.state)] if self._merges.times else []

    def _tell(self, event: events.Event) -> Entry:
        return Entry(event.t, describe(event, self.state), tone(event))

    def _settle(self, event: events.Event) -> list[Entry]:
        """What no later event can change any more."""
        entries: list[Entry] = []
        if not isinstance(event, events.WeightsMerged | events.CopyFinished | events.CopyLost):
            entries += [self._tell(orphan) for orphan in self._orphans.values()]
            self._orphans.clear()
        if isinstance(event, events.RoundPlanned | events.RunStopped | events.RunFinished):
            entries += self.growing
            self._merges = self._tally()
        return entries

    def _tally(self) -> _Merges:
        jobs = self.state.jobs.items()
        before = {id: (job.remaining, job.effective_steps) for id, job in jobs}
        return _Merges(self.state.round, before)
