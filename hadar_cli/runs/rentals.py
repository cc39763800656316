"""Which instances a run has rented: a line for each change, in the run's directory.

It is written before an instance is asked for and read by whoever counts the costs: a head that goes
on after a crash, the report. The last line of a rental holds; a line cut short is none.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hadar_cli.core.measures.costs import Rental
from hadar_cli.typed import read_json

_NAME = "rentals.jsonl"


class RentalLog:
    """The file of one run; for all threads of a process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._lock = threading.RLock()
        self._by_key = {rental.key: rental for rental in _read(self._path)}
        try:
            self.kept_at: float | None = self._path.stat().st_mtime  # by an earlier head
        except OSError:
            self.kept_at = None

    @property
    def rentals(self) -> list[Rental]:
        with self._lock:
            return _granted(self._by_key.values())

    @property
    def going(self) -> list[Rental]:
        """Those that cost now, with what was asked for and may have been given."""
        return [rental for rental in self.rentals if rental.until is None]

    def __contains__(self, instance: str) -> bool:
        """Whether it was ever rented."""
        return any(rental.instance == instance for rental in self.rentals)

    def begin(self, rental: Rental) -> None:
        self._write(rental)

    def grant(self, ask: str, instance: str, kind: str) -> None:
        """What was asked for is this instance."""
        with self._lock:
            if (rental := self._by_key.get(ask)) and not rental.instance:
                self._write(replace(rental, instance=instance, type=kind or rental.type))

    def refuse(self, ask: str) -> None:
        """What was asked for was never given."""
        with self._lock:
            if (rental := self._by_key.get(ask)) and rental.until is None:
                self._write(replace(rental, instance="", until=rental.since))

    def backdate(self, instance: str, since: float) -> None:
        self._change(instance, since=since)

    def note(self, instance: str, note: str) -> None:
        self._change(instance, note=note)

    def end(self, rental: Rental, at: float, note: str = "") -> None:
        """What has ended already stays as it was."""
        with self._lock:
            now = self._by_key.get(rental.key)
            if now and now.until is None:
                self._write(replace(now, until=max(at, now.since), note=note or now.note))

    def end_instance(self, instance: str, at: float) -> None:
        for rental in self.going:
            if rental.instance == instance:
                self.end(rental, at)

    def _change(self, instance: str, **fields: Any) -> None:
        with self._lock:
            for rental in self.going:
                if rental.instance == instance:
                    self._write(replace(rental, **fields))

    def keep(self) -> None:
        """A head is there, and counts: should it die, the next one sees until when."""
        with suppress(OSError):
            os.utime(self._path)

    def _write(self, rental: Rental) -> None:
        with self._lock:
            if self._path.parent.is_dir():  # else the run is gone
                descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(descriptor, b"\n" + msgspec.json.encode(rental) + b"\n")
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            self._by_key[rental.key] = rental


def read_rentals(directory: Path) -> list[Rental]:
    """In the order in which they began."""
    return _granted(_read(directory / _NAME))


def _read(path: Path) -> list[Rental]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    found: dict[str, Rental] = {}
    for line in filter(None, lines):
        try:
            rental = read_json(line, Rental)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        found[rental.key] = rental
    return list(found.values())


def _granted(rentals: Iterable[Rental]) -> list[Rental]:
    return [rental for rental in rentals if rental.instance or rental.until != rental.since]
