"""Drives a run in front of the user: the view, Ctrl-C, the summary. For ``run`` and ``resume``."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from hadar_cli.assembly import Interrupted, Watch, drive
from hadar_cli.cli.options import DEFAULT_RUNS, can_show_live, print_json, stderr, stdout
from hadar_cli.core.events import RunStopped
from hadar_cli.errors import PausedError, StorageError, UnfinishedError
from hadar_cli.report.live.lines import Lines
from hadar_cli.report.words import not_handed_in
from hadar_cli.runs.store import RunStore, read_journal, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from hadar_cli.core.estimates.throughput import RateModel
    from hadar_cli.core.state import RunState
    from hadar_cli.observers.catalog import Choice
    from hadar_cli.observers.notifier import Channel, Notifier
    from hadar_cli.observers.processes import ObserverProcesses
    from hadar_cli.report.live.live import LiveView

    Clock: TypeAlias = Callable[[], float]
    _Watchers: TypeAlias = tuple[ObserverProcesses, Notifier]

_LEFT = "stopped; what was merged is kept"


def run_in_foreground(
    store: RunStore,
    as_json: bool,
    no_live: bool,
    observe: Sequence[Choice] = (),
    notify: Sequence[Channel] = (),
) -> None:
    """Trains to the end and prints the summary; leaves early only with a way to go on.

    ``observe`` are observers beside those that the run has already.
    """
    way_on = f"continue with: hadar resume {store.directory.name}{_folder(store)}"
    try:
        with (
            _problems_told(store),
            _observed(store, observe, notify) as watchers,
            _view(store, live=can_show_live() and not as_json and not no_live) as view,
        ):
            drive(store, _watching(store, view, watchers), view.interrupted)
    except KeyboardInterrupt as interrupt:
        kept = _kept(store) if isinstance(interrupt, Interrupted) else _LEFT
        stderr().print(escape(f"{kept}; {way_on}"))
        sys.exit(130)
    except PausedError as error:
        how = (error.fix or "").replace("RUN", store.directory.name, 1)
        raise UnfinishedError(str(error), fix=f"{how}{_folder(store)}, then {way_on}") from error
    except UnfinishedError as error:
        told = "\n".join(filter(None, (str(error), error.fix)))
        raise UnfinishedError(told, fix=f"mend the cause, then {way_on}") from error
    _summarise(store, as_json)
    _tell_of_jobs_cut_short(store)


@contextmanager
def _problems_told(store: RunStore) -> Iterator[None]:
    """What did not come home, or may still be held for the run: however it ends."""
    try:
        yield
    finally:
        with suppress(OSError):
            told = (store.directory / "out" / "problems.txt").read_text()
            stderr().print(escape(told.rstrip()))


def _folder(store: RunStore) -> str:
    runs = store.directory.parent
    return "" if runs == DEFAULT_RUNS else f" --runs-dir {runs}"


def _kept(store: RunStore) -> str:
    last = read_journal(store.journal_path)[-1]
    lost = not_handed_in(last) if isinstance(last, RunStopped) else ""
    return f"{_LEFT}{lost}" if lost else "saved"


def _tell_of_jobs_cut_short(store: RunStore) -> None:
    """They have their models, but not all their steps: whoever waits for the run should know."""
    if all(job.max_duration_s is None for job in store.facts.mix.jobs):
        return
    jobs = read_state(store).jobs.values()
    cut = [job for job in jobs if job.cut_short and not (job.is_stopping or job.is_cancelled)]
    if cut:
        told = "; ".join(
            f"{job.job.name!r} ended with {len(job.done):,} of {job.job.target_steps:,} steps: "
            f"{job.cut_short}"
            for job in cut
        )
        raise UnfinishedError(told, fix="raise its max_duration in the mix and run it again")


def _watching(store: RunStore, view: LiveView | Lines, watchers: _Watchers) -> Watch:
    """Has the view look anew whenever jobs or nodes have come or gone."""

    def watch(state: RunState, rates: RateModel, clock: Clock) -> Any:
        view.take_facts(store.facts)
        processes, notifier = watchers
        processes.tell = notifier.tell = view.tell
        notifier.state = state
        return processes.beside(view.watch(state, rates, clock), notifier)

    return watch


@contextmanager
def _observed(
    store: RunStore, more: Sequence[Choice], channels: Sequence[Channel]
) -> Iterator[_Watchers]:
    """Observers write in processes of their own, which end with the run."""
    from hadar_cli.observers.notifier import Notifier
    from hadar_cli.observers.processes import ObserverProcesses
    from hadar_cli.observers.writing import kept_choices

    def tell(words: str) -> None:
        stderr().print(words)

    wanted = {choice.name: choice for choice in (*kept_choices(store), *more)}
    processes = ObserverProcesses(store, wanted.values(), tell)
    notifier = Notifier(store.directory.name, channels, tell)
    try:
        yield processes, notifier
    except StorageError as error:  # which no journal can tell
        notifier.say("trouble", error.message, 0.0)
        raise
    finally:
        processes.tell = notifier.tell = tell  # the view is closed
        notifier.end()
        processes.end()


def _view(store: RunStore, live: bool) -> LiveView | Lines:
    if not live:
        return Lines(store.facts, sys.stderr)
    from hadar_cli.report.live.live import LiveView

    facts, past = store.facts, read_journal(store.journal_path)
    return LiveView(facts.with_added(past), stdout(), past)


def _summarise(store: RunStore, as_json: bool) -> None:
    from hadar_cli.report.record import read_record
    from hadar_cli.report.terminal.summary import show

    record = read_record(store)
    if as_json:
        print_json(dataclasses.asdict(record.told))
        return
    show(record, stdout())
    stdout().print(f" Trained models: {store.directory / 'models'}/")
    for sweep in record.sweeps:
        best = f"the best is {sweep.best}" if sweep.best else "no trial is known to be the best"
        more = f"hadar report {store.directory.name} --sweep{_folder(store)}"
        stdout().print(escape(f" Sweep {sweep.sweep}: {best}; all trials: {more}"))
    out = store.directory / "out"
    if any(path.is_dir() for path in out.glob("*")):
        stdout().print(f" What scripts left: {out}/")
