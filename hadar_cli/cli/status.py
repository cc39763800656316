"""``hadar status [RUN]``: what a run is doing now, also while another process drives it."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.options import (
    DEFAULT_RUNS,
    AsJson,
    RunsDir,
    all_devices,
    print_json,
    stdout,
)
from hadar_cli.errors import StorageError

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
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run's name or directory; the newest by default."),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Show what a run is doing now: its round, its devices and their jobs."""
    from hadar_cli.adapters.store import find_run

    now = read_status(find_run(runs_dir, run))
    if as_json:
        print_json(dataclasses.asdict(now))
    else:
        _print(now)


def read_status(store: RunStore) -> Status:
    """Folds the run's journal up to now."""
    from hadar_cli.adapters.store import read_journal
    from hadar_cli.core.state import RunState

    facts, pid = store.facts, store.holder()
    happened = read_journal(store.journal_path)
    state = RunState(facts.mix.jobs)
    try:
        for event in happened:
            state.apply(event)
    except (KeyError, ValueError) as error:
        raise StorageError(
            f"{store.journal_path}: its records contradict each other: {error}"
        ) from error
    now = state.now
    if pid and not state.finished and happened:
        now += max(0.0, time.time() - store.journal_path.stat().st_mtime)
    devices = all_devices(tuple(node for node in facts.nodes if node.enabled))
    return Status(
        run=facts.id,
        mix=facts.mix.name,
        policy=facts.mix.policy.name,
        state=_state(state, happened, pid),
        pid=pid,
        round=state.round,
        elapsed_s=now,
        jobs=tuple(_job(job) for job in state.jobs.values()),
        devices=tuple(_device(device, state, now) for device in devices),
    )


def _state(state: RunState, happened: list[Event], pid: int | None) -> str:
    from hadar_cli.core.events import RunStopped

    if state.finished:
        return "finished"
    if pid:
        return "running"
    return "stopped" if happened and isinstance(happened[-1], RunStopped) else "unfinished"


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
                steps = sum(end - first for first, end in copy.slices)
                since_s = now - copy.t
                return _Device(device.name, device.kind, copy.purpose, job.job.name, steps, since_s)
    return _Device(device.name, device.kind, "idle")


def _print(now: Status) -> None:
    from rich.text import Text

    from hadar_cli.report.format import bar, duration, percent, plain
    from hadar_cli.report.terminal import STATE_STYLES, name, table

    console = stdout()
    driver = f" by process {now.pid}" if now.pid and now.state == "running" else ""
    console.print(
        Text.assemble(
            (f"{plain(now.mix, 40)} under {plain(now.policy, 16)}  ", "bold"),
            (now.state, STATE_STYLES.get(now.state, "")),
            f"{driver}, round {now.round}, {duration(now.elapsed_s)}",
        )
    )
    jobs = table()
    for title in ("job", "merged"):
        jobs.add_column(title, no_wrap=True)
    for title in ("steps", "in hand", "merges"):
        jobs.add_column(title, justify="right", no_wrap=True)
    for job in now.jobs:
        share = job.steps_done / job.steps_target
        steps = f"{job.steps_done:,}/{job.steps_target:,}"
        drawn = Text.assemble((bar(share, 16), "green"), f" {percent(share):>6}")
        jobs.add_row(name(job.name), drawn, steps, f"{job.steps_in_hand:,}", str(job.generation))
    devices = table()
    for title in ("device", "kind", "doing"):
        devices.add_column(title, no_wrap=title != "doing")
    for device in now.devices:
        devices.add_row(name(device.name), name(device.kind), _doing(device))
    for part in ("", jobs, "", devices):
        console.print(part)


def _doing(device: _Device) -> str:
    from hadar_cli.report.format import duration, plain

    match device.doing:
        case "lost":
            return f"lost: {plain(device.why or '', 60)}"
        case "idle":
            return "idle"
        case "train":
            what = f"trains {device.steps:,} steps of"
        case purpose:
            what = f"{purpose}s"
    return f"{what} {plain(device.job or '', 40)}, for {duration(device.since_s)}"
