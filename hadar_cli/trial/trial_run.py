"""A script on trial in a run of two local devices: real agents, workers, tracker and merges."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hadar_cli.assembly import short_run
from hadar_cli.core import events
from hadar_cli.core.model import Job, Launch, MergeRules, Mix, Node
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.reasons import Loss
from hadar_cli.core.state import RunState
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import (
    CopyOrder,
    Executor,
    Failed,
    HandedIn,
    NoJournal,
    Observer,
    Progressed,
)
from hadar_cli.engine.tracker import Tracker
from hadar_cli.node.agent_events import Exited
from hadar_cli.node.contract import TRACE
from hadar_cli.runs.consolidation import StoreConsolidator
from hadar_cli.runs.store import RunStore
from hadar_cli.trial.by_hand import ONE_THREAD
from hadar_cli.trial.weights import alter

DEVICES = ("one", "two")
_TARGET = 1_000_000  # steps of the job on trial: more than any copy can do
_RULES = MergeRules(solo=0.0, warmup=0.0)


@dataclass(frozen=True, slots=True)
class Merged:
    """A checkpoint of the trial's job, and how many of its steps are in it."""

    weights: str
    steps: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How one order ended: handed in, lost, or (neither) still under way."""

    order: CopyOrder
    handed_in: HandedIn | None = None
    lost: Failed | None = None
    progressed: bool = False
    steps: int = 0  # it told of so far
    told: int = 0  # how often it told of more
    after_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return bool(self.handed_in or self.lost)


class TrialRun(Observer):
    """Gives orders to copies of the script and tells what became of them."""

    def __init__(self, job: Job, store: RunStore, executor: Executor) -> None:
        self.store, self.executor = store, executor
        self._state = RunState((job,))
        self._job = self._state.jobs[job.id]
        self._mix = Mix("trial", (job,), merge=_RULES)
        self._merged: list[events.WeightsMerged] = []
        self._lost: dict[str, Loss] = {}
        self._tracker = Tracker(
            self._mix,
            DEVICES,
            self._state,
            NoJournal(),
            StoreConsolidator(store),
            executor.now,
            self,
        )
        self._tracker.record(events.HeadStarted(executor.now(), 1))
        self._probes = self._jobs_apart = 0

    # -- as the tracker's observer -----------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        if isinstance(event, events.WeightsMerged):
            self._merged.append(event)
        elif isinstance(event, events.CopyLost):
            self._lost[event.attempt] = event.reason

    # -- rounds ------------------------------------------------------------------------------

    @property
    def weights(self) -> str | None:
        return self._job.weights

    @property
    def merged(self) -> Merged:
        assert self._job.weights, "a round was merged"
        return Merged(self._job.weights, len(self._job.done))

    def begin_round(self) -> None:
        self._tracker.plan_round([])

    def hand_out(self, device: str, steps: int, seconds: float) -> CopyOrder:
        order = self._tracker.hand_out(Stint(self._job.job.id, device, steps), seconds, [steps])
        self.executor.start(order)
        return order

    def accept(self, ended: Ended) -> Loss | None:
        """Lets the tracker take a result; returns what it objects to."""
        if ended.handed_in:
            self._tracker.handed_in(ended.handed_in)
        elif ended.lost:
            self._tracker.failed(ended.lost)
        return self._lost.get(ended.order.attempt)

    def merge(self) -> events.WeightsMerged | None:
        """Merges what was accepted; None if there is nothing."""
        before = len(self._merged)
        self._tracker.commit(self._job)
        return self._merged[-1] if len(self._merged) > before else None

    # -- probes ------------------------------------------------------------------------------

    def job_apart(self, total: int = _TARGET, record: Path | None = None) -> Job:
        """The script as a job of its own: in processes of its own, and merged with nothing."""
        self._jobs_apart += 1
        job = self._job.job
        env = {**job.launch.env, **({TRACE: str(record)} if record else {})}
        launch = replace(job.launch, env=env)
        return replace(job, id=self._jobs_apart, target_steps=total, launch=launch)

    def probe(
        self,
        device: str,
        steps: tuple[int, int],
        weights: str | None,
        seconds: float,
        job: Job | None = None,
        **how: Any,
    ) -> CopyOrder:
        """An order apart from the trial's rounds: in a new process, unless for the same ``job``."""
        self._probes += 1
        settings: dict[str, Any] = {
            **{"round": self._state.round, "copy": 1, "num_copies": 1, "job_seed": 1, "seed": 1},
            **{"global_step": 0, **how},
        }
        order = CopyOrder(
            attempt=f"probe-{self._probes}",
            job=job or self.job_apart(),
            device=device,
            steps=StepSet.of([steps] if steps[1] > steps[0] else []),
            seconds=seconds,
            weights=weights,
            **settings,
        )
        self.executor.start(order)
        return order

    def dismiss(self, job: Job, device: str, grace_s: float) -> Exited | None:
        """Ends all processes as a run does when all is trained; how this job's left, and its log.

        Nothing can be asked of the run afterwards.
        """
        self.executor.stop(grace_s)
        workers = self.store.directory / "nodes" / device / "workers"
        notes = workers.glob(f"*-{job.id}-*-e*/exit.json")
        if not (last := max(notes, key=lambda path: path.stat().st_mtime, default=None)):
            return None
        left = json.loads(last.read_text())
        log = last.with_name("log").read_text(errors="replace")
        return Exited(left["code"], left["end"], log=log)

    def said(self, words: str) -> str | None:
        """What any process of the trial has printed after these words, on their line."""
        for log in (self.store.directory / "nodes").glob("*/workers/*/log"):
            _, is_said, rest = log.read_text(errors="replace").partition(words)
            if is_said:
                return rest.partition("\n")[0]
        return None

    def altered(self, weights: str, optimizer: bool) -> str:
        """A checkpoint like this one, with other weights or another optimizer state."""
        scratch = self.store.scratch_path("altered")
        digest = alter(self.path(weights), scratch, optimizer)
        self.store.keep(scratch, digest)
        return digest

    def path(self, digest: str) -> Path:
        return self.store.object_path(digest)

    # -- waiting -----------------------------------------------------------------------------

    def watch(self, orders: Sequence[CopyOrder], seconds: float) -> Iterator[dict[str, Ended]]:
        """How the orders stand, again and again, until all are over, or none of them has been
        heard of for so many seconds: a slow machine is no fault of a script."""
        began = heard = self.executor.now()
        seen = {order.attempt: Ended(order) for order in orders}
        while True:
            yield seen
            now = self.executor.now()
            if all(one.is_over for one in seen.values()) or now >= heard + seconds:
                return
            for report in self.executor.wait(min(now + 0.1, heard + seconds)):
                if not isinstance(report, Progressed | HandedIn | Failed):
                    continue
                if one := seen.get(report.attempt):
                    heard = self.executor.now()
                    seen[report.attempt] = _with(one, report, heard - began)

    def await_all(self, orders: Sequence[CopyOrder], seconds: float) -> list[Ended]:
        *_, standing = self.watch(orders, seconds)
        return [standing[order.attempt] for order in orders]


def _with(one: Ended, report: Progressed | HandedIn | Failed, after_s: float) -> Ended:
    if isinstance(report, HandedIn):
        return replace(one, handed_in=report, after_s=after_s)
    if isinstance(report, Failed):
        return replace(one, lost=report, after_s=after_s)
    told = one.told + (report.steps > one.steps)
    return replace(one, progressed=True, steps=report.steps, told=told)


@contextmanager
def open_trial_run(launch: Launch) -> Iterator[TrialRun]:
    """Two local nodes in a directory of their own, with nothing left of them afterwards."""
    launch = replace(launch, env={**launch.env, **ONE_THREAD})
    job = Job(0, "trial", _TARGET, batch_size=1, launch=launch)
    nodes = tuple(Node(name, "local") for name in DEVICES)
    with short_run("trial", [job], nodes, grace_s=0.5) as (store, executor):
        executor.adopt([])
        yield TrialRun(job, store, executor)
