"""What one round still has to do, device by device."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_cli.core.policies.registry import Stint
from hadar_cli.core.state import JobState
from hadar_cli.core.throughput import Rates


@dataclass(slots=True)
class Agenda:
    """Every device's list of stints, taken from the front until the slot ends."""

    ends_at: float = 0.0
    lists: dict[str, deque[Stint]] = field(default_factory=dict)
    has_trained: bool = False
    is_planned_ahead: bool = False
    next_stints: list[Stint] = field(default_factory=list)  # of the round after this one
    sent_ahead: set[str] = field(default_factory=set)  # attempts that belong to it already

    def plan(self, devices: Sequence[str], stints: Sequence[Stint]) -> None:
        """Gives these devices new lists in place of what they had."""
        for device in devices:
            self.lists.pop(device, None)
        for stint in stints:
            self.lists.setdefault(stint.device, deque()).append(stint)

    def next_of(self, device: str) -> Stint | None:
        stints = self.lists.get(device)
        return stints[0] if stints else None

    def put_back(self, stint: Stint, done: int) -> None:
        """The rest of a stint is the next thing its device does."""
        if done < stint.steps:
            rest = replace(stint, steps=stint.steps - done)
            self.lists.setdefault(stint.device, deque()).appendleft(rest)

    def covers(self, jobs: Collection[JobState]) -> bool:
        """Whether every step of these jobs that nobody holds is on a list."""
        listed: dict[int, int] = {}
        for stints in self.lists.values():
            for stint in stints:
                listed[stint.job] = listed.get(stint.job, 0) + stint.steps
        return all(listed.get(job.job.id, 0) >= len(job.free) for job in jobs)

    def lasts_s(self, rates: Rates, busy_s: Mapping[str, float]) -> float:
        """How long the lists take, on devices that are busy for so long before."""

        def seconds(stint: Stint) -> float:
            rate = rates.rate(stint.job, stint.device)
            return stint.steps / rate if rate else 0.0

        lists = {d: sum(map(seconds, stints)) for d, stints in self.lists.items()}
        return max((lists.get(d, 0.0) + busy_s.get(d, 0.0) for d in {*lists, *busy_s}), default=0.0)
