"""Where a trial plays: two local devices, real agents and workers, the real tracker and merge."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hadar_cli import __version__
from hadar_cli.adapters.consolidation import StoreConsolidator
from hadar_cli.adapters.executor import NodeExecutor
from hadar_cli.adapters.head import connect
from hadar_cli.adapters.store import RunFacts, RunStore
from hadar_cli.adapters.trial_weights import alter
from hadar_cli.app.ports import CopyOrder, Failed, HandedIn, Progressed
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.model import Job, Launch, MergeRules, Mix, Node
from hadar_cli.core.policies.registry import Stint
from hadar_cli.core.state import RunState
from hadar_cli.core.steps import StepSet

DEVICES = ("one", "two")
_TARGET = 1_000_000  # steps of the job on trial: more than any copy can do
_RULES = MergeRules(solo=0.0, warmup=0.0)


@dataclass(frozen=True, slots=True)
class Ended:
    """How one order ended: handed in, lost, or (neither) still under way."""

    order: CopyOrder
    handed_in: HandedIn | None = None
    lost: Failed | None = None
    progressed: bool = False
    after_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return bool(self.handed_in or self.lost)


class Stage:
    """Gives orders to copies of the script and tells what became of them."""

    def __init__(self, job: Job, store: RunStore, executor: NodeExecutor) -> None:
        self.store, self.executor = store, executor
        self._state = RunState((job,))
        self._job = self._state.jobs[job.id]
        self._mix = Mix("trial", (job,), merge=_RULES)
        self._merged: list[events.WeightsMerged] = []
        self._lost: dict[str, str] = {}
        self._tracker = Tracker(
            self._mix,
            DEVICES,
            self._state,
            _NoJournal(),
            StoreConsolidator(store),
            executor.now,
            self,
        )
        self._tracker.record(events.HeadStarted(executor.now(), 1))
        self._probes = 0

    # -- as the tracker's observer -----------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        if isinstance(event, events.WeightsMerged):
            self._merged.append(event)
        elif isinstance(event, events.CopyLost):
            self._lost[event.attempt] = event.why

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None: ...

    # -- rounds ------------------------------------------------------------------------------

    @property
    def weights(self) -> str | None:
        return self._job.weights

    @property
    def counted_steps(self) -> int:
        return len(self._job.done)

    def begin_round(self) -> None:
        self._tracker.plan_round([])

    def hand_out(self, device: str, steps: int, seconds: float) -> CopyOrder:
        order = self._tracker.hand_out(Stint(self._job.job.id, device, steps), seconds, [steps])
        self.executor.start(order)
        return order

    def accept(self, ended: Ended) -> str | None:
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

    def probe(
        self, device: str, steps: tuple[int, int], weights: str | None, seconds: float
    ) -> CopyOrder:
        """An order apart from the job: always in a new process, and merged with nothing."""
        self._probes += 1
        order = CopyOrder(
            attempt=f"probe-{self._probes}",
            job=replace(self._job.job, id=self._probes),
            device=device,
            steps=StepSet.of([steps]),
            seconds=seconds,
            weights=weights,
            round=self._state.round,
            copy=1,
            num_copies=1,
            global_step=self.counted_steps,
            job_seed=1,
            seed=1,
        )
        self.executor.start(order)
        return order

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
        """How the orders stand, again and again, until all are over or the time is up."""
        began = self.executor.now()
        seen = {order.attempt: Ended(order) for order in orders}
        while True:
            yield seen
            now = self.executor.now()
            if all(one.is_over for one in seen.values()) or now > began + seconds:
                return
            for report in self.executor.wait(min(now + 0.1, began + seconds)):
                if not isinstance(report, Progressed | HandedIn | Failed):
                    continue
                if one := seen.get(report.attempt):
                    after = self.executor.now() - began
                    seen[report.attempt] = _with(one, report, after)

    def await_all(self, orders: Sequence[CopyOrder], seconds: float) -> list[Ended]:
        *_, standing = self.watch(orders, seconds)
        return [standing[order.attempt] for order in orders]


def _with(one: Ended, report: Progressed | HandedIn | Failed, after_s: float) -> Ended:
    if isinstance(report, HandedIn):
        return replace(one, handed_in=report, after_s=after_s)
    if isinstance(report, Failed):
        return replace(one, lost=report, after_s=after_s)
    return replace(one, progressed=True)


class _NoJournal:
    """Nobody will resume a trial."""

    def append(self, event: events.Event) -> None: ...


@contextmanager
def open_stage(script: Path, args: Sequence[str]) -> Iterator[Stage]:
    """Two local nodes in a directory of their own, with nothing left of them afterwards."""
    launch = Launch(
        script=str(script.absolute()),
        args=tuple(args),
        sync=str(Path.cwd()),
        env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},  # results that can be compared
    )
    job = Job(0, "trial", _TARGET, batch_size=1, launch=launch)
    nodes = tuple(Node(name, "local") for name in DEVICES)
    with tempfile.TemporaryDirectory(prefix="hadar-try-") as directory:
        facts = RunFacts("trial", Mix("trial", (job,)), nodes, "", __version__)
        store = RunStore.create(Path(directory), facts)
        executor = NodeExecutor(connect(nodes, store), 1, 0.0)
        executor.adopt([])
        try:
            yield Stage(job, store, executor)
        finally:
            executor.stop(grace_s=0.5)
