"""The run's directory on the head: journal, checkpoints by hash, the lock against a second head.

runs/<id>/run.json       the mix and the inventory as they were read
          journal.jsonl  one event a line: crc and JSON, on the disk before it counts
          objects/       checkpoints, each named by its SHA-256
          models/        every finished job's weights, ready to load
          nodes/         what local devices work in
          lock           held by the head that drives the run
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hadar_cli.app.forecast import Forecast
from hadar_cli.core.events import EVENTS, Event
from hadar_cli.core.model import Mix, Node
from hadar_cli.errors import InputError, RunLockedError, StorageError, nearest
from hadar_cli.node.plain_files import open_plain
from hadar_cli.node.processes import start_time

_CHUNK = 1 << 20
_RECORD = msgspec.json.Decoder(tuple[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run was started with; written once, before anything happens."""

    id: str
    mix: Mix
    nodes: tuple[Node, ...]
    started_at: str
    hadar_version: str
    forecast: Forecast | None = None
    token: str = ""  # by which nodes tell runs of the same name apart


class RunStore:
    """One run's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal_path = directory / "journal.jsonl"
        self._objects = directory / "objects"

    @classmethod
    def create(cls, runs: Path, facts: RunFacts) -> RunStore:
        os.umask(0o077)
        store = cls(runs / facts.id)
        with _storage_errors(store.directory):
            store._objects.mkdir(parents=True, exist_ok=True)
            (store.directory / "models").mkdir(exist_ok=True)
            _write_durably(store.directory / "run.json", msgspec.json.encode(facts))
        return store

    @property
    def facts(self) -> RunFacts:
        path = self.directory / "run.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=RunFacts)
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{path}: {error}", fix="the run's directory is damaged") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for this head, whose pid is in the lock; another head is refused."""
        os.umask(0o077)  # what the head leaves from now on is its user's alone
        with _storage_errors(self.directory), (self.directory / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunLockedError(
                    f"another hadar drives run {self.directory.name}",
                    fix=f"wait for it to end, or stop it: hadar cancel {self.directory.name}",
                ) from None
            file.truncate(0)
            file.write(json.dumps([os.getpid(), start_time(os.getpid())]))
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def holder(self) -> int | None:
        """The pid of the head that drives the run now, if it lives on this computer."""
        try:
            pid, started = json.loads((self.directory / "lock").read_text())
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(pid) == started else None

    # -- checkpoints -------------------------------------------------------------------------

    def object_path(self, digest: str) -> Path:
        return self._objects / digest

    def scratch_path(self, name: str) -> Path:
        """A place for a file under way; ``keep`` turns it into an object."""
        return self._objects / f"{name}.part"

    def take_in(self, source: Path) -> str:
        """Copies a plain file in, hashed on the way; raises ValueError where it is none.

        A file that grows all the while is taken as long as it was at first.
        """
        scratch = self.scratch_path(f"in-{os.getpid()}-{source.parent.name}")
        digest = hashlib.sha256()
        try:
            reader = open_plain(source)
        except OSError as error:
            raise ValueError(f"{source}: {error.strerror}") from error
        with reader, _storage_errors(self.directory):
            left = os.fstat(reader.fileno()).st_size
            if left > shutil.disk_usage(self.directory).free:
                raise ValueError(f"{source} holds {left} bytes, more than there is room for")
            with scratch.open("wb") as writer:
                while chunk := reader.read(min(_CHUNK, left)):
                    left -= len(chunk)
                    digest.update(chunk)
                    writer.write(chunk)
        self.keep(scratch, digest.hexdigest())
        return digest.hexdigest()

    def keep(self, scratch: Path, digest: str) -> None:
        """Makes a finished scratch file an object, durably, before anyone is told its name."""
        with _storage_errors(self.directory):
            replace_durably(scratch, self.object_path(digest))

    def verify(self, digest: str) -> None:
        """Raises unless the object's bytes still are what its name says."""
        path = self.object_path(digest)
        actual = hashlib.sha256()
        with _storage_errors(self.directory), path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                actual.update(chunk)
        if actual.hexdigest() != digest:
            raise StorageError(
                f"{path}: the checkpoint's bytes are not what was committed",
                fix="restore the file from a backup; hadar will not train on from damaged weights",
            )

    def collect_garbage(self, keep: Iterable[str]) -> None:
        wanted = set(keep)
        for path in self._objects.iterdir():
            if path.name not in wanted:
                path.unlink(missing_ok=True)


class FileJournal:
    """Appends events to ``journal.jsonl``; each is durable when ``append`` returns."""

    def __init__(self, path: Path) -> None:
        with _storage_errors(path.parent):
            self._file = path.open("ab", buffering=0)
            _sync_directory(path.parent)

    def append(self, event: Event) -> None:
        body = msgspec.json.encode([type(event).__name__, event])
        line = b"%08x " % zlib.crc32(body) + body + b"\n"
        with _storage_errors(Path(self._file.name)):
            if self._file.write(line) < len(line):  # a full disk takes a part, and says nothing
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> list[Event]:
    """All whole events. A torn last line was never acknowledged: leaving it out loses nothing."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    lines = data.split(b"\n")
    events: list[Event] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            events.append(_decode(line))
        except (ValueError, KeyError, RecursionError) as error:
            if number == len(lines) - 1:
                break
            raise StorageError(f"{path}:{number}: damaged record ({error})") from error
    return events


@contextmanager
def contradictions_of(store: RunStore) -> Iterator[None]:
    """A journal whose events cannot have happened is a damaged one."""
    try:
        yield
    except (LookupError, ValueError, ArithmeticError) as error:
        raise StorageError(
            f"{store.journal_path}: its records contradict each other: {error}",
            fix="restore the file from a backup",
        ) from error


def mend_journal(path: Path) -> list[Event]:
    """Reads the journal and cuts off a torn tail, so that new events follow whole ones."""
    events = read_journal(path)
    with _storage_errors(path.parent), path.open("ab") as file:
        data = path.read_bytes()
        whole = sum(len(line) + 1 for line in data.split(b"\n")[: len(events)])
        file.truncate(whole)
        os.fsync(file.fileno())
    return events


def find_run(runs: Path, name: str | None) -> RunStore:
    """The run of that name (or path), or the newest."""
    known = list_runs(runs)
    if name is None:
        if not known:
            raise InputError(
                f"there is no run in {runs}/", fix="start one: hadar run mixes/m5.yaml"
            )
        return RunStore(known[-1])
    for candidate in (runs / name, Path(name)):
        if (candidate / "run.json").exists():
            return RunStore(candidate)
    hint = nearest(name, [path.name for path in known])
    raise InputError(
        f"there is no run {name!r} in {runs}/" + (f"; did you mean {hint!r}?" if hint else ""),
        fix="hadar report --list shows all runs",
    )


def list_runs(runs: Path) -> list[Path]:
    """Run directories, oldest first."""
    facts = sorted(runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime_ns)
    return [path.parent for path in facts]


def is_taken(directory: Path) -> bool:
    """Whether something is there, other than what a head left that died before its run began."""
    begun = {"objects", "models", "run.json.part"}
    return directory.exists() and not begun.issuperset(path.name for path in directory.iterdir())


def remove_run(store: RunStore) -> None:
    shutil.rmtree(store.directory)


def _decode(line: bytes) -> Event:
    crc, _, body = line.partition(b" ")
    if int(crc, 16) != zlib.crc32(body):
        raise ValueError("checksum does not match")
    name, fields = _RECORD.decode(body)
    event: Event = msgspec.json.decode(fields, type=EVENTS[name])
    return event


def _write_durably(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    replace_durably(part, path)


def replace_durably(part: Path, path: Path) -> None:
    """Gives a finished file its name; whoever finds the name finds all of the file."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """The one place where the disk's errors become ours."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{error.filename or path}: {error.strerror}",
            fix="free or mend the disk, then: hadar resume",
        ) from error
