"""``hadar cancel [RUN]``: stops a run in good order, whoever drives it."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.completion import RunName
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir, complain, print_json, stderr
from hadar_cli.errors import InputError, UnfinishedError

if TYPE_CHECKING:
    from hadar_cli.runs.store import RunStore

_WIND_UP_S = 660.0  # copies hand in, weights are pulled and merged
_DEADLINE_S = 30.0


def cancel(
    run: RunName = None,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB...]",
            help="Cancel these jobs only; the run goes on.",
            autocompletion=completion.jobs_of_run,
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Stop a run, or some of its jobs; what was merged is kept.

    `hadar resume` goes on with a run. Jobs end for good: what they have by then is their result.
    """
    from hadar_cli.runs.store import find_run, is_finished

    store = find_run(runs_dir, run)
    if jobs:
        from hadar_cli.cli.requests import ask
        from hadar_cli.runs.requests import CancelJobs

        ask(store, CancelJobs(tuple(jobs)), as_json)
        return
    name = store.directory.name
    pid, outcome = store.holder(), "stopped"
    if pid:
        _wind_up(store, pid)
    elif is_finished(store):
        outcome = "finished"
        stderr().print(f"run {name} is finished: there is nothing to cancel")
    else:
        stderr().print(f"no hadar on this computer drives run {name}; ending what it left behind")
        _end_leftovers(store)
    if outcome == "stopped":
        stderr().print(f"stopped; continue with: hadar resume {name}")
    if as_json:
        from hadar_cli.cli.records import Cancelled

        print_json(dataclasses.asdict(Cancelled(name, outcome)))


def _wind_up(store: RunStore, pid: int) -> None:
    """Asks the head to merge what its copies have done and to leave, and waits until it has."""
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise InputError(
            f"run {store.directory.name} is driven by process {pid}, which is not yours",
            fix="ask its owner",
        ) from None
    except ProcessLookupError:
        return
    stderr().print(f"asked process {pid} to wind up")
    deadline = time.monotonic() + _WIND_UP_S
    while store.holder() == pid:
        if time.monotonic() > deadline:
            raise UnfinishedError(
                f"process {pid} has not left within {_WIND_UP_S:.0f} s",
                fix=f"cancel it again to stop it at once: hadar cancel {store.directory.name}",
            )
        time.sleep(0.1)


def _end_leftovers(store: RunStore) -> None:
    from hadar_cli.visits.visit import tidy

    name = store.directory.name
    nodes = [node for node in store.facts.nodes if node.enabled]
    runs, failed = store.directory.parent, False
    with store.locked():  # so that nobody takes it up meanwhile
        for node, result in tidy(nodes, runs, "stop", name, [name], _DEADLINE_S):
            if isinstance(result, Exception):
                failed = complain(node, result)
            elif result.before.processes:
                left = result.after.processes
                stderr().print(f"{node.name}: {result.before.processes} processes, {left} left")
                failed |= left > 0
    if failed:
        raise UnfinishedError(
            "not every machine could be tidied",
            fix="copies end by themselves once nobody renews their lease, within half a minute",
        )
