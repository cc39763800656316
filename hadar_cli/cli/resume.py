"""``hadar resume [RUN]``: goes on with a run that stopped early."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, NoLive, RunsDir, stderr

if TYPE_CHECKING:
    from hadar_cli.adapters.store import RunStore


def resume(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="By default the newest unfinished one.",
            autocompletion=completion.runs,
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
    no_live: NoLive = False,
) -> None:
    """Go on with a run that was interrupted; what was merged is kept."""
    from hadar_cli.adapters.store import find_run
    from hadar_cli.cli.conduct import conduct

    store = find_run(runs_dir, run) if run else _newest_unfinished(runs_dir)
    if is_finished(store):
        stderr().print(f"run {store.directory.name} is finished; see: hadar report")
        return
    conduct(store, as_json, no_live)


def _newest_unfinished(runs: Path) -> RunStore:
    """The run to go on with; the newest of all when none is unfinished."""
    from hadar_cli.adapters.store import RunStore, find_run, list_runs

    newest = find_run(runs, None)  # or says that there is none
    stores = (RunStore(path) for path in reversed(list_runs(runs)))
    return next((store for store in stores if not is_finished(store)), newest)


def is_finished(store: RunStore) -> bool:
    from hadar_cli.adapters.store import read_journal
    from hadar_cli.core.events import RunFinished

    return any(isinstance(event, RunFinished) for event in read_journal(store.journal_path))
