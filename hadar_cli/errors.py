"""Everything hadar raises on purpose.

    HadarError                 exit 1   a bug, or something nobody foresaw
    ├── InputError             exit 2   a file, field or name the user can mend
    ├── UnfinishedError        exit 3   stopped early; `hadar resume` goes on
    │   └── PausedError                 only jobs are left that somebody paused
    ├── RefusedError           exit 4   refused for security
    ├── RunLockedError         exit 5   another head holds the run
    └── StorageError           exit 6   the head's disk failed or holds damaged state

A lost node or a failed copy is none of these: it is an event in the run's results.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HadarError(Exception):
    """Root of the tree. ``fix`` tells the user what to do next."""

    exit_code = 1

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class InputError(HadarError):
    """Bad input, with its place: file, line and field where they are known."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, fix)
        self.file, self.line, self.field = file, line, field

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        field = f"{self.field}: " if self.field else ""
        return f"{place}: {field}{self.message}" if place else f"{field}{self.message}"


class UnfinishedError(HadarError):
    exit_code = 3


class PausedError(UnfinishedError): ...


class RefusedError(HadarError):
    exit_code = 4


class RunLockedError(HadarError):
    exit_code = 5


class StorageError(HadarError):
    exit_code = 6


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``word``, for "did you mean" messages."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown(
    problem: str,
    word: str,
    known: Iterable[str],
    *,
    field: str | None = None,
    fix: str | None = None,
) -> InputError:
    """The error about a ``word`` that is none of the ``known`` names: it tells the nearest."""
    names = list(known)
    hint = nearest(word, names)
    problem += f"; did you mean {hint!r}?" if hint else ""
    return InputError(problem, field=field, fix=fix or f"choose from: {', '.join(names)}")
