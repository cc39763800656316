"""Which instances a run has rented: a line for each change, in the run's directory.

It is written before anybody trains there and read by whoever counts the costs: a head that goes
on after a crash, the report. The last line of an instance holds; a line cut short is none.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import msgspec

from hadar_cli.core.measures.costs import Rental
from hadar_cli.typed import read_json


class RentalBook:
    """The file of one run; for all threads of a process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "rentals.jsonl"
        self._lock = threading.Lock()
        self._by_id = {rental.instance: rental for rental in read_rentals(directory)}

    @property
    def rentals(self) -> list[Rental]:
        with self._lock:
            return list(self._by_id.values())

    def __contains__(self, instance: str) -> bool:
        """Whether it is rented now."""
        rental = self._by_id.get(instance)
        return rental is not None and rental.until is None

    def begin(self, rental: Rental) -> None:
        self._write(rental)

    def note(self, instance: str, note: str) -> None:
        if rental := self._by_id.get(instance):
            self._write(replace(rental, note=note))

    def end(self, instance: str, at: float) -> None:
        """What has ended already stays as it was."""
        if instance in self:
            self._write(replace(self._by_id[instance], until=at))

    def _write(self, rental: Rental) -> None:
        with self._lock:
            self._by_id[rental.instance] = rental
            if not self._path.parent.is_dir():
                return  # the run is gone
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, b"\n" + msgspec.json.encode(rental) + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def read_rentals(directory: Path) -> list[Rental]:
    """In the order in which they began."""
    try:
        lines = (directory / "rentals.jsonl").read_bytes().splitlines()
    except OSError:
        return []
    found: dict[str, Rental] = {}
    for line in filter(None, lines):
        try:
            rental = read_json(line, Rental)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        found[rental.instance] = rental
    return list(found.values())
