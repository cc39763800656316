"""``hadar pause``, ``continue``, ``priority`` and ``close``: what the queue of a run does next."""

from __future__ import annotations

from typing import Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.completion import ThisRun
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir

Jobs = Annotated[
    list[str],
    typer.Argument(metavar="JOB...", help="Names of jobs.", autocompletion=completion.jobs_of_run),
]


def pause(
    run: ThisRun, jobs: Jobs, runs_dir: RunsDir = DEFAULT_RUNS, as_json: AsJson = False
) -> None:
    """Pause jobs until `hadar continue`.

    Their copies hand in what they have, and nothing more of them is started.
    """
    from hadar_cli.cli.requests import ask
    from hadar_cli.runs.requests import PauseJobs
    from hadar_cli.runs.store import find_run

    ask(find_run(runs_dir, run), PauseJobs(tuple(jobs)), as_json)


def continue_(
    run: ThisRun, jobs: Jobs, runs_dir: RunsDir = DEFAULT_RUNS, as_json: AsJson = False
) -> None:
    """Go on with jobs that were paused, exactly where they were."""
    from hadar_cli.cli.requests import ask
    from hadar_cli.runs.requests import ContinueJobs
    from hadar_cli.runs.store import find_run

    ask(find_run(runs_dir, run), ContinueJobs(tuple(jobs)), as_json)


def priority(
    run: ThisRun,
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="A job's name.", autocompletion=completion.jobs_of_run),
    ],
    number: Annotated[
        int,
        typer.Argument(metavar="N", min=-1000, max=1000, help="0 is what jobs have by default."),
    ],
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Change a job's priority.

    Jobs of a higher priority are given devices first, from the next round on.
    """
    from hadar_cli.cli.requests import ask
    from hadar_cli.runs.requests import SetPriority
    from hadar_cli.runs.store import find_run

    ask(find_run(runs_dir, run), SetPriority((job,), number), as_json)


def close(run: ThisRun, runs_dir: RunsDir = DEFAULT_RUNS, as_json: AsJson = False) -> None:
    """Tell a run that waits for work (`hadar run --wait-for-work`) that no more will come."""
    from hadar_cli.cli.requests import ask
    from hadar_cli.runs.requests import CloseQueue
    from hadar_cli.runs.store import find_run

    ask(find_run(runs_dir, run), CloseQueue(), as_json)
