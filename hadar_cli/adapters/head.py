"""Puts a run together and drives it: store, executor, tracker and loop."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

from hadar_cli import __version__
from hadar_cli.adapters.connection import Connection
from hadar_cli.adapters.consolidation import StoreConsolidator
from hadar_cli.adapters.executor import NodeExecutor
from hadar_cli.adapters.housekeeping import Housekeeper
from hadar_cli.adapters.inspection import find_objections
from hadar_cli.adapters.local import LocalConnection
from hadar_cli.adapters.packing import CodePacker
from hadar_cli.adapters.store import (
    FileJournal,
    RunStore,
    contradictions_of,
    mend_journal,
    read_journal,
)
from hadar_cli.app.ports import Observer, Observers, Progressed
from hadar_cli.app.rounds import RoundLoop
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.metrics import lower_bound
from hadar_cli.core.model import Device, Node
from hadar_cli.core.policies import registry
from hadar_cli.core.state import RunState
from hadar_cli.core.throughput import RateModel
from hadar_cli.errors import RefusedError, UnfinishedError

Watch: TypeAlias = Callable[[RunState, RateModel, Callable[[], float]], Observer]


class Interrupted(KeyboardInterrupt):
    """The user asked to stop, and the loop stands where nothing is half done."""


class _Interrupts:
    """Ctrl-C and SIGTERM, heeded at the loop's ticks only: state and journal never part.

    A second one stops at once, leaving uncommitted steps to the next head. While processes are
    being ended, none is heard.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._count, self._heeded, self._deaf = 0, False, False

    @contextmanager
    def caught(self) -> Iterator[None]:
        before = {s: signal.signal(s, self._catch) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _catch(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1 and not self._deaf:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        self._deaf = True

    def happened(self, event: events.Event) -> None: ...

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None:
        if self._count and not self._heeded:
            self._heeded = True
            self._tell()
            raise Interrupted


def _nothing() -> None: ...


def devices_of(nodes: Sequence[Node]) -> list[Device]:
    return [device for node in nodes if node.enabled for device in node.devices]


def drive(store: RunStore, watch: Watch, on_interrupt: Callable[[], None] = _nothing) -> RunState:
    """Runs or resumes the store's run to its end; ``watch`` makes the observer.

    Ctrl-C and SIGTERM call ``on_interrupt``, wind the run up and end in KeyboardInterrupt.
    """
    interrupts = _Interrupts(on_interrupt)
    with store.locked(), interrupts.caught():
        return _drive(store, watch, interrupts)


def _drive(store: RunStore, watch: Watch, interrupts: _Interrupts) -> RunState:
    facts = store.facts
    devices = devices_of(facts.nodes)
    state, rates = RunState(facts.mix.jobs), RateModel(facts.mix.jobs, devices)
    with contradictions_of(store):
        for event in mend_journal(store.journal_path):
            state.apply(event)
            _learn(rates, state, event)
    if state.finished:
        return state
    for job in state.jobs.values():
        if job.weights:
            store.verify(job.weights)
    policy = registry.create(facts.mix.policy)
    journal = FileJournal(store.journal_path)
    epoch = state.epoch + 1
    imports = ["torch"] if any(j.job.launch.workload for j in state.unfinished) else []
    executor = NodeExecutor(connect(facts.nodes, store), epoch, state.now, imports)
    observer = Observers([watch(state, rates, executor.now), Housekeeper(store, state), interrupts])
    names = [device.name for device in devices]
    waiting = (copy.weights for job in state.jobs.values() for copy in job.handed_in.values())
    merger = StoreConsolidator(store, doubted=filter(None, waiting))
    tracker = Tracker(facts.mix, names, state, journal, merger, executor.now, observer)
    loop = RoundLoop(facts.mix, devices, policy, executor, tracker, rates, observer)
    tracker.record(events.HeadStarted(executor.now(), epoch, _versions()))
    for device, why in find_objections(facts.nodes, store.directory.parent).items():
        tracker.record(events.DeviceLost(executor.now(), device, why))
    try:
        loop.run(lambda: lower_bound(facts.mix, devices, read_journal(store.journal_path)))
    except (Interrupted, UnfinishedError, RefusedError) as reason:
        loop.wind_up("interrupted" if isinstance(reason, Interrupted) else str(reason))
        raise
    finally:
        interrupts.ignore()
        executor.stop(grace_s=1.0)
        journal.close()
    return state


def check_nodes(nodes: Sequence[Node]) -> None:
    """Refuses nodes that cannot be reached as they are written, before a run is made for them."""
    for node in nodes:
        if node.enabled and not node.is_local:
            from hadar_cli.adapters.ssh import command_of

            command_of(node)


def connect(nodes: Sequence[Node], store: RunStore) -> list[Connection]:
    """Connections to the enabled nodes, none of them opened yet."""
    packer = CodePacker(store.directory / "code")
    return [_connection(node, store, packer) for node in nodes if node.enabled]


def _connection(node: Node, store: RunStore, packer: CodePacker) -> Connection:
    if node.is_local:
        return LocalConnection(node, store)
    from hadar_cli.adapters.ssh import SshConnection  # here, as local runs need no SSH

    return SshConnection(node, store, packer)


def _learn(rates: RateModel, state: RunState, event: events.Event) -> None:
    if isinstance(event, events.CopyFinished) and event.steps and event.train_s > 0:
        started = state.started[event.attempt]
        rates.observe(started.job, started.device, event.steps, event.train_s)


def _versions() -> dict[str, str]:
    return {"hadar": __version__, "python": platform.python_version(), "system": platform.system()}
