"""Which files of a project folder travel to the nodes, and which are left out by what rule."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pathspec

from hadar_cli.errors import InputError

_IGNORE_FILES = (".gitignore", ".hadarignore")  # the later one has the last word
_NEVER = {".git", ".hg", ".svn", "__pycache__"}
# What no project's training reads, unless its .hadarignore says so.
_USUAL = (
    *(".venv/", "node_modules/", ".*_cache/", ".ipynb_checkpoints/", "*.egg-info/"),
    *("/out/", ".hadar/", "mlruns/"),
)
_OWN_RULE = "hadar's own rule"
_LARGEST = 512 << 20
_MOST_FILES = 50_000
_MOST_COUNTED = 20_000  # files of a folder that stays behind


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file, or a whole folder, that stays behind."""

    path: Path
    bytes: int
    files: int
    rule: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of a folder that travel, sorted, and what stays behind."""

    root: Path
    files: tuple[Path, ...]
    bytes: int
    left_out: tuple[LeftOut, ...] = ()
    data: tuple[Path, ...] = ()  # which travels by a way of its own

    def why_not(self, path: Path) -> str | None:
        """Why the script would not find this file on a node; None where it would."""
        path = Path(os.path.abspath(path))  # noqa: PTH100 - a link travels under its own name
        if not path.is_relative_to(self.root):
            covered = any(path.is_relative_to(data) for data in self.data)
            return None if covered else f"it is outside of {self.root}"
        if path in self.files or any(path.is_relative_to(data) for data in self.data):
            return None
        for one in self.left_out:
            if path.is_relative_to(one.path):
                return f"it is left out by {one.rule}"
        return "it is not there when the project is packed"


def select(source: Path, data: Sequence[Path] = ()) -> Selection:
    """A folder without what its ignore files name, or a single file.

    Raises InputError for a folder that is too large to be code, or that cannot be read.
    """
    if not source.is_dir():
        return Selection(source.parent, (source,), source.stat().st_size)
    walk = _Walk(frozenset(data))
    try:
        walk.look_into(source, [(source, _OWN_RULE, _spec(_USUAL))])
    except OSError as error:
        raise InputError(
            f"{error.filename}: {error.strerror}",
            field="sync",
            fix="make it readable, or name it in the project's .hadarignore",
        ) from error
    if walk.bytes > _LARGEST or len(walk.files) > _MOST_FILES:
        raise _too_large(source, walk)
    return Selection(source, tuple(walk.files), walk.bytes, tuple(walk.left_out), tuple(data))


def rule_that_keeps(source: Path, path: Path) -> tuple[str, str] | None:
    """The rule by which a file of a project folder stays behind, and what it is about: the file, or
    a folder that it lies in. None where it travels."""
    rules: _Rules = [(source, _OWN_RULE, _spec(_USUAL))]
    place = source
    for part in path.relative_to(source).parts:
        rules += _rules_of(place)
        place = place / part
        name = f"{place.relative_to(source)}{'/' if place.is_dir() else ''}"
        if place.name in _NEVER:
            return _OWN_RULE, name
        if rule := _rule_against(place, place.is_dir(), rules):
            return rule, name
    return None


def _too_large(source: Path, walk: _Walk) -> InputError:
    if walk.bytes > _LARGEST:
        large = sorted(walk.files, key=lambda path: -path.stat().st_size)[:3]
        named = [f"{p.relative_to(source)} ({p.stat().st_size / 1e6:,.0f} MB)" for p in large]
    else:
        full = Counter(path.parent for path in walk.files).most_common(3)
        named = [f"{p.relative_to(source)}/ ({count:,} files)" for p, count in full]
    is_huge = walk.bytes >= 1e9
    size = f"{walk.bytes / 1e9:.1f} GB" if is_huge else f"{walk.bytes / 1e6:.0f} MB"
    return InputError(
        f"the project folder {source} holds {size} in {len(walk.files):,} files or more; "
        f"the largest: {', '.join(named)}",
        field="sync",
        fix="list data under 'data:', which is sent once, and name what nodes do not need in "
        ".hadarignore; or give a smaller folder as 'sync'",
    )


_Rules = list[tuple[Path, str, pathspec.GitIgnoreSpec]]


@dataclass(slots=True)
class _Walk:
    data: frozenset[Path]
    files: list[Path] = field(default_factory=list)
    bytes: int = 0
    left_out: list[LeftOut] = field(default_factory=list)

    def look_into(self, folder: Path, rules: _Rules) -> None:
        rules = [*rules, *_rules_of(folder)]
        for path in sorted(folder.iterdir()):
            if self.bytes > _LARGEST or len(self.files) > _MOST_FILES:
                return  # it is refused, however much more there is
            if path.name in _NEVER or path in self.data:
                continue
            is_folder = path.is_dir()
            if rule := _rule_against(path, is_folder, rules):
                self._leave_out(path, rule)
            elif is_folder and not path.is_symlink():
                self.look_into(path, rules)
            elif path.is_file():
                self.files.append(path)
                self.bytes += path.stat().st_size
            else:
                kind = "being a link to a folder" if is_folder else "being no plain file"
                self._leave_out(path, kind)

    def _leave_out(self, path: Path, rule: str) -> None:
        size, files = _size(path, self.data)
        if files:  # else all of it is data, which goes by a way of its own
            self.left_out.append(LeftOut(path, size, files, rule))


def _rule_against(path: Path, is_folder: bool, rules: _Rules) -> str | None:
    """The rule that keeps the path behind: a file's name, or what the folder is."""
    if is_folder and (path / "pyvenv.cfg").exists():
        return "being a virtual environment"
    if is_folder and (path / "journal.jsonl").exists() and (path / "run.json").exists():
        return "being a run of hadar"
    against = None
    for folder, rule, spec in rules:
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            against = rule if verdict else None
    return against


def _rules_of(folder: Path) -> Iterator[tuple[Path, str, pathspec.GitIgnoreSpec]]:
    for name in _IGNORE_FILES:
        if (folder / name).is_file():
            yield folder, name, _spec((folder / name).read_text(errors="replace").splitlines())


def _spec(lines: Sequence[str]) -> pathspec.GitIgnoreSpec:
    return pathspec.GitIgnoreSpec.from_lines(lines)


def _size(path: Path, data: frozenset[Path]) -> tuple[int, int]:
    """Bytes and files of what stays behind; of a very large folder, as far as was counted."""
    if path.is_symlink() or not path.is_dir():
        return (path.stat().st_size if path.is_file() else path.lstat().st_size), 1
    size = count = 0
    for parent, folders, names in os.walk(path):  # which passes over what cannot be read
        here = Path(parent)
        folders[:] = [name for name in folders if here / name not in data]
        sizes = [(here / name).lstat().st_size for name in names if here / name not in data]
        size, count = size + sum(sizes), count + len(sizes)
        if count > _MOST_COUNTED:
            break
    return size, count
