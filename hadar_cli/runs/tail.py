"""Reads a journal as it grows, each line once."""

from __future__ import annotations

from pathlib import Path

from hadar_cli.core.events import Event
from hadar_cli.errors import StorageError
from hadar_cli.runs.store import decode


class JournalTail:
    """What was added to a journal since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._lines = path, 0, 0

    def news(self) -> list[Event]:
        """Whole events only. A last line that is no event yet is left for the next look: whoever
        resumes the run replaces it."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        found: list[Event] = []
        for number, line in enumerate(lines, start=1):
            try:
                found.append(decode(line))
            except (ValueError, KeyError, RecursionError) as error:
                if number == len(lines):
                    break
                place = f"{self._path}:{self._lines + 1}"
                raise StorageError(f"{place}: damaged record ({error})") from error
            self._offset += len(line) + 1
            self._lines += 1
        return found
