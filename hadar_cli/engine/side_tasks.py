"""What devices do beside training: measure finished models, and start processes ahead of need.

They fill time that would be idle; no round waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hadar_cli.core.estimates.throughput import Rates
from hadar_cli.core.state import JobState
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import Executor
from hadar_cli.engine.tracker import Tracker

_SIDE_TASK_S = 300.0


class SideTasks:
    """Sends idle devices on side tasks, one at a time each."""

    def __init__(self, tracker: Tracker, executor: Executor, held: Occupancy, rates: Rates) -> None:
        self._tracker, self._executor, self._held, self._rates = tracker, executor, held, rates
        self._waits: dict[int, bool] = {}  # job -> whether its processes stay for more orders

    def note(self, job: int, stays: bool) -> None:
        """Whether a process of the job waits for more, now that one has handed in."""
        self._waits[job] = stays

    def stays(self, job: JobState) -> bool:
        """Whether the job's processes wait for orders, as far as is known; plain scripts do not."""
        return self._waits.get(job.job.id, job.job.launch.workload is not None)

    def evaluate(self, idle: Callable[[], Sequence[str]]) -> None:
        """Has the final quality of every trained job measured, where its process is, or fastest."""
        for job in self._tracker.state.unmeasured:
            devices = [device for device in idle() if self._may_use(job, device)]
            is_asked = any(side_task.purpose != "prepare" for side_task in job.side_tasks.values())
            if is_asked or not devices:
                continue
            warm = [device for device in devices if self._held.warm.get(device) == job.job.id]
            device = max(warm or devices, key=lambda d: self._rates.rate(job.job.id, d))
            self._send(job, device, "evaluate")

    def prepare(self, device: str, job: JobState) -> None:
        """Has the device start the process it will need for the job, unless it is there."""
        is_needed = self._held.warm.get(device) != job.job.id and self.stays(job)
        if is_needed and job.takes_copies(self._executor.now()) and self._may_use(job, device):
            self._send(job, device, "prepare")

    def _may_use(self, job: JobState, device: str) -> bool:
        return not job.failed and self._rates.rate(job.job.id, device) > 0

    def _send(self, job: JobState, device: str, purpose: str) -> None:
        order = self._tracker.hand_out_side_task(job, device, _SIDE_TASK_S, purpose)
        self._held.hold(order)
        self._executor.start(order)
