"""``hadar nodes add`` and ``hadar nodes drain``: machines that join or leave a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.completion import ThisRun
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir, read_inventory


def add_nodes(
    run: ThisRun,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An inventory of the new ones.")],
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Have machines join a run. One that was drained may come back."""
    from hadar_cli.assembly import check_nodes
    from hadar_cli.cli.requests import ask
    from hadar_cli.runs.requests import AddNodes
    from hadar_cli.runs.store import find_run

    store = find_run(runs_dir, run)
    inventory = read_inventory(file)
    check_nodes(inventory)
    ask(store, AddNodes(inventory), as_json)


def drain(
    run: ThisRun,
    node: Annotated[
        str,
        typer.Argument(metavar="NODE", help="Its name.", autocompletion=completion.nodes_of_run),
    ],
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Have a run leave a machine: its copies hand in first, and no work is lost."""
    from hadar_cli.cli.requests import ask
    from hadar_cli.runs.requests import DrainNode
    from hadar_cli.runs.store import find_run

    ask(find_run(runs_dir, run), DrainNode(node), as_json)
