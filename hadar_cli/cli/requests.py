"""Leaves a request with a run and tells what became of it. For ``add``, ``cancel`` and the like."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hadar_cli.cli.options import DEFAULT_RUNS, print_json, stderr
from hadar_cli.cli.records import Asked
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from hadar_cli.core.events import Event
    from hadar_cli.runs.requests import Request
    from hadar_cli.runs.store import RunStore

_ANSWER_S = 30.0  # a head that sends data to its nodes first takes longer
_LOOK_EVERY_S = 0.1


def require_grantable(store: RunStore, request: Request) -> None:
    """Raises InputError where the request cannot be granted."""
    from hadar_cli.runs.answers import answer, look_ahead

    state, facts = look_ahead(store)
    answer(request, "", state, facts, state.now)


def ask(store: RunStore, request: Request, as_json: bool) -> None:
    """Refuses what cannot be granted; else leaves it, and waits for the head's answer if one
    drives the run."""
    from hadar_cli.runs.requests import Inbox
    from hadar_cli.runs.store import is_driven, read_state

    require_grantable(store, request)
    inbox = Inbox(store)
    number = inbox.put(request)
    granted = _await(store, number) if is_driven(store) else None
    name = store.directory.name
    if granted is None and read_state(store).finished and inbox.take_back(number):
        raise InputError(f"run {name} has just ended", fix="start another: hadar run MIX")
    if granted is None:
        where = "" if store.directory.parent == DEFAULT_RUNS else _folder(store.directory.parent)
        told = f"noted; nobody drives the run now, hadar resume {name}{where} takes it up"
        if is_driven(store):
            told = "noted; the run is busy, and takes it up as soon as it can"
    else:
        told = _told(store, granted)
    stderr().print(f"run {name}: {told}")
    if as_json:
        print_json(dataclasses.asdict(Asked(name, number, granted is not None, told)))


def _folder(runs: Path) -> str:
    return f" --runs-dir {runs}"


def _await(store: RunStore, number: str) -> Event | None:
    """What the head has journalled about it; None if it has not in all the time."""
    from hadar_cli.runs.requests import Inbox
    from hadar_cli.runs.store import is_driven, read_journal

    inbox, deadline = Inbox(store), time.monotonic() + _ANSWER_S
    while number in inbox.waiting() and time.monotonic() < deadline and is_driven(store):
        time.sleep(_LOOK_EVERY_S)
    happened = read_journal(store.journal_path)
    return next((e for e in happened if getattr(e, "request", None) == number), None)


def _told(store: RunStore, granted: Event) -> str:
    from hadar_cli.core.events import RequestRefused
    from hadar_cli.report.words import describe
    from hadar_cli.runs.store import read_state

    if isinstance(granted, RequestRefused):
        raise InputError(granted.why, fix="hadar status shows what the run is doing")
    return describe(granted, read_state(store))
