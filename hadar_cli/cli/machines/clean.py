"""``hadar clean``: removes what hadar put on the machines, and proves that nothing is left."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.options import (
    DEFAULT_NODES,
    DEFAULT_RUNS,
    AsJson,
    NodesFile,
    RunsDir,
    complain,
    flag,
    print_json,
    read_inventory,
    stdout,
)
from hadar_cli.errors import InputError, UnfinishedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from hadar_cli.core.model import Node
    from hadar_cli.runs.store import RunStore
    from hadar_cli.visits.visit import Tidied

_DEADLINE_S = 60.0


def clean(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only what this run left.")
    ] = None,
    everything: Annotated[bool, flag("--all", "What all runs left; so it is without RUN.")] = False,
    nodes: NodesFile = DEFAULT_NODES,
    runs_dir: RunsDir = DEFAULT_RUNS,
    yes: Annotated[bool, flag("--yes", "Remove without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what hadar put on the machines, and prove that nothing is left.

    Results stay: journals, reports and trained models are in the head's runs directory.
    """
    if run and everything:
        raise InputError("--all and the name of a run exclude each other", field="--all")
    stores = _stores(run, runs_dir)
    name = stores[0].directory.name if run else None
    # Of a run also those that were drained: it has left its files there.
    machines = stores[0].facts.nodes if run else read_inventory(nodes)
    with ExitStack() as locks:  # nobody shall drive these runs, now or meanwhile
        for store in stores:
            locks.enter_context(store.locked())
        _confirm(machines, name, yes)
        where = stores[0].directory.parent if run else runs_dir
        done, failed = _remove(machines, where, name, [s.directory.name for s in stores])
    if as_json:
        print_json({node: dataclasses.asdict(tidied) for node, tidied in done.items()})
    elif done:
        stdout().print(_table(done))
        for node, tidied in done.items():
            if tidied.note:
                stdout().print(f"{node}: {tidied.note}")
    if failed:
        fix = "mend what is said above, then clean again"
        raise UnfinishedError("not every machine is clean", fix)
    if not as_json:
        stdout().print(f"Nothing of {f'run {name}' if name else 'hadar'} is left there.")


def _stores(run: str | None, runs_dir: Path) -> list[RunStore]:
    """The run asked for, or all that this head knows."""
    from hadar_cli.runs.store import RunStore, find_run, list_runs

    if run:
        return [find_run(runs_dir, run)]
    return [RunStore(path) for path in list_runs(runs_dir)]


def _remove(
    machines: Sequence[Node], runs: Path, name: str | None, held: list[str]
) -> tuple[dict[str, Tidied], bool]:
    """What was removed where, and whether anything failed or is left."""
    from hadar_cli.visits.visit import tidy

    done: dict[str, Tidied] = {}
    failed = False
    for node, result in tidy(machines, runs, "remove", name, held, _DEADLINE_S):
        if isinstance(result, Exception):
            failed = complain(node, result)
        else:
            done[node.name] = result
            failed |= bool(result.after.bytes or result.after.processes)
    return done, failed


def _confirm(machines: Sequence[Node], name: str | None, yes: bool) -> None:
    if yes:
        return
    what = f"what run {name} left" if name else "everything that hadar put"
    places = ", ".join(node.name for node in machines)
    if not sys.stdin.isatty():
        raise InputError(f"this removes {what} on {places}", fix="--yes says that it may")
    if not typer.confirm(f"Remove {what} on {places}?", err=True):
        raise typer.Exit(0)


def _table(done: dict[str, Tidied]) -> Table:
    from hadar_cli.report.format import bytes
    from hadar_cli.report.terminal.tables import name, table

    shown = table("~node", ">files before", ">after", ">processes before", ">after")
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
