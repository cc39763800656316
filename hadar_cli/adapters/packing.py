"""Code for the nodes, as tar archives that are named by their hash and always come out the same."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pathspec

import hadar_cli
from hadar_cli.errors import InputError

_IGNORE_FILES = (".gitignore", ".hadarignore")  # the later one has the last word
_NEVER = {".git", ".hg", ".svn", "__pycache__"}
_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Archive:
    digest: str
    path: Path


@functools.cache
def package() -> tuple[str, bytes]:
    """The part of hadar that nodes need: its hash and its bytes."""
    root = Path(hadar_cli.__file__).parent
    parts = [root / "__init__.py", *root.glob("node/*.py"), *root.glob("workloads/*.py")]
    buffer = io.BytesIO()
    _write(buffer, ((f"hadar_cli/{p.relative_to(root).as_posix()}", p) for p in sorted(parts)))
    return hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue()


class CodePacker:
    """Packs each code folder once, for all nodes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._packed: dict[Path, Archive] = {}

    def pack(self, source: Path) -> Archive:
        """A folder without what its ignore files name, or a single file."""
        with self._lock:
            if source not in self._packed:
                self._packed[source] = self._pack(source)
            return self._packed[source]

    def _pack(self, source: Path) -> Archive:
        files = list(_files(source, [])) if source.is_dir() else [source]
        if (size := sum(path.stat().st_size for path in files)) > _LARGEST:
            raise InputError(
                f"the code folder {source} holds {size / 1e9:.1f} GB",
                field="sync",
                fix="name what the nodes do not need in its .hadarignore",
            )
        root = source if source.is_dir() else source.parent
        self._directory.mkdir(mode=0o700, exist_ok=True)
        part = self._directory / "packing.part"
        with part.open("wb+") as file:
            _write(file, ((path.relative_to(root).as_posix(), path) for path in sorted(files)))
            file.seek(0)
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        path = self._directory / f"{digest.hexdigest()}.tar"
        part.replace(path)
        return Archive(digest.hexdigest(), path)


def _write(file: io.BufferedRandom | io.BytesIO, members: Iterable[tuple[str, Path]]) -> None:
    """Names, contents and the executable bit: nothing that changes from one head to the next."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in members:
            with path.open("rb") as content:
                entry = tarfile.TarInfo(name)
                entry.size = os.fstat(content.fileno()).st_size
                entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
                tar.addfile(entry, content)


def _files(folder: Path, rules: list[tuple[Path, pathspec.GitIgnoreSpec]]) -> Iterator[Path]:
    """The folder's files that no ignore file names; links to folders are left out."""
    rules = [*rules, *_rules_of(folder)]
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir()
        if path.name in _NEVER or _is_ignored(path, is_folder, rules):
            continue
        if is_folder and not path.is_symlink():
            yield from _files(path, rules)
        elif path.is_file():
            yield path


def _rules_of(folder: Path) -> Iterator[tuple[Path, pathspec.GitIgnoreSpec]]:
    for name in _IGNORE_FILES:
        if (folder / name).is_file():
            lines = (folder / name).read_text(errors="replace").splitlines()
            yield folder, pathspec.GitIgnoreSpec.from_lines(lines)


def _is_ignored(
    path: Path, is_folder: bool, rules: list[tuple[Path, pathspec.GitIgnoreSpec]]
) -> bool:
    ignored = False
    for folder, spec in rules:
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        ignored = ignored if verdict is None else verdict
    return ignored
