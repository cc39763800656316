"""Breaks documents where it hurts: in their structure, so that they get past the first parser."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

Document: TypeAlias = Any  # what JSON, TOML and YAML have in common: dicts, lists and plain values

NUMBERS: list[Any] = [0, 1, -1, 2, 7, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30]
NUMBERS += [10**400, 0.0, -0.0, 0.5, 1e-320, 1e16, 1e308, -1e308, math.nan, math.inf, -math.inf]
WORDS = ["", " ", "x", "x" * 300, "nan", "1e999", "1_0", "²", "١", "0x10", "true", "null", "2h"]
HOSTILE = ["\0", "\x1b[31mred\x1b]0;title\x07", "\u202e", "\ud800", "\x85", "a\nb", "\r", "\ufeff"]
HOSTILE += ["../../x", "/etc/passwd", "~/x", "-oProxyCommand=x", "$(id)", "a\0b", "\x7f"]
HOSTILE += ["<script>alert(1)</script>", "'\"><b>", "[red]x[/red]", "%s%n{0}", "😀", "e\u0301" * 40]
ODD = ["\0", "\n", "\t", "\x1b", "\u202e", "\ud800", '"', "'", "\\", "/", "..", "<", "&", "é", "-"]


def _deep(levels: int) -> Document:
    value: Document = 1
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


CONTAINERS: list[Document] = [[], {}, [[]], {"": 1}, [1, 2], [None], {"x": {"y": 1}}, [[0, 1]] * 30]
CONTAINERS += [_deep(14), _deep(300)]
PLAIN: list[Any] = [None, True, False, *NUMBERS, *WORDS]


def any_value(dice: Random) -> Document:
    """Something that rarely belongs where it is put."""
    kind = dice.random()
    if kind < 0.6:
        return dice.choice(PLAIN)
    return dice.choice(HOSTILE if kind < 0.8 else CONTAINERS)


class Mutator:
    """Makes broken documents of sound ones; ``keys`` are names that the format knows."""

    def __init__(self, corpus: Sequence[Document], keys: Sequence[str] = ()) -> None:
        self._corpus = list(corpus)
        found = dict.fromkeys(key for document in corpus for key in _keys(document))
        self._keys = [*dict.fromkeys((*keys, *found))] or ["x"]
        self._parts = [part for document in corpus for part in _parts(document)]

    def make(self, dice: Random) -> Document:
        """A sound document with one to four things wrong with it, sometimes none."""
        document = dice.choice(self._corpus)
        for _ in range(dice.choice((0, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4))):
            document = self._somewhere(document, dice)
        return document

    def _somewhere(self, value: Document, dice: Random) -> Document:
        if isinstance(value, dict) and value and dice.random() < 0.85:
            key = dice.choice(list(value))
            return {**value, key: self._somewhere(value[key], dice)}
        if isinstance(value, list) and value and dice.random() < 0.85:
            spot = dice.randrange(len(value))
            return [*value[:spot], self._somewhere(value[spot], dice), *value[spot + 1 :]]
        return self._here(value, dice)

    def _here(self, value: Document, dice: Random) -> Document:
        kind = dice.random()
        if kind < 0.25:
            return any_value(dice)
        if kind < 0.4:
            return dice.choice(self._parts)
        if kind < 0.45:
            return dice.choice(([value], {dice.choice(self._keys): value}, [value, value]))
        for form, change in self._changes():
            if isinstance(value, form) and not isinstance(value, bool):
                return change(value, dice)
        return any_value(dice)

    def _changes(self) -> tuple[tuple[type, Callable[[Any, Random], Document]], ...]:
        return (
            (dict, self._change_table),
            (list, self._change_list),
            (str, _change_text),
            (int, _change_number),
            (float, _change_number),
        )

    def _change_table(self, table: dict[str, Any], dice: Random) -> Document:
        changed = dict(table)
        victim = dice.choice(list(table)) if table else None
        kind = dice.random()
        if kind < 0.35 and victim is not None:
            del changed[victim]
        elif kind < 0.5 and victim is not None:
            changed[_change_text(victim, dice)] = changed.pop(victim)
        else:
            key = dice.choice(self._keys) if kind < 0.9 else dice.choice(HOSTILE + WORDS)
            changed[key] = dice.choice(self._parts) if dice.random() < 0.5 else any_value(dice)
        return changed

    def _change_list(self, items: list[Any], dice: Random) -> Document:
        changed = list(items)
        kind = dice.random()
        if kind < 0.3 and changed:
            del changed[dice.randrange(len(changed))]
        elif kind < 0.6 and changed:
            changed.insert(dice.randrange(len(changed)), dice.choice(changed))
        elif kind < 0.75:
            dice.shuffle(changed)
        elif kind < 0.8:
            changed *= 20
        else:
            changed.insert(dice.randint(0, len(changed)), dice.choice(self._parts))
        return changed


def _change_text(word: str, dice: Random) -> str:
    spot = dice.randint(0, len(word))
    kind = dice.random()
    if kind < 0.5:
        return word[:spot] + dice.choice(ODD) + word[spot:]
    if kind < 0.7:
        return word[:spot]
    if kind < 0.8:
        return word.swapcase()
    return word * 2 if kind < 0.9 else dice.choice(HOSTILE) + word


def _change_number(number: float, dice: Random) -> Document:
    kind = dice.randrange(9)
    try:
        match kind:
            case 0 | 1 | 2:
                return number + kind - 1 or -number
            case 3 | 4:
                return number * 2 if kind == 3 else number * 10**9
            case 5 | 6:
                return float(number) if kind == 5 else number / 3
            case 7:
                return int(number)
    except (OverflowError, ValueError):
        pass
    return str(number)


def _keys(document: Document) -> list[str]:
    if isinstance(document, dict):
        return [key for name, part in document.items() for key in (name, *_keys(part))]
    return [key for part in document for key in _keys(part)] if isinstance(document, list) else []


def _parts(document: Document) -> list[Document]:
    below: list[Document] = []
    if isinstance(document, dict | list):
        inner = document.values() if isinstance(document, dict) else document
        below = [part for item in inner for part in _parts(item)]
    return [document, *below]


def break_bytes(content: bytes, dice: Random) -> bytes:
    """The same bytes with a few of them changed, cut out, or put in."""
    broken = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        spot = dice.randint(0, len(broken))
        kind = dice.random()
        if kind < 0.4 and spot < len(broken):
            broken[spot] ^= 1 << dice.randrange(8)
        elif kind < 0.6:
            del broken[spot : spot + dice.randint(1, 20)]
        elif kind < 0.8:
            broken[spot:spot] = dice.randbytes(dice.randint(1, 8))
        else:
            broken[spot:spot] = dice.choice(ODD).encode(errors="surrogatepass")
    return bytes(broken)


def to_json(document: Document) -> bytes:
    return json.dumps(document).encode()


def to_toml(document: Document) -> str:
    """TOML of a document whose top is a table; what TOML cannot say is said as nearly as it can."""
    if not isinstance(document, dict):
        return f"x = {_toml_value(document)}\n"
    lines = []
    tables = []
    for key, value in document.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            tables += [f"[[{_toml_text(key)}]]\n{_toml_fields(item)}" for item in value]
        elif isinstance(value, dict):
            tables.append(f"[{_toml_text(key)}]\n{_toml_fields(value)}")
        else:
            lines.append(f"{_toml_text(key)} = {_toml_value(value)}")
    return "\n".join((*lines, *tables)) + "\n"


def _toml_fields(table: dict[str, Any]) -> str:
    return "\n".join(f"{_toml_text(key)} = {_toml_value(value)}" for key, value in table.items())


def _toml_value(value: Document) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{_toml_text(k)} = {_toml_value(v)}" for k, v in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        return _toml_text(value)
    if isinstance(value, float):
        return repr(value)  # nan and inf are TOML's words too
    return json.dumps(value) if value is not None else '""'


def _toml_text(word: str) -> str:
    plain = word.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f").replace("\\/", "/")
