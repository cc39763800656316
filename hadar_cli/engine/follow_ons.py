"""Which copies need not stop at the slot's end: those that are alone and stay where they are."""

from __future__ import annotations

from collections.abc import Sequence

from hadar_cli.core.estimates.throughput import Rates
from hadar_cli.core.events import CopyStarted
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.state import JobState, RunState
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.views import Views


class FollowOns:
    """Compares the plan of the next slot with what is under way in this one."""

    def __init__(self, state: RunState, held: Occupancy, views: Views, rates: Rates) -> None:
        self._state, self._held, self._views, self._rates = state, held, views, rates

    def alone(self) -> list[CopyStarted]:
        """Copies whose weights nobody waits for: the only ones of their jobs."""
        return [copy for copy in self._held.copies() if self._is_alone(copy)]

    def _is_alone(self, copy: CopyStarted) -> bool:
        job = self._state.jobs[copy.job]
        is_only = list(job.active) == [copy.attempt] and not job.handed_in
        is_only = is_only and job.is_based_on_latest(copy)
        # What is committed of a rounded hand-in is not quite what its process would go on from.
        is_exact = copy.attempt not in self._held.rounded
        return is_only and is_exact and copy.attempt not in self._held.late

    def going_on(
        self, alone: Sequence[CopyStarted], stints: Sequence[Stint], left: float, slot_s: float
    ) -> list[tuple[CopyStarted, Stint]]:
        """Those of them that the next slot's plan leaves where they are, with what it gives them.

        A copy does not go on if its order or the next stint will be over before the slot is; in a
        solo phase that others wait for, the stint is over when the phase is.
        """
        firsts = {stint.device: stint for stint in reversed(stints)}
        jobs = [stint.job for stint in firsts.values()]
        chosen = []
        for copy in alone:
            stint = firsts.get(copy.device)
            stays = stint is not None and (stint.job, stint.devices) == (copy.job, copy.devices)
            if stint and stays and jobs.count(copy.job) == 1:
                job = self._state.jobs[copy.job]
                by_then = self._views.steps_by(copy, left)
                fills_slot = stint.steps >= slot_s * self._rates.gang(copy.job, copy.devices)
                if by_then < copy.quota and fills_slot and job.ready:
                    chosen.append((copy, stint))
        return chosen

    def orphans(self, job: JobState) -> list[str]:
        """Copies that went on from weights which were then lost or refused."""
        return [
            copy.attempt
            for copy in job.active.values()
            if copy.follows and copy.follows not in job.active and not job.may_count(copy)
        ]
