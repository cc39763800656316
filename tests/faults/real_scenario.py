"""What a real fault's scenario is made of, and how it shows that its fault was met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hadar_cli.core import events
from tests.faults.real_faults import Fault
from tests.faults.real_run import RealRun
from tests.faults.real_site import Site


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

    @property
    def steps(self) -> int:
        """More than are done while the faults last."""
        return 200 + sum(250 + int(110 * fault.lasts_s) for fault in self.faults)


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
