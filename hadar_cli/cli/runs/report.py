"""`hadar report`: what a run achieved, and where its time went; or how several runs compare."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir, flag, print_json, stderr, stdout
from hadar_cli.errors import InputError, StorageError

if TYPE_CHECKING:
    from hadar_cli.cli.records import RunOutline
    from hadar_cli.report.record import RunRecord
    from hadar_cli.runs.store import RunStore


_Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Runs by name or directory; the newest by default.",
        autocompletion=completion.runs,
    ),
]
_Observers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:field=value,...]",
        help="Give its curves to tensorboard, wandb or mlflow: what these do not have yet.",
    ),
]
_Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page with charts; it needs no network."),
]
_Tables = Annotated[
    Path | None,
    typer.Option(
        "--csv", metavar="FILE|DIR", help="Write tables: one file, or a folder of several."
    ),
]


def report(
    runs: _Runs = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
    every: Annotated[bool, flag("--list", "List all runs, oldest first.")] = False,
    sweep: Annotated[bool, flag("--sweep", "The trials of its sweeps, and the best.")] = False,
    to: _Observers = None,
    follow: Annotated[bool, flag("--follow", "With --to: also what comes, until it ends.")] = False,
    page: _Page = None,
    tables: _Tables = None,
) -> None:
    """Show what a run achieved: times, steps, quality, and where the time went.

    With several runs, compare them side by side.
    """
    if every:
        if runs or page or tables:
            raise InputError("--list shows all runs and takes nothing beside it", field="--list")
        _list(runs_dir, as_json)
        return
    if follow and not to:
        raise InputError("--follow needs --to", field="--follow", fix="name an observer: --to NAME")
    if to:
        _give(runs_dir, runs or [], to, follow)
        return
    records = _read(runs_dir, runs or [])
    if sweep:
        _show_sweeps(records, as_json)
        return
    if page:
        _write_page(page, records)
    if tables:
        _write_tables(tables, records)
    if as_json:
        _print_json(records)
    elif not page and not tables:
        _show(records)


def _read(runs_dir: Path, names: list[str]) -> list[RunRecord]:
    from hadar_cli.report.record import read_record
    from hadar_cli.runs.store import find_run

    stores = [find_run(runs_dir, name) for name in dict.fromkeys(names)] or [
        find_run(runs_dir, None)
    ]
    if len(names) > 1 and len(stores) == 1:
        raise InputError("a run cannot be compared with itself", fix="name two different runs")
    return [read_record(store) for store in stores]


def _show_sweeps(records: list[RunRecord], as_json: bool) -> None:
    if len(records) > 1:
        raise InputError("--sweep is about one run", field="--sweep", fix="name one run")
    (record,) = records
    if not record.sweeps:
        fix = "grid or sample in a job of the mix makes one"
        raise InputError(f"run {record.facts.id} has no sweep", field="--sweep", fix=fix)
    if as_json:
        print_json([dataclasses.asdict(sweep) for sweep in record.sweeps])
        return
    from hadar_cli.report.terminal.sweep import show

    show(record.sweeps, record.store.directory / "models", stdout())


def _print_json(records: list[RunRecord]) -> None:
    if len(records) == 1:
        print_json(dataclasses.asdict(records[0].told))
        return
    from hadar_cli.report.terminal.runs import compare

    print_json(dataclasses.asdict(compare(records)))


def _show(records: list[RunRecord]) -> None:
    if len(records) > 1:
        from hadar_cli.report.terminal import runs as compare

        compare.show(compare.compare(records), stdout())
        return
    from hadar_cli.report.terminal.summary import show

    show(records[0], stdout())


def _give(runs_dir: Path, names: list[str], words: list[str], follows: bool) -> None:
    """To each observer in turn; its fields are those given, or else those the run has noted."""
    from hadar_cli.observers.catalog import parse, require_installed
    from hadar_cli.observers.writing import ObserverFiles, follow, write_once
    from hadar_cli.runs.store import find_run

    choices = parse(words, "--to")
    if follows and len(choices) * max(1, len(names)) > 1:
        raise InputError("it follows one run for one observer", field="--follow", fix="name one")
    for choice in choices:
        require_installed(choice)
    wanted: list[str | None] = [*dict.fromkeys(names)] or [None]
    for store in [find_run(runs_dir, name) for name in wanted]:
        for choice in choices:
            used = choice if choice.fields else ObserverFiles(store, choice.name).kept() or choice
            count, place = (follow if follows else write_once)(store, used)
            told = f"{count:,} new values of {store.directory.name}; see: {place}"
            stderr().print(f"{choice.name}: {told}")


# -- files -----------------------------------------------------------------------------------------


def _write_page(path: Path, records: list[RunRecord]) -> None:
    from hadar_cli.report.page.page import render

    if path.is_dir():
        raise InputError("this is a directory", file=str(path), field="--html", fix="name a file")
    _write(path, render(records))


def _write_tables(path: Path, records: list[RunRecord]) -> None:
    """One file of all values, or a directory with a file for each table."""
    from hadar_cli.report.terminal import export as table

    made = table.tables(records)
    if path.is_dir() or not path.suffix:
        for name, rows in made.items():
            _write(path / f"{name}.csv", table.as_csv(rows))
    else:
        _write(path, table.as_csv(list(table.long_rows(made)), table.LONG_FIELDS))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}", fix="choose a place that can be written"
        ) from error
    stderr().print(f"wrote {path}")


# -- all runs ------------------------------------------------------------------------------------


def _list(runs_dir: Path, as_json: bool) -> None:
    from rich.text import Text

    from hadar_cli.report.format import bytes, duration, when
    from hadar_cli.report.terminal.summary import STATE_STYLES
    from hadar_cli.report.terminal.tables import name, table
    from hadar_cli.runs.store import RunStore, list_runs

    outlines = [_outline(RunStore(path)) for path in list_runs(runs_dir)]
    if as_json:
        print_json([dataclasses.asdict(outline) for outline in outlines])
        return
    titles = ["~run", "~mix", "~policy", "~state", ">jobs done", ">steps done", ">TTD", ">started"]
    rows = table(*titles, ">on disk")
    for one in outlines:
        rows.add_row(
            name(one.run),
            name(one.mix),
            name(one.policy),
            Text(one.state, STATE_STYLES.get(one.state, "red"), no_wrap=True),
            f"{one.jobs_done}/{one.jobs}",
            f"{one.steps_done:,}/{one.steps_target:,}",
            duration(one.ttd_s),
            when(one.started_at),
            bytes(one.disk_bytes),
        )
    stdout().print(rows if outlines else f"There are no runs in {runs_dir}/ yet.")


def _outline(store: RunStore) -> RunOutline:
    from hadar_cli.cli.records import RunOutline
    from hadar_cli.core.state import RunState
    from hadar_cli.runs.store import contradictions_of, is_driven, read_journal

    facts = store.facts
    state = RunState(facts.mix.jobs)
    try:
        with contradictions_of(store):
            for event in read_journal(store.journal_path):
                state.apply(event)
        standing = "finished" if state.finished else "unfinished"
    except StorageError:
        standing = "damaged"
    if standing == "unfinished" and is_driven(store):
        standing = "running"
    jobs = state.jobs.values()
    return RunOutline(
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
        disk_bytes=store.disk_bytes(),
    )
