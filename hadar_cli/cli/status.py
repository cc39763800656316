"""``hadar status [RUN]``: what a run is doing now, also while another process drives it."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

from hadar_cli.cli.completion import RunName
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir, all_devices, flag, print_json
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from hadar_cli.adapters.store import RunStore
    from hadar_cli.core.events import Event
    from hadar_cli.core.model import Device
    from hadar_cli.core.state import JobState, RunState


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    name: str
    steps_done: int
    steps_in_hand: int
    steps_target: int
    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Device:
    """``doing`` is train, evaluate, prepare, idle or lost."""

    name: str
    kind: str
    doing: str
    job: str | None = None
    steps: int = 0
    since_s: float = 0.0
    why: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """A run at this moment; its names are those in the JSON."""

    run: str
    mix: str
    policy: str
    state: str
    pid: int | None
    round: int
    elapsed_s: float
    jobs: tuple[_Job, ...]
    devices: tuple[_Device, ...]


def status(
    run: RunName = None,
    watch: Annotated[
        bool, flag("--watch", "Look on until the run ends, like hadar run does.")
    ] = False,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Show what a run is doing now: its round, its devices and their jobs."""
    from hadar_cli.adapters.store import find_run

    store = find_run(runs_dir, run)
    if as_json and watch:
        raise InputError("--json tells one moment", field="--watch", fix="leave out one of them")
    if as_json:
        print_json(dataclasses.asdict(read_status(store)))
        return
    from hadar_cli.cli import watch as looks

    (looks.watch if watch else looks.show)(store)


def read_status(store: RunStore) -> Status:
    """Folds the run's journal up to now."""
    from hadar_cli.adapters.store import contradictions_of, read_journal
    from hadar_cli.core.state import RunState

    facts, pid = store.facts, store.holder()
    happened = read_journal(store.journal_path)
    state = RunState(facts.mix.jobs)
    with contradictions_of(store):
        for event in happened:
            state.apply(event)
    now = state.now
    if pid and not state.finished and happened:
        now += max(0.0, time.time() - store.journal_path.stat().st_mtime)
    devices = all_devices(tuple(node for node in facts.nodes if node.enabled))
    return Status(
        run=facts.id,
        mix=facts.mix.name,
        policy=facts.mix.policy.name,
        state=standing(state, happened[-1] if happened else None, pid),
        pid=pid,
        round=state.round,
        elapsed_s=now,
        jobs=tuple(_job(job) for job in state.jobs.values()),
        devices=tuple(_device(device, state, now) for device in devices),
    )


def standing(state: RunState, last: Event | None, pid: int | None) -> str:
    """`finished`, `running`, `stopped` in order, or `unfinished`: nobody knows why."""
    from hadar_cli.core.events import RunStopped

    if state.finished:
        return "finished"
    if pid:
        return "running"
    return "stopped" if isinstance(last, RunStopped) else "unfinished"


def _job(state: JobState) -> _Job:
    return _Job(
        state.job.name,
        len(state.done),
        len(state.in_hand),
        state.job.target_steps,
        state.generation,
    )


def _device(device: Device, state: RunState, now: float) -> _Device:
    if why := state.lost_devices.get(device.name):
        return _Device(device.name, device.kind, "lost", why=why)
    for job in state.jobs.values():
        for copy in (*job.active.values(), *job.errands.values()):
            if copy.device == device.name:
                what, since_s = (copy.purpose, job.job.name, copy.quota), now - copy.t
                return _Device(device.name, device.kind, *what, since_s)
    return _Device(device.name, device.kind, "idle")
