"""Which device's copy speaks for a job: what it left is what the user gets."""

from __future__ import annotations

from collections.abc import Iterable

from hadar_cli.core import events


class OutputDevices:
    """By job, the device of the copy with most steps in the job's last merge."""

    def __init__(self, happened: Iterable[events.Event] = ()) -> None:
        self._devices: dict[str, str] = {}
        self._steps: dict[str, int] = {}
        self.by_job: dict[int, str] = {}
        for event in happened:
            self.take(event)

    def take(self, event: events.Event) -> None:
        match event:
            case events.CopyStarted():
                self._devices[event.attempt] = event.device
            case events.CopyFinished():
                self._steps[event.attempt] = event.steps
            case events.WeightsMerged() if event.accepted:
                leader = max(event.accepted, key=lambda attempt: self._steps.get(attempt, 0))
                self.by_job[event.job] = self._devices[leader]
