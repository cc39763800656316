"""Code for the nodes, as tar archives that are named by their hash and always come out the same."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import hadar_cli
from hadar_cli.node.agent.bootstrap import unpack
from hadar_cli.project.data import DataSet, HashCache, Tell
from hadar_cli.project.selection import select


@dataclass(frozen=True, slots=True)
class Archive:
    digest: str
    path: Path


@functools.cache
def package() -> tuple[str, bytes]:
    """The part of hadar that nodes need: its hash and its bytes."""
    root = Path(hadar_cli.__file__).parent
    parts = [root / "__init__.py", *root.glob("node/**/*.py"), *root.glob("workloads/*.py")]
    buffer = io.BytesIO()
    _write(buffer, ((f"hadar_cli/{p.relative_to(root).as_posix()}", p) for p in sorted(parts)))
    return hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue()


class CodePacker:
    """Packs each code folder, and hashes each data set, once for all nodes of a run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._hashes = directory.parents[1] / ".hadar" / "hashes.sqlite3"  # for all runs
        self._lock, self._hashing = threading.Lock(), threading.Lock()
        self._sets: dict[Path, DataSet] = {}
        self._packed: dict[tuple[Path, tuple[Path, ...]], Archive] = {}

    def pack(self, source: Path, data: Sequence[Path] = ()) -> Archive:
        """A folder without its data and what its ignore files name, or a single file."""
        key = source, tuple(data)
        with self._lock:
            if key not in self._packed:
                self._packed[key] = self._pack(source, data)
            return self._packed[key]

    def unpack(self, source: Path, data: Sequence[Path] = ()) -> Path:
        """The same as a folder on this computer, for nodes that are here."""
        archive = self.pack(source, data)
        folder = archive.path.with_suffix("")
        with self._lock:
            if not folder.is_dir():
                with archive.path.open("rb") as file:
                    unpack(file, folder)
        return folder

    def data_set(self, source: Path, tell: Tell) -> DataSet:
        with self._hashing:
            if source not in self._sets:
                with HashCache(self._hashes) as cache:
                    self._sets[source] = cache.read(source, tell)
            return self._sets[source]

    def _pack(self, source: Path, data: Sequence[Path]) -> Archive:
        chosen = select(source, data)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        part = self._directory / "packing.part"
        with part.open("wb+") as file:
            _write(file, ((p.relative_to(chosen.root).as_posix(), p) for p in chosen.files))
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
