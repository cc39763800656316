"""Short real trainings through the same executor as a run, to learn how fast devices are."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hadar_cli import __version__
from hadar_cli.adapters.executor import NodeExecutor
from hadar_cli.adapters.head import connect
from hadar_cli.adapters.store import RunFacts, RunStore
from hadar_cli.adapters.visit import DEADLINE_S, tidy
from hadar_cli.app.ports import CopyOrder, Executor, Failed, HandedIn, NodeGone, Report
from hadar_cli.core.model import Job, Mix, Node
from hadar_cli.core.steps import StepSet

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
    run = f"profile-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="hadar-profile-") as directory:
        facts = RunFacts(run, Mix("profile", tuple(jobs)), tuple(nodes), "", __version__)
        store = RunStore.create(Path(directory), facts)
        executor = NodeExecutor(connect(nodes, store), 1, 0.0)
        try:
            yield executor
        finally:
            executor.stop(grace_s=0.0)
            far = [node for node in nodes if not node.is_local]
            # What a node that is gone keeps, `hadar clean` finds.
            list(tidy(far, Path(directory), "remove", run, [run], DEADLINE_S))


def measure(
    executor: Executor, job: Job, devices: Sequence[str], tick: Callable[[], None]
) -> list[Measured]:
    """Trains ``job`` on all devices at once, as a run would load them, for a few seconds."""
    stage = _Stage(executor, job, tick)
    warm = stage.train(devices, StepSet.of([(0, _WARM_STEPS)]), _START_S)
    ready = [device for device, report in warm.items() if isinstance(report, HandedIn)]
    rest = StepSet.of([(_WARM_STEPS, job.target_steps)])
    reports = {**warm, **stage.train(ready, rest, _TRAIN_S)}
    return [_read(job, device, reports.get(device)) for device in devices]


class _Stage:
    """Gives every device the same order and waits for all answers."""

    def __init__(self, executor: Executor, job: Job, tick: Callable[[], None]) -> None:
        self._executor, self._job, self._tick = executor, job, tick
        self._number = 0

    def train(self, devices: Sequence[str], steps: StepSet, seconds: float) -> dict[str, Report]:
        self._number += 1
        device_of = {f"p{self._job.id}-{self._number}-{i}": d for i, d in enumerate(devices)}
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
            hand_in=False,
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
