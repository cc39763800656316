"""What a real fault's scenario is made of, and how it shows that its fault was met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hadar_cli.core import events
from tests.faults.real_faults import Fault
from tests.faults.real_run import GANG, RealRun
from tests.faults.real_site import Site

_GB = 1024  # MB


class Skip(Exception):
    """It cannot be done on this computer; the message says why."""


@dataclass(frozen=True)
class Scenario:
    """One run, and what strikes it, one after another."""

    name: str
    faults: tuple[Fault, ...] = ()
    arrange: Callable[[Site], object] | None = None  # before the run: an odd machine is a fault too
    tidy: Callable[[Site], object] = lambda site: None
    proves: Callable[[RealRun], object] | None = None  # that what was arranged was met
    large: bool = False  # large weights over a slow link
    gang: int = 0  # so many devices share the job's steps
    hole_mb: int = 0  # so large are checkpoints that take no room on a node's disk
    takes_s: float = 0.0  # about so long, where its steps do not tell

    @property
    def bytes_per_s(self) -> float:
        """Of the victim's link: transfers last long enough to be struck."""
        if self.hole_mb:
            return 20e6 if self.hole_mb < _GB else 100e6
        return 2e6 if self.large else float("inf")

    @property
    def shape(self) -> dict[str, Any]:
        """Of the run: large weights are merged more rarely, and the largest not at all."""
        if self.hole_mb:
            moves_s = self.hole_mb * (1 << 20) / self.bytes_per_s
            often = {"every_s": moves_s, "slot_s": 2 * moves_s, "longest_s": 120 + 40 * moves_s}
            return {**often, "copies": 1 if self.hole_mb > _GB else 9}
        if self.gang:
            return {"mix": GANG, "copies": self.gang}
        return {"floats": 150_000, "every_s": 1.5} if self.large else {}

    @property
    def steps(self) -> int:
        """More than are done while the faults last, or while a large checkpoint moves."""
        if self.hole_mb:
            return int((600 if self.hole_mb <= _GB else 250) * self.shape["every_s"])
        each = 180 if self.gang else 250  # its members train the same ones
        return 200 + sum(each + int(110 * fault.lasts_s) for fault in self.faults)

    @property
    def length(self) -> float:
        """In seconds, about: large weights slow every step down, as gangs do; each fault takes a
        while to strike and to mend."""
        trains_s = self.steps / (50 if self.large else 80)
        return max(self.takes_s, trains_s, sum(4 + fault.lasts_s for fault in self.faults))


def was_used(run: RealRun) -> bool:
    """Copies on the victim counted, and it was never lost."""
    mine = {
        seen.event.attempt
        for seen in run.seen
        if isinstance(seen.event, events.CopyStarted) and seen.event.device == run.site.victim
    }
    merged = [seen.event for seen in run.seen if isinstance(seen.event, events.WeightsMerged)]
    return any(mine & set(event.accepted) for event in merged) and not was_lost(run)


def was_lost(run: RealRun) -> bool:
    lost = [seen.event for seen in run.seen if isinstance(seen.event, events.DeviceLost)]
    return any(event.device == run.site.victim and event.why for event in lost)
