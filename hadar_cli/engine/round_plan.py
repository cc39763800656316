"""What one round still has to do, device by device."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_cli.core.estimates.throughput import Rates
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.state import JobState


@dataclass(slots=True)
class RoundPlan:
    """Every device's list of stints, taken from the front until the slot ends."""

    ends_at: float = 0.0
    lists: dict[str, deque[Stint]] = field(default_factory=dict)
    has_trained: bool = False
    is_planned_ahead: bool = False
    next_stints: list[Stint] = field(default_factory=list)  # of the round after this one
    gone_ahead: list[Stint] = field(default_factory=list)  # of it too, and begun already
    sent_ahead: set[str] = field(default_factory=set)  # attempts that belong to it already
    has_gangs: bool = False  # or else no device is on another one's list

    def plan(self, devices: Sequence[str], stints: Sequence[Stint]) -> None:
        """Gives these devices new lists in place of what they had."""
        for device in devices:
            self.lists.pop(device, None)
        for stint in stints:
            self.lists.setdefault(stint.device, deque()).append(stint)
            self.has_gangs |= bool(stint.gang)

    def listed(self, devices: Sequence[str]) -> Sequence[str]:
        """Those that may have something to do, in the same order."""
        return devices if self.has_gangs else [d for d in devices if self.lists.get(d)]

    def next_of(self, device: str) -> Stint | None:
        if stints := self.lists.get(device):
            return stints[0]
        if not self.has_gangs:
            return None
        heads = (stints[0] for stints in self.lists.values() if stints)
        return next((stint for stint in heads if device in stint.gang), None)

    def is_elsewhere(self, stint: Stint) -> bool:
        """Whether another device has its job next."""
        others = (self.next_of(device) for device in self.lists if device != stint.device)
        return any(other is not None and other.job == stint.job for other in others)

    def put_back(self, stint: Stint, done: int) -> None:
        """The rest of a stint is the next thing its device does."""
        if done < stint.steps:
            rest = replace(stint, steps=stint.steps - done)
            self.lists.setdefault(stint.device, deque()).appendleft(rest)
            self.has_gangs |= bool(stint.gang)

    def covers(self, jobs: Collection[JobState]) -> bool:
        """Whether every step of these jobs that nobody holds is on a list."""
        listed: dict[int, int] = {}
        for stints in self.lists.values():
            for stint in stints:
                listed[stint.job] = listed.get(stint.job, 0) + stint.steps
        return all(listed.get(job.job.id, 0) >= len(job.ready) for job in jobs)

    def lasts_s(self, rates: Rates, busy_s: Mapping[str, float]) -> float:
        """How long the lists take, on devices that are busy for so long before."""

        def seconds(stint: Stint) -> float:
            rate = rates.gang(stint.job, stint.devices)
            return stint.steps / rate if rate else 0.0

        lists = {d: sum(map(seconds, stints)) for d, stints in self.lists.items()}
        return max((lists.get(d, 0.0) + busy_s.get(d, 0.0) for d in {*lists, *busy_s}), default=0.0)
