"""Short real trainings through the same executor as a run, to learn how fast devices are."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hadar_cli.assembly import short_run
from hadar_cli.core.model import Job, Node
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder, Executor, Failed, HandedIn, NodeGone, Report

_WARM_STEPS = 3  # start, import and first allocations are not what is measured
_START_S = 120.0
_TRAIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps per second of a job on a device, or why there is none."""

    job: int
    device: str
    steps_per_s: float | None
    problem: str = ""


@contextmanager
def measuring(nodes: Sequence[Node], jobs: Sequence[Job]) -> Iterator[Executor]:
    """An executor over ``nodes`` that leaves no files or processes of its own behind."""
    with short_run(f"profile-{secrets.token_hex(4)}", jobs, nodes, grace_s=0.0) as (_, executor):
        yield executor


def measure(
    executor: Executor, job: Job, devices: Sequence[str], tick: Callable[[], None]
) -> list[Measured]:
    """Trains ``job`` on all devices at once, as a run would load them, for a few seconds."""
    trial_run = _TimedRun(executor, job, tick)
    warm = trial_run.train(devices, StepSet.of([(0, _WARM_STEPS)]), _START_S)
    ready = [device for device, report in warm.items() if isinstance(report, HandedIn)]
    rest = StepSet.of([(_WARM_STEPS, job.target_steps)])
    reports = {**warm, **trial_run.train(ready, rest, _TRAIN_S)}
    return [_read(job, device, reports.get(device)) for device in devices]


def train_exactly(
    executor: Executor, job: Job, devices: Sequence[str], steps: int, tick: Callable[[], None]
) -> list[Measured]:
    """Has all devices train the same few steps; to do others, or not all, is a problem."""
    wanted = StepSet.of([(0, steps)])
    reports = _TimedRun(executor, job, tick, "x").train(devices, wanted, _START_S)
    found = []
    for device in devices:
        report = reports.get(device)
        one = _read(job, device, report)
        if isinstance(report, HandedIn) and StepSet.of(report.result.slices) != wanted:
            one = replace(one, problem=f"it did {report.result.steps} of {steps} steps")
        found.append(one)
    return found


def train_together(
    executor: Executor, job: Job, gang: Sequence[str], steps: int, tick: Callable[[], None]
) -> Measured:
    """Has these devices share each of a few steps."""
    trial_run = _TimedRun(executor, job, tick, f"g{gang[0]}-", tuple(gang))
    reports = trial_run.train(gang[:1], StepSet.of([(0, steps)]), _START_S)
    return _read(job, gang[0], reports.get(gang[0]))


class _TimedRun:
    """Gives every device the same order and waits for all answers."""

    def __init__(
        self,
        executor: Executor,
        job: Job,
        tick: Callable[[], None],
        prefix: str = "p",
        gang: tuple[str, ...] = (),
    ) -> None:
        self._executor, self._job, self._tick, self._gang = executor, job, tick, gang
        self._prefix = prefix  # of attempts' names, which no two stages may share
        self._number = 0

    def train(self, devices: Sequence[str], steps: StepSet, seconds: float) -> dict[str, Report]:
        self._number += 1
        device_of = {
            f"{self._prefix}{self._job.id}-{self._number}-{i}": d for i, d in enumerate(devices)
        }
        for copy, (attempt, device) in enumerate(device_of.items()):
            self._executor.start(self._order(attempt, device, copy, steps, seconds))
        answers: dict[str, Report] = {}
        give_up_at = self._executor.now() + seconds + _START_S
        while len(answers) < len(device_of) and self._executor.now() < give_up_at:
            for report in self._executor.wait(self._executor.now() + 0.2):
                if isinstance(report, HandedIn | Failed) and report.attempt in device_of:
                    answers[device_of[report.attempt]] = report
                elif isinstance(report, NodeGone):
                    answers |= {d: report for d in report.devices if d in devices}
            self._tick()
        return answers

    def _order(
        self, attempt: str, device: str, copy: int, steps: StepSet, seconds: float
    ) -> CopyOrder:
        return CopyOrder(
            attempt=attempt,
            job=self._job,
            device=device,
            steps=steps,
            seconds=seconds,
            weights=None,
            round=self._number,
            copy=copy + 1,
            num_copies=1,
            global_step=0,
            job_seed=0,
            seed=0,
            gang=self._gang,
            returns_weights=False,
        )


def _read(job: Job, device: str, report: Report | None) -> Measured:
    match report:
        case HandedIn() if report.result.steps and report.result.train_s > 0:
            return Measured(job.id, device, report.result.steps / report.result.train_s)
        case Failed():
            last = report.log.strip().splitlines()[-1:]
            return Measured(job.id, device, None, ": ".join([report.why, *last]))
        case NodeGone():
            return Measured(job.id, device, None, report.why)
    return Measured(job.id, device, None, "it did no step in time")
