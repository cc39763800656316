"""What a journal tells of speeds: of devices, of gangs, and of how much these exchange."""

from __future__ import annotations

from collections.abc import Mapping

from hadar_cli.core import events
from hadar_cli.core.estimates.gangs import speeds_seen, tells_speed
from hadar_cli.core.estimates.goodput import Update
from hadar_cli.core.estimates.throughput import GangSpeed, LearningRates, RateModel


def learn_speed(rates: LearningRates, copy: events.CopyStarted, done: events.CopyFinished) -> None:
    """What a hand-in tells of its devices, of its gang, and of the noise of its gradients."""
    for device, *seen in speeds_seen(copy, done):
        rates.observe(copy.job, device, *seen)
    if copy.gang and done.members and tells_speed(done):
        update = Update(*done.update)
        rates.observe_gang(GangSpeed(copy.job, copy.gang, update, done.steps, done.train_s))
    if done.noise is not None:
        rates.observe_noise(copy.job, done.noise)


def learn(rates: RateModel, started: Mapping[str, events.CopyStarted], event: events.Event) -> None:
    """Takes in one event; ``started`` are the copies so far, by attempt."""
    match event:
        case events.CopyFinished() if event.steps and event.train_s > 0:
            copy = started[event.attempt]
            learn_speed(rates, copy, event)
        case events.WeightsMerged():
            rates.observe_size(event.job, event.bytes, event.optimizer)
        case events.NodesReplaced():
            for device in event.changed:
                rates.forget(device)
