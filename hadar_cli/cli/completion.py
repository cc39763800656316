"""What the shell offers when the user presses Tab. Slips are no news there: it offers nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from hadar_cli.errors import HadarError

if TYPE_CHECKING:
    from hadar_cli.runs.store import RunFacts

_Completion: TypeAlias = Callable[[typer.Context, str], list[str]]


def _offering(names: Callable[[typer.Context], Iterable[str]]) -> _Completion:
    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return [name for name in names(ctx) if name.startswith(incomplete)]
        except (HadarError, OSError):
            return []

    return offer


def _path(ctx: typer.Context, name: str) -> Path:
    """A path the user has typed before, or its default."""
    value: Any = ctx.params.get(name)
    if value is None:
        value = next(p.default for p in ctx.command.params if p.name == name)
    return Path(value)


@_offering
def runs(ctx: typer.Context) -> list[str]:
    from hadar_cli.runs.store import list_runs

    return [path.name for path in reversed(list_runs(_path(ctx, "runs_dir")))]


@_offering
def policies(ctx: typer.Context) -> Iterable[str]:
    from hadar_cli.policies import names

    return names()


@_offering
def nodes(ctx: typer.Context) -> list[str]:
    from hadar_cli.config.inventory import read_nodes

    return [node.name for node in read_nodes(_path(ctx, "nodes"))]


def _facts(ctx: typer.Context) -> RunFacts:
    """Of the run that the command line names, or of the newest."""
    from hadar_cli.runs.store import find_run

    return find_run(_path(ctx, "runs_dir"), ctx.params.get("run")).facts


@_offering
def nodes_of_run(ctx: typer.Context) -> list[str]:
    return [node.name for node in _facts(ctx).nodes]


@_offering
def jobs_of_run(ctx: typer.Context) -> list[str]:
    return [job.name for job in _facts(ctx).mix.jobs]


RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run's name or directory; the newest by default.",
        autocompletion=runs,
    ),
]
ThisRun = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's name or directory.", autocompletion=runs),
]
