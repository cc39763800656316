"""`hadar report`: what a run achieved, and where its time went."""

from __future__ import annotations

import dataclasses
import fcntl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir, all_devices, print_json, stdout
from hadar_cli.errors import InputError, StorageError

if TYPE_CHECKING:
    from hadar_cli.adapters.store import RunFacts, RunStore
    from hadar_cli.core.events import Event
    from hadar_cli.core.model import Device
    from hadar_cli.core.summary import RunSummary


def report(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's name or directory; the newest by default."),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--list", help="List all runs, oldest first.")] = False,
) -> None:
    """Show what a run achieved: times, steps, quality, and where the time went.

    Example: hadar report --json | jq .cru
    """
    if every:
        _list(runs_dir, run, as_json)
        return
    from hadar_cli.adapters.store import find_run, read_journal
    from hadar_cli.core.timeline import trace
    from hadar_cli.report.terminal import show

    store = find_run(runs_dir, run)
    facts, happened = store.facts, read_journal(store.journal_path)
    summary = _summary(store, facts, happened)
    if as_json:
        print_json(dataclasses.asdict(summary))
        return
    timeline = trace([device.name for device in _devices(facts)], happened)
    show(summary, timeline, [job.id for job in facts.mix.jobs], stdout())


def _devices(facts: RunFacts) -> list[Device]:
    return all_devices(tuple(node for node in facts.nodes if node.enabled))


def _summary(store: RunStore, facts: RunFacts, happened: list[Event]) -> RunSummary:
    from hadar_cli.core.metrics import summarise

    try:
        summary = summarise(facts.id, facts.mix, _devices(facts), happened)
    except (KeyError, ValueError) as error:
        raise StorageError(
            f"{store.journal_path}: its records contradict each other: {error}"
        ) from error
    if summary.state != "finished" and _is_driven(store):
        return dataclasses.replace(summary, state="running")
    return summary


def _is_driven(store: RunStore) -> bool:
    """Whether a head holds the run now."""
    try:
        with (store.directory / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never locked, or not ours to look at
        return False
    return False


# -- all runs ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Outline:
    """A run in one line; its names are those in the JSON."""

    run: str
    mix: str
    policy: str
    state: str
    jobs_done: int
    jobs: int
    steps_done: int
    steps_target: int
    ttd_s: float
    started_at: str


def _list(runs_dir: Path, run: str | None, as_json: bool) -> None:
    if run is not None:
        raise InputError("--list shows all runs; leave out the run's name", field="--list")
    from rich.text import Text

    from hadar_cli.adapters.store import RunStore, list_runs
    from hadar_cli.report.format import duration
    from hadar_cli.report.terminal import STATE_STYLES, name, table

    outlines = [_outline(RunStore(path)) for path in list_runs(runs_dir)]
    if as_json:
        print_json([dataclasses.asdict(outline) for outline in outlines])
        return
    rows = table()
    for title in ("run", "mix", "policy", "state"):
        rows.add_column(title)
    for title in ("jobs done", "steps done", "TTD"):
        rows.add_column(title, justify="right", no_wrap=True)
    for one in outlines:
        rows.add_row(
            name(one.run),
            name(one.mix),
            name(one.policy),
            Text(one.state, STATE_STYLES.get(one.state, "red"), no_wrap=True),
            f"{one.jobs_done}/{one.jobs}",
            f"{one.steps_done:,}/{one.steps_target:,}",
            duration(one.ttd_s),
        )
    stdout().print(rows if outlines else f"There are no runs in {runs_dir}/ yet.")


def _outline(store: RunStore) -> _Outline:
    from hadar_cli.adapters.store import read_journal
    from hadar_cli.core.state import RunState

    facts = store.facts
    state = RunState(facts.mix.jobs)
    try:
        for event in read_journal(store.journal_path):
            state.apply(event)
        standing = "finished" if state.finished else "unfinished"
    except (KeyError, ValueError, StorageError):
        standing = "damaged"
    if standing == "unfinished" and _is_driven(store):
        standing = "running"
    jobs = state.jobs.values()
    return _Outline(
        run=facts.id,
        mix=facts.mix.name,
        policy=facts.mix.policy.name,
        state=standing,
        jobs_done=sum(job.is_trained for job in jobs),
        jobs=len(jobs),
        steps_done=sum(len(job.done) for job in jobs),
        steps_target=sum(job.job.target_steps for job in jobs),
        ttd_s=state.now,
        started_at=facts.started_at,
    )
