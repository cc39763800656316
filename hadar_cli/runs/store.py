"""The run's directory on the head: journal, checkpoints by hash, the lock against a second head.

runs/<id>/run.json       the mix and the inventory as they were read
          journal.jsonl  one event a line: crc and JSON, on the disk before it counts
          objects/       checkpoints, each named by its SHA-256
          models/        every finished job's weights, ready to load
          nodes/         what local devices work in
          inbox/         what people ask of the run: see requests.py
          lock           held by the head that drives the run
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import msgspec

from hadar_cli.core.events import EVENTS, Event, JobsAdded, RunFinished
from hadar_cli.core.measures.forecast import Forecast
from hadar_cli.core.model import Mix, Node
from hadar_cli.core.state import RunState
from hadar_cli.errors import InputError, RunLockedError, StorageError, unknown
from hadar_cli.node.agent.plain_files import open_plain
from hadar_cli.node.agent.processes import start_time
from hadar_cli.typed import read_json

_CHUNK = 1 << 20
_ARRIVING = "from-"
_LOOKS, _LOOK_EVERY_S = 20, 0.05  # at a lock that is held, before another head is refused
_RECORD = msgspec.json.Decoder(tuple[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run was started with, and the jobs and nodes that came later (request_handler.py)."""

    id: str
    mix: Mix
    nodes: tuple[Node, ...]
    started_at: str
    hadar_version: str
    forecast: Forecast | None = None
    token: str = ""  # by which nodes tell runs of the same name apart
    waits_for_work: bool = False  # when its jobs are done, until somebody says that no more come

    def with_added(self, happened: Iterable[Event]) -> RunFacts:
        """With the jobs that the journal adds, should a head have died before it noted them."""
        known = {job.id for job in self.mix.jobs}
        added = [job for event in happened if isinstance(event, JobsAdded) for job in event.jobs]
        missing = tuple(job for job in added if job.id not in known)
        return replace(self, mix=replace(self.mix, jobs=(*self.mix.jobs, *missing)))


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
        with storage_errors(store.directory):
            store._objects.mkdir(parents=True, exist_ok=True)
            (store.directory / "models").mkdir(exist_ok=True)
        store.write_facts(facts)
        return store

    def write_facts(self, facts: RunFacts) -> None:
        with storage_errors(self.directory):
            write_durably(self.directory / "run.json", msgspec.json.encode(facts))

    def disk_bytes(self) -> int:
        """What the run's directory takes; a file that lies there under two names counts once."""
        files = {}
        for path in self.directory.rglob("*"):
            with suppress(OSError):  # a run that goes on removes files
                found = path.lstat()
                files[found.st_dev, found.st_ino] = 512 * found.st_blocks
        return sum(files.values())

    @property
    def facts(self) -> RunFacts:
        path = self.directory / "run.json"
        try:
            return read_json(path.read_bytes(), RunFacts)
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{path}: {error}", fix="the run's directory is damaged") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for this head, whose pid is in the lock; another head is refused."""
        os.umask(0o077)  # what the head leaves from now on is its user's alone
        with storage_errors(self.directory), (self.directory / "lock").open("a+") as file:
            if not self._take_lock(file):
                raise RunLockedError(
                    f"another hadar drives run {self.directory.name}",
                    fix=f"wait for it to end, or stop it: hadar cancel {self.directory.name}",
                )
            file.truncate(0)
            file.write(json.dumps([os.getpid(), start_time(os.getpid())]))
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def _take_lock(self, file: IO[str]) -> bool:
        """Whoever only looks (``is_driven``) is gone at once; a head that lives is not."""
        for _ in range(_LOOKS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if self.holder():
                    return False
            time.sleep(_LOOK_EVERY_S)
        return False

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

    def arriving_path(self, node: str, path: str) -> Path:
        """A place for a node's file while it is fetched, the same one for every try."""
        # Not named by the node's word: the same file again is the same scratch file again.
        digest = hashlib.sha256(path.encode()).hexdigest()
        return self.scratch_path(f"{_ARRIVING}{node}-{digest[:16]}")

    def take_in(self, source: Path, tell: Callable[[int], None] = lambda done: None) -> str:
        """Copies a plain file in, hashed on the way; raises ValueError where it is none.

        ``tell`` hears how many bytes are here. A file that grows all the while is taken as long as
        it was at first.
        """
        scratch = self.scratch_path(f"in-{os.getpid()}-{source.parent.name}")
        digest = hashlib.sha256()
        try:
            reader = open_plain(source)
        except OSError as error:
            raise ValueError(f"{source}: {error.strerror}") from error
        with reader, storage_errors(self.directory):
            left = os.fstat(reader.fileno()).st_size
            if left > shutil.disk_usage(self.directory).free:
                raise ValueError(f"{source} holds {left} bytes, more than there is room for")
            with scratch.open("wb") as writer:
                while chunk := reader.read(min(_CHUNK, left)):
                    left -= len(chunk)
                    digest.update(chunk)
                    writer.write(chunk)
                    tell(writer.tell())
        self.keep(scratch, digest.hexdigest())
        return digest.hexdigest()

    def keep(self, scratch: Path, digest: str) -> None:
        """Makes a finished scratch file an object, durably, before anyone is told its name."""
        with storage_errors(self.directory):
            replace_durably(scratch, self.object_path(digest))

    def verify(self, digest: str) -> None:
        """Raises unless the object's bytes still are what its name says."""
        path = self.object_path(digest)
        actual = hashlib.sha256()
        with storage_errors(self.directory), path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                actual.update(chunk)
        if actual.hexdigest() != digest:
            raise StorageError(
                f"{path}: the checkpoint's bytes are not what was committed",
                fix="restore the file from a backup; hadar will not train on from damaged weights",
            )

    def collect_garbage(self, keep: Iterable[str], arriving: bool) -> None:
        """Removes all other objects; what is ``arriving`` stays, for its fetch to go on from."""
        wanted = set(keep)
        for path in self._objects.iterdir():
            is_arriving = path.name.startswith(_ARRIVING) and arriving
            if path.name not in wanted and not is_arriving:
                path.unlink(missing_ok=True)


class FileJournal:
    """Appends events to ``journal.jsonl``; each is durable when ``append`` returns."""

    def __init__(self, path: Path) -> None:
        with storage_errors(path.parent):
            self._file = path.open("ab", buffering=0)
            _sync_directory(path.parent)

    def append(self, event: Event) -> None:
        body = msgspec.json.encode([type(event).__name__, event])
        line = b"%08x " % zlib.crc32(body) + body + b"\n"
        with storage_errors(Path(self._file.name)):
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
            events.append(decode(line))
        except (ValueError, KeyError, RecursionError) as error:
            if number == len(lines) - 1:
                break
            raise StorageError(f"{path}:{number}: damaged record ({error})") from error
    return events


def is_driven(store: RunStore) -> bool:
    """Whether a head holds the run now, on this computer or on another that shares its disk."""
    if store.holder():
        return True
    try:
        with (store.directory / "lock").open("rb") as file:
            if not file.read(1):  # the last head left in order
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never locked, or not ours to look at
        return False
    return False


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


def read_state(store: RunStore) -> RunState:
    """What the run's journal adds up to."""
    with contradictions_of(store):
        return RunState(store.facts.mix.jobs, read_journal(store.journal_path))


def is_finished(store: RunStore) -> bool:
    return any(isinstance(event, RunFinished) for event in read_journal(store.journal_path))


def mend_journal(path: Path) -> list[Event]:
    """Reads the journal and cuts off a torn tail, so that new events follow whole ones."""
    events = read_journal(path)
    with storage_errors(path.parent), path.open("ab") as file:
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
    problem, fix = f"there is no run {name!r} in {runs}/", "hadar report --list shows all runs"
    if known and _has_job(RunStore(known[-1]), name):
        fix = f"it is a job of run {known[-1].name!r}: name the run first"
    raise unknown(problem, name, (path.name for path in known), fix=fix)


def _has_job(store: RunStore, name: str) -> bool:
    try:
        return any(job.name == name for job in store.facts.mix.jobs)
    except StorageError:
        return False


def list_runs(runs: Path) -> list[Path]:
    """Run directories, oldest first."""
    facts = sorted(runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime_ns)
    return [path.parent for path in facts]


def is_taken(directory: Path) -> bool:
    """Whether something is there, other than what a head left that died before its run began."""
    begun = {"objects", "models", "run.json.part"}
    return directory.exists() and not begun.issuperset(path.name for path in directory.iterdir())


def decode(line: bytes) -> Event:
    crc, _, body = line.partition(b" ")
    if int(crc, 16) != zlib.crc32(body):
        raise ValueError("checksum does not match")
    name, fields = _RECORD.decode(body)
    event: Event = read_json(fields, EVENTS[name])
    return event


def write_durably(path: Path, data: bytes) -> None:
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
def storage_errors(path: Path) -> Iterator[None]:
    """The one place where the disk's errors become ours."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{error.filename or path}: {error.strerror}",
            fix="free or mend the disk, then: hadar resume",
        ) from error
