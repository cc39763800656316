"""A run told in plain lines: for pipes, log files and the live view's own history."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from hadar_cli.app.ports import Progressed
from hadar_cli.core import events
from hadar_cli.core.state import JobState, RunState
from hadar_cli.core.throughput import RateModel
from hadar_cli.report.format import duration, figures, plain

STOPPING = "stopping: copies hand in their work (Ctrl-C again to stop at once)"
_LONGEST = 200


def tell(event: events.Event, state: RunState) -> str | None:
    """The event in words, None if it is not worth telling; ``state`` already holds it."""
    match event:
        case events.HeadStarted() if event.epoch > 1:
            done, target = total_steps(state)
            return f"resumed with {done:,} of {target:,} steps done"
        case events.CopyFinished() if event.quality:
            return _quality(state.jobs[state.started[event.attempt].job], event, state)
        case events.CopyLost():
            return _lost(event, state)
        case events.WeightsMerged():
            return _merged(event, state)
        case events.DeviceLost():
            return f"{event.device} lost: {plain(event.why, _LONGEST)}; the others take its work"
        case events.DeviceReturned():
            return f"{event.device} is back"
        case events.RunFinished():
            return f"done: {count(len(state.jobs), 'job')} trained"
    return None


def _quality(job: JobState, event: events.CopyFinished, state: RunState) -> str:
    def words(quality: dict[str, float]) -> str:
        return ", ".join(f"{plain(name, 30)} {figures(v)}" for name, v in quality.items())

    assert event.quality is not None
    if state.started[event.attempt].generation == 0:
        return f"{job.job.name} untrained: {words(event.quality)}"
    before = f" (untrained: {words(job.untrained)})" if job.untrained else ""
    return f"{job.job.name} trained: {words(event.quality)}{before}"


def _lost(event: events.CopyLost, state: RunState) -> str:
    started = state.started[event.attempt]
    steps = sum(end - first for first, end in started.slices)
    line = f"{state.jobs[started.job].job.name} on {started.device} failed: "
    line += plain(event.why, _LONGEST)
    log = event.log.strip().splitlines()
    if log:
        line += f" ({plain(log[-1], _LONGEST)})"
    return f"{line}; its {count(steps, 'step')} go back to the pool" if steps else line


def _merged(event: events.WeightsMerged, state: RunState) -> str | None:
    job = state.jobs[event.job]
    if event.refused:
        copies = "; ".join(
            f"{state.device_of(attempt)}: {plain(why, _LONGEST)}" for attempt, why in event.refused
        )
        return f"{job.job.name}: refused the weights of {copies}; the steps go back to the pool"
    if job.is_trained:
        took = duration(event.t - job.job.arrives_s)
        return f"{job.job.name} done in {took}: {job.job.target_steps:,} steps"
    return None


def count(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def total_steps(state: RunState) -> tuple[int, int]:
    """Steps committed, and steps wanted, of all jobs."""
    jobs = state.jobs.values()
    return sum(len(job.done) for job in jobs), sum(job.job.target_steps for job in jobs)


def seconds_to_go(state: RunState, rates: RateModel, devices: list[str], now: float) -> float:
    """How long the rest takes: all devices on one job after another, at the pace so far.

    The pace so far holds what no rate knows: starts, merges, evaluations, idle time.
    """
    alive = [device for device in devices if device not in state.lost_devices]
    total = left = 0.0
    for job in state.jobs.values():
        speed = sum(rates.rate(job.job.id, device) for device in alive)
        if not speed:
            return float("inf")
        total += job.job.target_steps / speed
        left += job.remaining / speed
    behind = now / (total - left) if left < 0.9 * total else 1.0
    return left * max(1.0, behind)


class Lines:
    """Prints what is worth telling, one line each, with the time since the run began."""

    def __init__(self, devices: list[str], out: TextIO) -> None:
        self._devices, self._out = devices, out

    def watch(self, state: RunState, rates: RateModel, clock: Callable[[], float]) -> Lines:
        self._state, self._rates, self._clock = state, rates, clock
        return self

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def interrupted(self) -> None:
        self._print(self._clock(), STOPPING)

    def happened(self, event: events.Event) -> None:
        if isinstance(event, events.RoundPlanned):
            self._print(event.t, self._round(event))
        elif line := tell(event, self._state):
            self._print(event.t, line)

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None: ...

    def _round(self, event: events.RoundPlanned) -> str:
        done, target = total_steps(self._state)
        jobs = count(len({job for job, _, _ in event.stints}), "job")
        line = f"round {event.round}: {jobs}, {100 * done // target} % of all steps done"
        left = seconds_to_go(self._state, self._rates, self._devices, event.t)
        return f"{line}, about {duration(left)} to go" if done < target else line

    def _print(self, t: float, line: str) -> None:
        print(f"{duration(t):>9}  {line}", file=self._out, flush=True)
