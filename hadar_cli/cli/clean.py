"""``hadar clean``: removes what hadar put on the machines, and proves that nothing is left."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.options import (
    DEFAULT_NODES,
    DEFAULT_RUNS,
    AsJson,
    NodesFile,
    RunsDir,
    flag,
    print_json,
    read_inventory,
    stderr,
    stdout,
)
from hadar_cli.errors import HadarError, InputError, RunLockedError, UnfinishedError

if TYPE_CHECKING:
    from rich.table import Table

    from hadar_cli.adapters.visit import Tidied
    from hadar_cli.core.model import Node

_DEADLINE_S = 60.0


def clean(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only what this run left there.")
    ] = None,
    everything: Annotated[bool, flag("--all", "What all runs left, as without RUN.")] = False,
    nodes: NodesFile = DEFAULT_NODES,
    runs_dir: RunsDir = DEFAULT_RUNS,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what hadar put on the machines, and prove that nothing is left.

    Results stay: journals, reports and trained models are in the head's runs directory.
    """
    if run and everything:
        raise InputError("--all and the name of a run exclude each other", field="--all")
    name, machines, runs_dir = _what(run, nodes, runs_dir)
    _confirm(machines, name, yes)
    from hadar_cli.adapters.visit import tidy

    failed = False
    done: dict[str, Tidied] = {}
    for node, result in tidy(machines, runs_dir, "remove", name, _DEADLINE_S):
        if isinstance(result, Exception):
            failed = complain(node, result)
        else:
            done[node.name] = result
            failed |= bool(result.after.bytes or result.after.processes)
    if as_json:
        print_json({node: dataclasses.asdict(tidied) for node, tidied in done.items()})
    elif done:
        stdout().print(_table(done))
    if failed:
        fix = "mend what is said above, then clean again"
        raise UnfinishedError("not every machine is clean", fix)
    if not as_json:
        stdout().print(f"Nothing of {f'run {name}' if name else 'hadar'} is left there.")


def _what(run: str | None, nodes: Path, runs_dir: Path) -> tuple[str | None, list[Node], Path]:
    """Which run, which machines, where local ones keep theirs; refused while a head is at work."""
    from hadar_cli.adapters.store import RunStore, find_run, list_runs

    if run:
        stores = [find_run(runs_dir, run)]
        machines = [node for node in stores[0].facts.nodes if node.enabled]
        name, runs_dir = stores[0].directory.name, stores[0].directory.parent
    else:
        stores = [RunStore(path) for path in list_runs(runs_dir)]
        machines, name = list(read_inventory(nodes)), None
    for store in stores:
        if pid := store.holder():
            raise RunLockedError(
                f"process {pid} drives run {store.directory.name}",
                fix=f"wait for it to end, or stop it: hadar cancel {store.directory.name}",
            )
    return name, machines, runs_dir


def _confirm(machines: list[Node], name: str | None, yes: bool) -> None:
    if yes:
        return
    what = f"what run {name} left" if name else "everything that hadar put"
    places = ", ".join(node.name for node in machines)
    if not sys.stdin.isatty():
        raise InputError(f"this removes {what} on {places}", fix="--yes says that it may")
    if not typer.confirm(f"Remove {what} on {places}?", err=True):
        raise typer.Exit(0)


def complain(node: Node, error: Exception) -> bool:
    """Says what went wrong on one machine; always True, for it failed."""
    from hadar_cli.report.format import plain

    what = f"no answer within {error}" if isinstance(error, TimeoutError) else str(error)
    stderr().print(f"{node.name}: {plain(what, 300)}")
    if isinstance(error, HadarError) and error.fix:
        stderr().print(f"    fix: {plain(error.fix, 300)}")
    return True


def _table(done: dict[str, Tidied]) -> Table:
    from hadar_cli.report.format import bytes
    from hadar_cli.report.terminal import name, table

    shown = table()
    shown.add_column("node")
    for title in ("files before", "after", "processes before", "after"):
        shown.add_column(title, justify="right", no_wrap=True)
    for node, tidied in done.items():
        before, after = tidied.before, tidied.after
        shown.add_row(
            name(node),
            bytes(before.bytes),
            bytes(after.bytes),
            str(before.processes),
            str(after.processes),
        )
    return shown
