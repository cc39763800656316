"""Gives a run's points to a sink, once or for as long as the run goes on."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hadar_cli.core.measures.points import Points
from hadar_cli.errors import HadarError, InputError, StorageError, UnfinishedError
from hadar_cli.observers.catalog import KINDS, Choice, open_sink
from hadar_cli.observers.sink import Subject
from hadar_cli.runs.store import RunStore, contradictions_of, is_driven, storage_errors
from hadar_cli.runs.tail import JournalTail

_LOOK_EVERY_S = 2.0
_TRY_AGAIN_S = (5.0, 15.0, 60.0)  # while the run goes on: then always the last
_LONGEST = 120  # characters of what a sink's library says
_LAST_TRIES, _AT_END_S = 2, 1.0  # once nobody drives it any more


class ObserverFiles:
    """What a run's directory holds of one observer: its fields, its lock, its last problem."""

    def __init__(self, store: RunStore, name: str) -> None:
        self._folder = store.directory / "observers"
        self.log = self._folder / f"{name}.log"
        self._fields = self._folder / f"{name}.json"
        self._problem = self._folder / f"{name}.problem"
        self._lock = self._folder / f"{name}.lock"
        self._name = name

    def keep(self, choice: Choice) -> None:
        """Notes what was asked for, so that whoever goes on with the run goes on with this."""
        with storage_errors(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._fields.touch(mode=0o600)
            self._fields.write_text(json.dumps(dict(choice.fields)))

    def kept(self) -> Choice | None:
        try:
            fields = json.loads(self._fields.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StorageError(f"{self._fields}: {error}", fix="remove the file") from error
        known = KINDS[self._name].fields
        if not isinstance(fields, dict) or not all(
            name in known and isinstance(value, str) for name, value in fields.items()
        ):
            raise StorageError(f"{self._fields}: not an observer's fields", fix="remove the file")
        return Choice(self._name, fields)

    @property
    def problem(self) -> str:
        """What keeps the observer from writing, if anything does."""
        try:
            return self._problem.read_text()
        except OSError:
            return ""

    def note(self, problem: str) -> None:
        if problem:
            self._problem.write_text(problem)
        else:
            self._problem.unlink(missing_ok=True)

    @contextmanager
    def alone(self, waits: bool) -> Iterator[None]:
        """Two processes that write the same points would count wrongly."""
        with storage_errors(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with self._lock.open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
                except BlockingIOError:
                    raise InputError(
                        f"another hadar gives this run to {self._name} now",
                        fix="wait until it has, or until the run ends",
                    ) from None
                yield


def kept_choices(store: RunStore) -> list[Choice]:
    """The observers that the run was started with."""
    return [choice for name in KINDS if (choice := ObserverFiles(store, name).kept())]


def write_once(store: RunStore, choice: Choice) -> tuple[int, str]:
    """Gives the sink all it has not; how many values that was, and where to look."""
    files = ObserverFiles(store, choice.name)
    with files.alone(waits=False):
        written = _Writing(store, choice).go(lambda: False)
        files.note("")
    return written


def follow(store: RunStore, choice: Choice) -> tuple[int, str]:
    """Writes until the run is over or nobody drives it. A sink that fails is tried again, from the
    beginning of the journal: it knows itself what it has."""
    files = ObserverFiles(store, choice.name)
    with files.alone(waits=True):
        tries = tries_at_end = 0
        while True:
            driven = is_driven(store)
            try:
                written = _Writing(store, choice).go(lambda: is_driven(store))
            except UnfinishedError as error:
                files.note(error.message)
                tries_at_end += not driven
                if tries_at_end == _LAST_TRIES:
                    raise
                pause_s = _TRY_AGAIN_S[min(tries, len(_TRY_AGAIN_S) - 1)]
                _sleep(pause_s if driven else _AT_END_S, store)
                tries += 1
            else:
                files.note("")
                return written


def _sleep(seconds: float, store: RunStore) -> None:
    """Shorter, should the run end meanwhile: its head waits."""
    until, driven = time.monotonic() + seconds, is_driven(store)
    while time.monotonic() < until and is_driven(store) == driven:
        time.sleep(min(1.0, seconds))


def _in_words(error: BaseException) -> str:
    """What a library says, which may be long, and what it was that happened, if that is another."""
    first = error
    while cause := error.__cause__ or error.__context__:
        error = cause
    what, why = (" ".join(str(e).split()) or type(e).__name__ for e in (first, error))
    if len(what) <= _LONGEST:
        return what
    return f"{what[:_LONGEST]} …" if why in what[:_LONGEST] else f"{what[:_LONGEST]} … ({why[:80]})"


class _Writing:
    """One opening of a sink, from the journal's first line on."""

    def __init__(self, store: RunStore, choice: Choice) -> None:
        facts = store.facts
        self._store, self._choice = store, choice
        self._points, self._tail = Points(facts.mix.jobs), JournalTail(store.journal_path)
        self._subject = Subject(store.directory, facts, self._points.state)

    def go(self, goes_on: Callable[[], bool]) -> tuple[int, str]:
        try:
            return self._go(goes_on)
        except HadarError:
            raise
        except Exception as error:  # whatever a sink's library raises: the run must not care
            name = self._choice.name
            raise UnfinishedError(
                f"{name}: {_in_words(error)}",
                fix=f"when it works again: hadar report {self._store.directory.name} --to {name}",
            ) from error

    def _go(self, goes_on: Callable[[], bool]) -> tuple[int, str]:
        sink, count = open_sink(self._choice, self._subject), 0
        files = ObserverFiles(self._store, self._choice.name)
        while True:
            is_last = not goes_on()  # asked first: a head that left has written its end before
            with contradictions_of(self._store):
                news = [p for event in self._tail.news() for p in self._points.take(event)]
            count += sink.write(news)
            files.note("")
            if is_last or self._points.is_over:
                break
            time.sleep(_LOOK_EVERY_S)
        sink.close(self._points.standings)
        return count, sink.place
