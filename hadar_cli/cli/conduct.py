"""Drives a run in front of the user: the view, Ctrl-C, the summary. For ``run`` and ``resume``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hadar_cli.adapters.head import Interrupted, devices_of, drive
from hadar_cli.adapters.store import RunStore
from hadar_cli.cli.options import DEFAULT_RUNS, stderr, stdout
from hadar_cli.errors import UnfinishedError
from hadar_cli.report.lines import Lines

if TYPE_CHECKING:
    from hadar_cli.report.live import LiveView


def conduct(store: RunStore, as_json: bool, no_live: bool) -> None:
    """Trains to the end and prints the summary; leaves early only with a way to go on."""
    way_on = f"continue with: hadar resume {store.directory.name}"
    if store.directory.parent != DEFAULT_RUNS:
        way_on += f" --runs-dir {store.directory.parent}"
    try:
        with _view(store, live=can_show_live() and not as_json and not no_live) as view:
            drive(store, view.watch, view.interrupted)
    except KeyboardInterrupt as interrupt:
        kept = "saved" if isinstance(interrupt, Interrupted) else "stopped; what was merged is kept"
        stderr().print(f"{kept}; {way_on}")
        sys.exit(130)
    except UnfinishedError as error:
        told = "\n".join(filter(None, (str(error), error.fix)))
        raise UnfinishedError(told, fix=f"mend the cause, then {way_on}") from error
    _summarise(store, as_json)
    _tell_of_jobs_cut_short(store)


def _tell_of_jobs_cut_short(store: RunStore) -> None:
    """They have their models, but not all their steps: whoever waits for the run should know."""
    from hadar_cli.adapters.store import read_journal
    from hadar_cli.core.state import RunState

    if all(job.max_duration_s is None for job in store.facts.mix.jobs):
        return
    state = RunState(store.facts.mix.jobs)
    for event in read_journal(store.journal_path):
        state.apply(event)
    cut = [job for job in state.jobs.values() if job.cut_short]
    if cut:
        told = "; ".join(
            f"{job.job.name!r} ended with {len(job.done):,} of {job.job.target_steps:,} steps: "
            f"{job.cut_short}"
            for job in cut
        )
        raise UnfinishedError(told, fix="raise its max_duration in the mix and run it again")


def can_show_live() -> bool:
    """Whether stdout is a terminal on which one can paint."""
    return sys.stdout.isatty() and not stdout().is_dumb_terminal


def _view(store: RunStore, live: bool) -> LiveView | Lines:
    facts = store.facts
    devices = devices_of(facts.nodes)
    if not live:
        return Lines(facts.mix, devices, sys.stderr)
    from hadar_cli.report.live import LiveView

    return LiveView(facts.id, facts.mix, devices, stdout())


def _summarise(store: RunStore, as_json: bool) -> None:
    from hadar_cli.cli.report import report

    report([store.directory.name], store.directory.parent, as_json)
    if not as_json:
        stdout().print(f" Trained models: {store.directory / 'models'}/")
