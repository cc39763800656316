"""Puts a run together and drives it: store, executor, tracker and loop."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from hadar_cli import __version__
from hadar_cli.adapters.consolidation import StoreConsolidator
from hadar_cli.adapters.executor import Connection, NodeExecutor
from hadar_cli.adapters.local import LocalConnection
from hadar_cli.adapters.store import FileJournal, RunStore, mend_journal
from hadar_cli.app.ports import Observer
from hadar_cli.app.rounds import RoundLoop
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.model import Device, Node
from hadar_cli.core.policies import registry
from hadar_cli.core.state import RunState
from hadar_cli.core.throughput import RateModel
from hadar_cli.errors import InputError, UnfinishedError


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def devices_of(nodes: Sequence[Node]) -> list[Device]:
    return [device for node in nodes if node.enabled for device in node.devices]


def drive(
    store: RunStore, watch: Callable[[RunState, RateModel, Callable[[], float]], Observer]
) -> RunState:
    """Runs or resumes the store's run to its end; ``watch`` makes the observer."""
    with store.locked(), _sigterm_like_ctrl_c():
        return _drive(store, watch)


def _drive(
    store: RunStore, watch: Callable[[RunState, RateModel, Callable[[], float]], Observer]
) -> RunState:
    facts = store.facts
    devices = devices_of(facts.nodes)
    state, rates = RunState(facts.mix.jobs), RateModel(facts.mix.jobs, devices)
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
    connections = [_connect(node, store) for node in facts.nodes if node.enabled]
    executor = NodeExecutor(connections, epoch, state.now)
    observer = watch(state, rates, executor.now)
    names = [device.name for device in devices]
    tracker = Tracker(
        facts.mix, names, state, journal, StoreConsolidator(store), executor.now, observer
    )
    loop = RoundLoop(facts.mix, names, policy, executor, tracker, rates, observer)
    tracker.record(events.HeadStarted(executor.now(), epoch, _versions()))
    try:
        loop.run()
    except (KeyboardInterrupt, UnfinishedError) as reason:
        why = "interrupted" if isinstance(reason, KeyboardInterrupt) else str(reason)
        loop.wind_up(why)
        raise
    finally:
        executor.stop(grace_s=1.0)
        journal.close()
    return state


def _connect(node: Node, store: RunStore) -> Connection:
    if node.is_local:
        return LocalConnection(node, store)
    raise InputError(
        f"node {node.name!r} is at {node.host!r}, and only local nodes can be used yet",
        field="node.host",
        fix='set host = "local" or enabled = false',
    )


def _learn(rates: RateModel, state: RunState, event: events.Event) -> None:
    if isinstance(event, events.CopyFinished) and event.steps and event.train_s > 0:
        started = state.started[event.attempt]
        rates.observe(started.job, started.device, event.steps, event.train_s)


def _versions() -> dict[str, str]:
    return {"hadar": __version__, "python": platform.python_version(), "system": platform.system()}
