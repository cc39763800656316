"""TOML with the lines of its fields, which tomli does not keep."""

from __future__ import annotations

import re
from typing import Any

import tomli

from hadar_cli.config.fields import MAX_DEPTH, Document, Where
from hadar_cli.errors import InputError

_WORD = r"(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')"
_NAME = rf"{_WORD}(?:\s*\.\s*{_WORD})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_NAME})\s*\]\]?\s*(?:#.*)?")
_FIELD = re.compile(rf"\s*({_NAME})\s*=")
_PLACE = re.compile(r" \(at line (\d+), column \d+\)| \(at end of document\)")


def parse_toml(text: str, file: str) -> Document:
    """The document in ``text``, with the line of every field that starts one."""
    try:
        root = tomli.loads(text)
    except RecursionError:
        raise _too_deep(file) from None
    except ValueError as error:  # TOMLDecodeError, or an integer too long for Python
        place = _PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        message = _PLACE.sub("", str(error)) if place else "holds a number that is too long"
        known_line = line if place else None
        fix = _about_headers(text.split("\n")[line - 1]) or "See https://toml.io"
        raise InputError(message, file=file, line=known_line, fix=fix) from None
    if _depth(root) > MAX_DEPTH:
        raise _too_deep(file)
    return Document(file, root, _find_lines(text))


def _about_headers(line: str) -> str | None:
    """What goes wrong with a header is mostly a second block of one name."""
    if header := _HEADER.fullmatch(line.rstrip("\r")):
        name = header[2]
        return f"Where there are several, write each of them with two brackets: [[{name}]]."
    return None


def _find_lines(text: str) -> dict[Where, int]:
    """Where headers and fields stand, by the look of the lines.

    A multi-line string that looks like TOML can fool it; only the line in a message would be off.
    """
    lines: dict[Where, int] = {}
    arrays: dict[Where, int] = {}
    table: Where = ()
    for number, content in enumerate(text.split("\n"), start=1):
        if header := _HEADER.fullmatch(content.rstrip("\r")):
            table = _within(arrays, _split(header[2]))
            if header[1] == "[[":
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            place = table
        elif field := _FIELD.match(content):
            place = (*table, *_split(field[1]))
        else:
            continue
        for length in range(1, len(place) + 1):
            lines.setdefault(place[:length], number)
    return lines


def _within(arrays: dict[Where, int], path: Where) -> Where:
    """The path of ``[node.env]``: that of the latest ``[[node]]``, so ``node[3].env``."""
    where: Where = ()
    for i, word in enumerate(path):
        where = (*where, word)
        if where in arrays and i < len(path) - 1:
            where = (*where, arrays[where])
    return where


def _split(name: str) -> Where:
    return tuple(word.strip("\"'") for word in re.findall(_WORD, name))


def _depth(root: Any) -> int:
    depth, level = 0, [root]
    while level and depth <= MAX_DEPTH:
        depth += 1
        tables = (list(part.values()) if isinstance(part, dict) else part for part in level)
        items = (item for table in tables for item in table)
        level = [item for item in items if isinstance(item, dict | list)]
    return depth


def _too_deep(file: str) -> InputError:
    return InputError("is nested too deeply", file=file, fix="See the comments in nodes.toml.")
