"""``hadar resume [RUN]``: goes on with a run that stopped early."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.options import (
    DEFAULT_RUNS,
    AsJson,
    NoLive,
    Notify,
    Observe,
    RunsDir,
    channels,
    observers,
    read_inventory,
    stderr,
)

if TYPE_CHECKING:
    from hadar_cli.runs.store import RunStore


def resume(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's name or directory; the newest unfinished one by default.",
            autocompletion=completion.runs,
        ),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            "--nodes", "-n", metavar="FILE", help="Use these machines instead of its own."
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    observe: Observe = None,
    notify: Notify = None,
    as_json: AsJson = False,
    no_live: NoLive = False,
) -> None:
    """Go on with a run that was interrupted; what was merged is kept."""
    from hadar_cli.cli.foreground import run_in_foreground
    from hadar_cli.runs.store import find_run, is_finished

    watched, told = observers(observe), channels(notify)
    store = find_run(runs_dir, run) if run else _newest_unfinished(runs_dir)
    if is_finished(store):
        stderr().print(f"run {store.directory.name} is finished; see: hadar report")
        return
    if nodes:
        _replace_nodes(store, nodes)
    run_in_foreground(store, as_json, no_live, watched, told)


def _replace_nodes(store: RunStore, path: Path) -> None:
    """Gives the run the inventory of ``path``, and says what that changes."""
    from hadar_cli.assembly import check_nodes, priced
    from hadar_cli.core.estimates.suitability import require_room
    from hadar_cli.core.model import devices_of
    from hadar_cli.runs.replacement import replace_nodes

    inventory = priced(read_inventory(path), stderr().print)
    check_nodes(inventory)
    require_room(store.facts.mix.jobs, devices_of(inventory), str(path))
    replaced = replace_nodes(store, inventory)
    stderr().print(f"{path}: {replaced.text if replaced else 'the machines that the run has'}")


def _newest_unfinished(runs: Path) -> RunStore:
    """The run to go on with; the newest of all when none is unfinished."""
    from hadar_cli.runs.store import RunStore, find_run, is_finished, list_runs

    newest = find_run(runs, None)  # or says that there is none
    stores = (RunStore(path) for path in reversed(list_runs(runs)))
    return next((store for store in stores if not is_finished(store)), newest)
