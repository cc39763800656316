"""Strict readers for the fields of a configuration file.

A reader takes a value and its `Spot` and gives back what the program uses, or raises an InputError
that names file, line, field and a fix. Readers combine: `record({"port": integer(1, 65535)})`.
msgspec, which reads journals, cannot stand in: its errors hold the field and one bound in an
English sentence, no fix and no names to choose from, and `steps:` without a value passes as None.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hadar_cli.errors import InputError, nearest

T = TypeVar("T")
Where = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_DEPTH = 12
# What schedulers and clouds call it, where that is not near hadar's word.
_ELSEWHERE = {
    "nodes": "count",
    "queue": "partition",
    "walltime": "time",
    "instance_type": "type",
    "launch_template": "template",
}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file that knows the line of each of its fields."""

    file: str
    root: Any
    lines: Mapping[Where, int]

    @property
    def top(self) -> Spot:
        return Spot(self, ())


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a document: where a value stands, for the error messages."""

    document: Document
    where: Where

    def inside(self, key: str | int) -> Spot:
        return Spot(self.document, (*self.where, key))

    @property
    def line(self) -> int | None:
        """The line of this field, or of the nearest one around it that is known."""
        known = (self.where[:length] for length in range(len(self.where), 0, -1))
        return next((line for part in known if (line := self.document.lines.get(part))), None)

    def error(self, message: str, fix: str | None = None) -> InputError:
        return InputError(
            message,
            file=self.document.file,
            line=self.line,
            field=field_path(self.where) or None,
            fix=fix,
        )


Reader = Callable[[Any, Spot], T]


def field_path(where: Where) -> str:
    """``("jobs", 2, "batch_size")`` as people write it: ``jobs[2].batch_size``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return "".join(parts).removeprefix(".")


def read_text(path: Path) -> str:
    """The file's text, refusing what no configuration file is: huge, binary or empty."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", file=file, fix="Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", file=file, fix="Check the path.") from None
    if len(content) > MAX_BYTES:
        raise InputError("is larger than 1 MiB", file=file, fix="Is it the right file?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        fix = "Save the file as UTF-8."
        raise InputError("is not UTF-8 text", file=file, line=line, fix=fix) from None
    if not text.strip():
        raise InputError("is empty", file=file, fix="Start from `hadar init` or an example.")
    return text


def unknown_name(word: str, known: Iterable[str]) -> str:
    """The fix for a name that is none of the ``known``."""
    names = list(known)
    same = _ELSEWHERE.get(word)
    close = same if same in names else nearest(word, names)
    return f"Did you mean '{close}'?" if close else f"Choose from: {', '.join(names)}."


def record(
    fields: Mapping[str, Reader[Any]], required: Sequence[str] = ()
) -> Reader[dict[str, Any]]:
    """A table with these fields and no others; gives those that are present."""

    def read(value: Any, spot: Spot) -> dict[str, Any]:
        table = _table(value, spot)
        for key in table:
            if key not in fields:
                raise spot.inside(key).error("there is no such field", unknown_name(key, fields))
        for key in required:
            if key not in table:
                raise spot.error(f"'{key}' is missing", f"Add '{key}'.")
        return {key: fields[key](item, spot.inside(key)) for key, item in table.items()}

    return read


def list_of(item: Reader[T]) -> Reader[tuple[T, ...]]:
    def read(value: Any, spot: Spot) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _misfit(value, "a list", spot, "Put it in brackets: [...].")
        return tuple(item(part, spot.inside(i)) for i, part in enumerate(value))

    return read


def table_of(item: Reader[T], key: re.Pattern[str]) -> Reader[dict[str, T]]:
    """A table whose keys the user chooses, as long as they match ``key``."""

    def read(value: Any, spot: Spot) -> dict[str, T]:
        table = _table(value, spot)
        for name in table:
            if not key.fullmatch(name):
                raise spot.inside(name).error("cannot be used as a name", "Use A-Z, 0-9 and _.")
        return {name: item(part, spot.inside(name)) for name, part in table.items()}

    return read


def text(
    pattern: re.Pattern[str] | None = None, rule: str = "", *, may_be_empty: bool = False
) -> Reader[str]:
    """Text without control characters; ``rule`` tells the user what ``pattern`` asks for."""

    def read(value: Any, spot: Spot) -> str:
        if not isinstance(value, str):
            quoted = f'If it is meant as text, put it in quotes: "{_plain(value)}".'
            raise _misfit(value, "text", spot, quoted if _is_scalar(value) else None)
        if not value.strip() and not may_be_empty:
            raise spot.error("is empty", "Give it a value, or remove the line.")
        if any(unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t" for char in value):
            raise spot.error("contains control characters", "Remove them.")
        if pattern and not pattern.fullmatch(value):
            raise spot.error(f"'{value}' does not fit", rule)
        return value

    return read


def choice(*options: str) -> Reader[str]:
    def read(value: Any, spot: Spot) -> str:
        word = text()(value, spot)
        if word not in options:
            raise spot.error(f"'{word}' is not one of its values", unknown_name(word, options))
        return word

    return read


def either(other: Reader[T], *words: str) -> Reader[T | str]:
    """One of these words, or what ``other`` reads."""

    def read(value: Any, spot: Spot) -> T | str:
        return choice(*words)(value, spot) if isinstance(value, str) else other(value, spot)

    return read


def flag(value: Any, spot: Spot) -> bool:
    if not isinstance(value, bool):
        raise _misfit(value, "true or false", spot)
    return value


def integer(low: int, high: int) -> Reader[int]:
    def read(value: Any, spot: Spot) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _misfit(value, "a whole number", spot)
        if not low <= value <= high:
            raise spot.error("is out of range", f"Give a whole number from {low} to {high}.")
        return value

    return read


def number_or_range(
    most: int, example: str, has_auto: bool = False
) -> Reader[int | tuple[int, int]]:
    """A whole number of at least 1, or a range of such: ``1..8``; ``auto`` is all of them."""

    def read(value: Any, spot: Spot) -> int | tuple[int, int]:
        if has_auto and value == "auto":
            return 1, most
        first, dots, last = value.partition("..") if isinstance(value, str) else ("", "", "")
        if not dots:
            return integer(1, most)(value, spot)
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= most):
            raise spot.error(f"{value!r} is no range of numbers", f"Write it as {example}.")
        return int(first), int(last)

    return read


def number(low: float, high: float, *, above: bool = False) -> Reader[float]:
    """A finite number in [low, high], or in (low, high] if ``above``."""

    def read(value: Any, spot: Spot) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _misfit(value, "a number", spot)
        # The comparison comes first: it also holds for integers too large for a float, and no NaN
        # passes it.
        if not low <= value <= high or (above and value == low):
            least = f"above {low:g}" if above else f"from {low:g}"
            raise spot.error("is out of range", f"Give a number {least} to {high:g}.")
        return float(value)

    return read


def scalar(value: Any, spot: Spot) -> str | bool | int | float:
    """Any single value, for fields whose meaning is known elsewhere."""
    if isinstance(value, str):
        return text()(value, spot)
    if not isinstance(value, bool | int | float):
        raise _misfit(value, "a single value", spot)
    if isinstance(value, float) and not math.isfinite(value):
        raise spot.error("is not a usable number", "Give a finite number.")
    return value


_DURATION = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s)?")


def duration_s(value: Any, spot: Spot) -> float:
    """Seconds, given as a number or like ``2h``, ``30m``, ``1h30m``."""
    if not isinstance(value, str):
        return number(0, 10**8, above=True)(value, spot)
    match = _DURATION.fullmatch(value.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = hours * 3600 + minutes * 60 + seconds
    if not total:
        raise spot.error(f"'{value}' is not a duration", "Give seconds, or like 2h, 30m, 1h30m.")
    return float(total)


def _table(value: Any, spot: Spot) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _misfit(value, "a table of fields", spot)
    return value


def _misfit(value: Any, wanted: str, spot: Spot, fix: str | None = None) -> InputError:
    if value is None:
        return spot.error("has no value", "Give it one, or remove the line.")
    return spot.error(f"should be {wanted}, not {_describe(value)}", fix or f"Give {wanted}.")


def _describe(value: Any) -> str:
    if isinstance(value, str):
        return f"the text '{value[:40]}'"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    return _plain(value)


def _is_scalar(value: Any) -> bool:
    return value is not None and not isinstance(value, list | dict)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"  # str() itself refuses the largest ones
    return str(value)


# What names and environments look like in both files.
NAME = text(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "Use up to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit.",
)
ENVIRONMENT = table_of(text(may_be_empty=True), re.compile(r"[A-Za-z_][A-Za-z0-9_]*"))


def one_or_more(value: Any, spot: Spot) -> tuple[str, ...]:
    return (text()(value, spot),) if isinstance(value, str) else list_of(text())(value, spot)


def _argument(value: Any, spot: Spot) -> str:
    """One word of a command line; numbers are words as they are written."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text(may_be_empty=True)(value, spot)
    return str(scalar(value, spot))


def arguments(value: Any, spot: Spot) -> tuple[str, ...]:
    """A list of words, or one text that is divided as a shell would."""
    if not isinstance(value, str):
        return list_of(_argument)(value, spot)
    try:
        return tuple(shlex.split(text(may_be_empty=True)(value, spot)))
    except ValueError as error:
        raise spot.error(f"cannot be divided into words: {error}", "Close the quotes.") from None
