"""Data sets by their contents: sent once to a node, whatever becomes of the code."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.errors import InputError

Tell = Callable[[int, int], None]  # bytes done, of how many
_CHUNK = 1 << 20
_MOST_FILES = 1_000_000
_RACY_S = 2.0  # a file changed so lately may change again under the same time stamp
_PACK_BYTES = 64 << 20
ALONE_BYTES = 8 << 20  # files from here on travel alone, and resume in the middle


@dataclass(frozen=True, slots=True)
class DataFile:
    path: Path
    name: str  # within its set; empty for a set that is one file
    bytes: int


@dataclass(frozen=True)
class DataSet:
    """What a path named in ``data`` holds; ``hashes`` are its files', in order."""

    source: Path
    files: tuple[DataFile, ...]
    hashes: tuple[str, ...]

    @functools.cached_property
    def manifest(self) -> bytes:
        rows = [
            (sha, file.bytes, file.name) for file, sha in zip(self.files, self.hashes, strict=True)
        ]
        return json.dumps(rows, separators=(",", ":")).encode()

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()


def place_of(source: Path, project: Path | None) -> str:
    """Where in the working directory a script finds this data: as by hand, or by its name."""
    if project and source.is_relative_to(project) and source != project:
        return source.relative_to(project).as_posix()
    return source.name


def list_files(source: Path) -> tuple[DataFile, ...]:
    """The files of a set, sorted; raises InputError for what cannot be read or sent."""
    try:
        if not source.is_dir():
            return (DataFile(source, "", source.stat().st_size),)
        return tuple(_below(source))
    except OSError as error:
        raise InputError(
            f"{error.filename or source}: {error.strerror}", field="data", fix="make it readable"
        ) from error


def _below(source: Path) -> Iterator[DataFile]:
    count, seen = 0, {source.resolve()}
    for parent, folders, names in os.walk(source, followlinks=True, onerror=_raise):
        folders.sort()
        for folder in [f for f in folders if (Path(parent) / f).is_symlink()]:
            if (there := (Path(parent) / folder).resolve()) in seen:
                folders.remove(folder)  # a circle
            seen.add(there)
        for name in sorted(names):
            path = Path(parent) / name
            if not path.is_file():
                raise _unfit(path, "is no plain file", "leave it out of the folder")
            inside = path.relative_to(source).as_posix()
            if not inside.isprintable():
                raise _unfit(path, "has a name that cannot be shown", "rename it")
            count += 1
            if count > _MOST_FILES:
                fix = "put them into archives, which also read faster"
                raise _unfit(source, f"holds more than {_MOST_FILES:,} files", fix)
            yield DataFile(path, inside, path.stat().st_size)


def _raise(error: OSError) -> None:
    raise error


def _unfit(path: Path, problem: str, fix: str) -> InputError:
    return InputError(f"{str(path)!r} {problem}", field="data", fix=fix)


class HashCache:
    """Files' hashes, kept by size and time of change: gigabytes are read once, not every run."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=30.0)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS hashes"
            " (path TEXT PRIMARY KEY, bytes INTEGER, mtime_ns INTEGER, sha256 TEXT)"
        )

    def __enter__(self) -> HashCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self._database.commit()
        self._database.close()

    def read(self, source: Path, tell: Tell | None = None) -> DataSet:
        """The set, each of its files hashed or known; ``tell`` hears how far it is read."""
        files = list_files(source)
        total, done, hashes = sum(file.bytes for file in files), 0, list[str]()
        for file in files:
            known = self._known(file)
            hashes.append(known or self._hash(file))
            done += file.bytes
            if tell and not known:
                tell(done, total)
        return DataSet(source, files, tuple(hashes))

    def _known(self, file: DataFile) -> str | None:
        facts = file.path.stat()
        found = self._database.execute(
            "SELECT sha256 FROM hashes WHERE path = ? AND bytes = ? AND mtime_ns = ?",
            (str(file.path.resolve()), facts.st_size, facts.st_mtime_ns),
        ).fetchone()
        return str(found[0]) if found else None

    def _hash(self, file: DataFile) -> str:
        facts = file.path.stat()
        digest = hashlib.sha256()
        with file.path.open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
        if time.time() - facts.st_mtime > _RACY_S:
            key = str(file.path.resolve())
            row = (key, facts.st_size, facts.st_mtime_ns, digest.hexdigest())
            self._database.execute("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)", row)
        return digest.hexdigest()


def next_pack(held: DataSet, missing: Sequence[int], out: Path) -> tuple[str, int]:
    """Writes the first of the missing small files as one archive; its hash and how many it took.

    The same files make the same archive: one that was cut off is gone on from.
    """
    size = taken = 0
    with tarfile.open(out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for number in missing:
            file = held.files[number]
            if file.bytes >= ALONE_BYTES or (taken and size + file.bytes > _PACK_BYTES):
                break
            entry = tarfile.TarInfo(held.hashes[number])
            with file.path.open("rb") as content:
                entry.size = file.bytes
                tar.addfile(entry, content)
            size, taken = size + file.bytes, taken + 1
    digest = hashlib.sha256()
    with out.open("rb") as archive:
        while chunk := archive.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest(), taken
