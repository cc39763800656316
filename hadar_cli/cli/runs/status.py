"""``hadar status [RUN]``: what a run is doing now, also while another process drives it."""

from __future__ import annotations

import dataclasses
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.completion import RunName
from hadar_cli.cli.options import (
    DEFAULT_RUNS,
    AsJson,
    RunsDir,
    can_show_live,
    flag,
    print_json,
    stderr,
    stdout,
)
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from hadar_cli.cli.records import DeviceStatus, JobStatus, Status
    from hadar_cli.core.model import Device
    from hadar_cli.core.state import JobState, RunState
    from hadar_cli.report.live.follower import JournalFollower
    from hadar_cli.report.live.lines import Lines
    from hadar_cli.report.live.live import LiveView
    from hadar_cli.runs.store import RunStore

_LOOK_EVERY_S = 0.5
_AROUND_ROWS, _LOG_ROWS = 9, 8  # beside devices and jobs, of a single look


def status(
    run: RunName = None,
    watch: Annotated[bool, flag("--watch", "Show the live view until the run ends.")] = False,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Show what a run is doing now: its round, its devices and their jobs."""
    from hadar_cli.report.live.follower import JournalFollower
    from hadar_cli.runs.store import find_run

    store = find_run(runs_dir, run)
    if as_json and watch:
        raise InputError("--json tells one moment", field="--watch", fix="leave out one of them")
    if as_json:
        print_json(dataclasses.asdict(read_status(store)))
    elif watch:
        _watch(JournalFollower(store))
    else:
        _show(JournalFollower(store))


def watch(
    run: RunName = None,
    web: Annotated[bool, flag("--web", "Serve its page to browsers on this computer.")] = False,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=65535, help="With --web: a free one by default."),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
) -> None:
    """Look on while a run goes on: the live view here, or its page in a browser.

    Ctrl-C ends the looking, not the run.
    """
    from hadar_cli.report.live.follower import JournalFollower
    from hadar_cli.runs.store import find_run

    if port is not None and not web:
        raise InputError("--port needs --web", field="--port", fix="add --web")
    store = find_run(runs_dir, run)
    if web:
        _serve(store, port or 0)
    else:
        _watch(JournalFollower(store))


def _serve(store: RunStore, port: int) -> None:
    from hadar_cli.report.web.live_page import LivePage
    from hadar_cli.report.web.server import PageServer

    with PageServer(LivePage(store), port) as server:
        print(server.address, flush=True)
        name = store.directory.name
        stderr().print(f"the page of run {name}, for you on this computer; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _show(seen: JournalFollower) -> None:
    """Prints one look at the run."""
    from rich.segment import SegmentLines

    from hadar_cli.report.live.live import title
    from hadar_cli.report.live.live_state import LiveState
    from hadar_cli.report.live.screen import frame

    facts, console = seen.facts, stdout()
    live_state = LiveState(facts, seen.state, seen.rates, seen.now, guesses=True)
    seen.look(live_state.happened)
    live_state.driven = seen.standing == "running"
    footer = [_way_on(seen)]
    height = len(seen.devices) + len(facts.mix.jobs) + _AROUND_ROWS + _LOG_ROWS + len(footer)
    heading = title(facts)
    lines = frame(live_state, heading, seen.standing, footer, console.width, height)
    console.print(SegmentLines(lines, new_lines=True), end="")


def _watch(seen: JournalFollower) -> None:
    """Shows the run as `hadar run` does until it ends or the user leaves; it goes on either way."""
    from hadar_cli.report.live.lines import Lines
    from hadar_cli.report.live.live import LiveView

    facts = seen.facts
    view: LiveView | Lines = Lines(facts, sys.stdout)
    if can_show_live():
        view = LiveView(facts, stdout())
    try:
        with view.watch(seen.state, seen.rates, seen.now, guesses=True):
            while True:
                seen.look(view.happened)
                view.take_facts(seen.facts)
                if seen.standing != "running":
                    break
                view.tick()
                time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        stderr().print(f"run {facts.id} goes on")
        return
    stderr().print(f"run {facts.id} is {seen.standing}; {_way_on(seen)}")


def _way_on(seen: JournalFollower) -> str:
    from hadar_cli.report.format import count
    from hadar_cli.runs.requests import Inbox

    run = seen.store.directory.name
    match seen.standing:
        case "running":
            return f"driven by process {seen.pid}; look on with: hadar watch {run}"
        case "finished":
            return f"see: hadar report {run}"
    waiting = len(Inbox(seen.store).waiting())
    noted = f"; it takes up {count(waiting, 'request')}" if waiting else ""
    return f"continue with: hadar resume {run}{noted}"


def read_status(store: RunStore) -> Status:
    """The run at this moment, for ``--json``."""
    from hadar_cli.cli.records import Status
    from hadar_cli.report.live.follower import JournalFollower

    seen = JournalFollower(store)
    seen.look()
    now = seen.now()
    return Status(
        run=seen.facts.id,
        mix=seen.facts.mix.name,
        policy=seen.facts.mix.policy.name,
        state=seen.standing,
        pid=seen.pid,
        round=seen.state.round,
        elapsed_s=now,
        jobs=tuple(_job(job) for job in seen.state.jobs.values()),
        devices=tuple(_device(device, seen.state, now) for device in seen.devices),
    )


def _job(state: JobState) -> JobStatus:
    from hadar_cli.cli.records import JobStatus

    return JobStatus(
        state.job.name,
        len(state.done),
        len(state.in_hand),
        state.job.target_steps,
        state.generation,
        state.failed.why if state.failed else None,
        state.priority,
        state.is_paused,
        state.is_cancelled,
    )


def _device(device: Device, state: RunState, now: float) -> DeviceStatus:
    from hadar_cli.cli.records import DeviceStatus

    if lost := state.lost_devices.get(device.name):
        return DeviceStatus(device.name, device.kind, "lost", why=lost.why)
    for job in state.jobs.values():
        for copy in (*job.active.values(), *job.side_tasks.values()):
            if device.name in copy.devices:
                what, since_s = (copy.purpose, job.job.name, copy.quota), now - copy.t
                return DeviceStatus(device.name, device.kind, *what, since_s)
    return DeviceStatus(device.name, device.kind, "idle")
