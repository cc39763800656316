"""What a journal tells of speeds: of devices, of gangs, and of how much these exchange."""

from __future__ import annotations

from collections.abc import Mapping

from hadar_cli.core import events
from hadar_cli.core.estimates.gangs import speeds_seen, tells_speed
from hadar_cli.core.estimates.throughput import RateModel


def learn(rates: RateModel, started: Mapping[str, events.CopyStarted], event: events.Event) -> None:
    """Takes in one event; ``started`` are the copies so far, by attempt."""
    match event:
        case events.CopyFinished() if event.steps and event.train_s > 0:
            copy = started[event.attempt]
            for device, steps, seconds in speeds_seen(copy, event):
                rates.observe(copy.job, device, steps, seconds)
            if copy.gang and event.members and tells_speed(event):
                rates.observe_gang(copy.job, copy.gang, event.steps, event.train_s)
        case events.WeightsMerged():
            rates.observe_size(event.job, event.bytes, event.optimizer)
        case events.NodesReplaced():
            for device in event.changed:
                rates.forget(device)
