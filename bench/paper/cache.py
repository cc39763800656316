"""Measurements on disk as soon as they are made, so that none is made twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class NotMeasured(Exception):
    """Asked for something that is not in the cache, when nothing was to be measured."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One measurement, and what it was made with."""

    commit: str
    when: str
    value: Any


class Cache:
    """The measurements of one section by key. ``commit`` and ``when`` mark what is added."""

    def __init__(self, path: Path, commit: str, when: Callable[[], str]) -> None:
        self._path, self._commit, self._when = path, commit, when
        self.may_measure = True
        self.again = False
        self._asked: set[str] = set()
        self._kept: dict[str, Kept] = {}
        if path.exists():
            self._kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Kept])

    def get(self, key: str, kind: type[T], measure: Callable[[], T]) -> T:
        """What is kept under the key; measured now if there is nothing, or all is asked again."""
        is_new = self.again and key not in self._asked
        if key not in self._kept or is_new:
            if not self.may_measure:
                raise NotMeasured(key)
            print(f"  {key}", flush=True)
            self._kept[key] = Kept(self._commit, self._when(), msgspec.to_builtins(measure()))
            self._save()
        self._asked.add(key)
        return msgspec.convert(self._kept[key].value, kind)

    @property
    def origin(self) -> str:
        """Commits and times of what was asked for, if anything was."""
        used = [self._kept[key] for key in self._asked]
        commits = sorted({one.commit for one in used})
        whens = sorted(one.when for one in used)
        if not whens:
            return ""
        span = whens[0] if whens[0] == whens[-1] else f"{whens[0]} to {whens[-1]}"
        return f"commit {', '.join(commits)}; {span}"

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        content = msgspec.json.format(msgspec.json.encode(self._kept), indent=0)
        part.write_bytes(content + b"\n")
        part.replace(self._path)
