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
    try:
        stores = _stores(run, runs_dir)
    except InputError:
        if not run or not _clean_unknown(run, nodes, yes):
            raise
        return
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
    if not run and not as_json:
        _show_strays(machines, stores)
    if failed:
        fix = "mend what is said above, then clean again"
        raise UnfinishedError("not every machine is clean", fix)
    if not as_json:
        stdout().print(f"Nothing of {f'run {name}' if name else 'hadar'} is left there.")


def _clean_unknown(run: str, nodes: Path, yes: bool) -> bool:
    """Ends machines that were rented for a run of that name, wherever its directory is."""
    from hadar_cli.aws.strays import end_strays, find_strays

    try:
        strays = find_strays(read_inventory(nodes), (), run)
    except InputError:
        return False
    if not strays:
        return False
    for stray in strays:
        stdout().print(f"{stray.id}, node {stray.node} of run {run}, up since {stray.since}")
    what = f"{len(strays)} instances of run {run}, which is not in this directory"
    if not yes and not sys.stdin.isatty():
        raise InputError(f"this ends {what}", fix="--yes says that it may")
    if not yes and not typer.confirm(f"End {what}? A head elsewhere would lose them.", err=True):
        raise typer.Exit(0)
    end_strays(strays)
    if left := find_strays(read_inventory(nodes), (), run):
        names = ", ".join(stray.id for stray in left)
        raise UnfinishedError(f"{names} still there", "look again in a minute")
    stdout().print(f"Ended all of them; no instance of run {run} is left.")
    return True


def _show_strays(machines: Sequence[Node], stores: Sequence[RunStore]) -> None:
    """What costs money unseen; somebody else's head may use it."""
    from hadar_cli.aws.strays import find_strays

    known = [store.facts.token for store in stores]
    for stray in find_strays(machines, known, None):
        stdout().print(
            f"{stray.id}, node {stray.node} of run {stray.run}, is up since {stray.since}, "
            f"and that run is not in this directory: hadar clean {stray.run} ends it"
        )


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
