"""Another machine as a node, over any byte streams: nothing is installed there, nothing listens.

Every command is the same constant; what to do goes in by stdin, see ``node/agent/bootstrap.py``.
How the bytes get there, by SSH or otherwise, is the transport's business.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hadar_cli.core.model import Job, Launch, Node
from hadar_cli.errors import InputError
from hadar_cli.node.agent import bootstrap
from hadar_cli.nodes.connection import (
    CommandStream,
    Listed,
    TellMoved,
    TellPrepared,
    ThroughAccess,
    Transport,
)
from hadar_cli.nodes.supply.data_sender import DataSender
from hadar_cli.nodes.supply.outputs import MOST_FILES, read_list
from hadar_cli.nodes.supply.placing import TellNow, place_job, prepare_venv, require_data
from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.transfer_pool import TransferPool
from hadar_cli.nodes.wire import AgentError, LinkLostError, Wire, said
from hadar_cli.project import packing
from hadar_cli.project.data import Tell
from hadar_cli.project.packing import CodePacker
from hadar_cli.project.requirements import Requirements
from hadar_cli.runs.store import RunStore

DEFAULT_WORKDIR = "~/.hadar"
# What a Python says of itself that is too old; of Python 2, that its first option is unknown.
_VERSION = re.compile(r"^(\d+\.\d+\.\S+) \(", re.MULTILINE)
_PYTHON_2 = "Unknown option: -I"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./~+-]+")
_BULK_BYTES = 8 << 20  # from here on, opening a bulk stream pays
_FILES_S = 60.0  # of waiting for more of a file, or for its hash
_KEPT = 2  # of a series of checkpoints, on the node
_MOST_BULK = 8  # streams at once: more would only share the link, and servers start ten at most
_MOST_CHANNELS = 4  # beside the agent's; servers open ten at most
_LOOK_S = 1.0  # while another device's push of the same weights is waited for


def command_of(node: Node) -> str:
    """What is run on the node, read alike by bash, dash, fish and tcsh."""
    python = node.python or "python3"
    if not _PLAIN_PATH.fullmatch(python):
        raise InputError(
            f"python = {python!r}: shells would not all read this path alike",
            field="node.python",
            fix="use a path of letters, digits and . _ - + / ~ only, e.g. by a link to it",
        )
    return f"{python} {bootstrap.COMMAND}"


def directory_of(node: Node, run: str) -> str:
    """Where the node keeps what is the run's."""
    return f"{node.workdir or DEFAULT_WORKDIR}/runs/{run}/{node.name}"


class RemoteAccess:
    """Starts parts of hadar on a node that a transport reaches; sends the package if it is new."""

    def __init__(self, node: Node, transport: Transport) -> None:
        self.node, self._transport = node, transport
        self.workdir = node.workdir or DEFAULT_WORKDIR
        self._starting = threading.Lock()

    def open(self, part: str, patience_s: float | None) -> Wire:
        with self._starting:
            stream = self._transport.open(command_of(self.node))
        try:
            wire = self._become(stream, part)
        except LinkLostError as error:
            python, complaint = self.node.python or "python3", stream.complaint() or str(error)
            what = f"{python} does not start there: {said(complaint)}"
            if (version := _VERSION.search(complaint)) or _PYTHON_2 in complaint:
                number = version[1] if version else "2"
                what = f"{python} is Python {number} there: hadar needs 3.10 or newer"
            fix = "set python in nodes.toml to one that has torch and safetensors"
            raise LinkLostError(what, fix=fix) from error
        stream.be_patient(patience_s)
        return wire

    def open_bulk(self, part: str) -> Wire:
        """By the transport's way for large files; LinkLostError where there is none."""
        with self._starting:
            stream = self._transport.open_bulk(command_of(self.node))
        if not stream:
            raise LinkLostError("there is no other way for large files")
        try:
            return self._become(stream, part)
        except LinkLostError:
            stream.close()
            raise

    def _become(self, stream: CommandStream, part: str) -> Wire:
        """Turns a command just started into ``part`` of the node's package."""
        digest, content = packing.package()
        wire = Wire(stream)
        stream.write(json.dumps(Path(bootstrap.__file__).read_text()).encode() + b"\n")
        request = {"workdir": self.workdir, "code": digest, "bytes": len(content), "become": part}
        wire.send(request)
        if wire.answer().get("needs"):
            wire.send_bytes(content)
            wire.answer()
        return wire

    def heard_at(self) -> float:
        return self._transport.heard_at()

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    def recalled(self, idle_s: float) -> str:
        return self._transport.recalled(idle_s)

    def move_on(self) -> None:
        self._transport.move_on()

    def give_back(self) -> None:
        self._transport.give_back()


class RemoteConnection(ThroughAccess[RemoteAccess]):
    """A run's node on another machine: code, checkpoints and results are sent and fetched."""

    nursery = door = ""

    def __init__(self, access: RemoteAccess, store: RunStore, packer: CodePacker) -> None:
        super().__init__(access)
        self.directory = directory_of(self.node, store.directory.name)
        self._store, self._packer, self.token = store, packer, store.facts.token
        self._files = TransferPool(self._open_files, _MOST_CHANNELS)
        self._bulk = TransferPool(self._open_bulk, _MOST_BULK)
        self._bulk_works = True
        self._placed: dict[str, str] = {}  # archives and workspaces -> where they are
        self._pushed: dict[str, list[str]] = {}  # series -> its newest checkpoints on the node
        self._there: set[str] = set()  # checkpoints that this connection has seen there, whole
        self._keeping = threading.Lock()  # what is on the node changes only while it is held
        self._pushing: dict[str, threading.Lock] = {}  # by checkpoint

    def place(self, job: Job) -> Launch:
        return place_job(job, self)

    def send_code(self, source: Path, data: Sequence[Path]) -> str:
        archive, workdir = self._packer.pack(source, data), self._access.workdir
        if archive.digest not in self._placed:
            with self._session(archive.path.stat().st_size) as files:
                sent, _ = files.put(archive.path, archive.digest, f"{workdir}/code/arriving")
                answer = files.ask("unpack", archive=sent, workdir=workdir, code=archive.digest)
            self._placed[archive.digest] = str(answer["path"])
        return self._placed[archive.digest]

    def send_data(self, source: Path, tell: Tell = lambda done, total: None) -> str:
        if str(source) not in self._placed:
            held = self._packer.data_set(source, lambda done, total: None)
            scratch = self._store.directory / "code" / f"{self.node.name}.data"
            scratch.parent.mkdir(mode=0o700, exist_ok=True)
            DataSender(self._session, self._access.workdir, scratch).send(held, tell)
            self._placed[str(source)] = held.digest
        return self._placed[str(source)]

    def make_venv(self, wanted: Requirements, tell: TellNow = lambda now: None) -> str:
        key = repr(wanted)
        if key not in self._placed:
            with self._session(0) as files:
                python = files.make_venv(self._access.workdir, wanted, tell)
            self._placed[key] = python
        return self._placed[key]

    def make_workspace(self, job: int, code: str | None, links: Mapping[str, str]) -> str:
        key = f"{job} {code} {sorted(links.items())}"
        if key not in self._placed:
            fields = {"run": self.directory, "job": job, "code": code, "links": dict(links)}
            with self._session(0) as files:
                answer = files.ask("workspace", workdir=self._access.workdir, **fields)
            self._placed[key] = str(answer["path"])
        return self._placed[key]

    def prepare(self, job: Job, tell: TellPrepared) -> None:
        def tell_read(done: int, total: int) -> None:
            tell("data", 0, 1, f"data, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB read here")

        require_data(job.launch, self._has)
        for path in job.launch.data:
            self._packer.data_set(Path(path), tell_read)
            self.send_data(Path(path), lambda done, total: tell("data", done, total, ""))
        if job.launch.venv:
            prepare_venv(job.launch.venv, self.make_venv, tell)

    def _has(self, path: str) -> bool:
        with self._session(0) as files:
            return files.ask("look", path=path).get("there") is True

    def push(
        self,
        digest: str,
        series: str,
        under_way: Callable[[], Collection[str]],
        tell: TellMoved = lambda done, total: None,
    ) -> str:
        source, objects = self._store.object_path(digest), f"{self.directory}/objects"
        size = source.stat().st_size
        with self._alone_with(digest, lambda: tell(0, size)):
            with self._keeping:
                before = [old for old in self._pushed.get(series, ()) if old != digest]
                self._pushed[series] = [*before, digest][-_KEPT:]
                known = digest in self._there
            with self._session(size, lambda: tell(0, size)) as files:
                told = lambda done: tell(done, size)  # noqa: E731
                path, sent = files.put(source, digest, objects, tell=told, known=known)
                self._there.add(digest)
                if sent:
                    self._keep(files, objects, under_way)
        return path

    def _keep(
        self, files: TransferSession, objects: str, under_way: Callable[[], Collection[str]]
    ) -> None:
        with self._keeping:
            kept = {name for names in self._pushed.values() for name in names}.union(under_way())
            self._there &= kept
            files.ask("keep", directory=objects, names=sorted(kept))

    @contextmanager
    def _alone_with(self, digest: str, tell: Callable[[], None]) -> Iterator[None]:
        """Devices that start from the same weights get them once: the others wait for the first."""
        with self._keeping:
            lock = self._pushing.setdefault(digest, threading.Lock())
        while not lock.acquire(timeout=_LOOK_S):
            tell()
        try:
            yield
        finally:
            lock.release()

    def pull(self, path: str, size: int, tell: TellMoved = lambda done, total: None) -> str:
        scratch = self._store.arriving_path(self.node.name, path)
        try:
            with self._session(size, lambda: tell(0, size)) as files:
                digest = files.get(path, scratch, tell=lambda done: tell(done, size))
        except AgentError:
            scratch.unlink(missing_ok=True)
            raise
        self._store.keep(scratch, digest)
        return digest

    def list_out(self, job: int) -> tuple[list[Listed], int]:
        folder = f"{self.directory}/out/{job}"
        with self._session(0) as files:
            return read_list(files.ask("list", directory=folder, most=MOST_FILES))

    def fetch_out(self, job: int, name: str, size: int, target: Path) -> None:
        with self._session(size) as files:
            files.get(f"{self.directory}/out/{job}/{name}", target, size)

    def end_transfers(self) -> None:
        self._bulk.close()
        self._files.close()

    def close(self) -> None:
        self.end_transfers()
        self._there.clear()
        super().close()

    @contextmanager
    def _session(
        self, size: int, tell: Callable[[], None] = lambda: None
    ) -> Iterator[TransferSession]:
        """A way for a file of that size; large ones have one of their own, where that works."""
        if size >= _BULK_BYTES and self._bulk_works:
            with self._bulk.lent(tell) as session:
                if session:
                    yield session
                    return
            self._bulk_works = False
        with self._files.lent(tell) as session:
            assert session, "or it raises"
            yield session

    def _open_files(self) -> TransferSession:
        return TransferSession(self._access.open("transfer", _FILES_S))

    def _open_bulk(self) -> TransferSession | None:
        try:
            return TransferSession(self._access.open_bulk("transfer"))
        except LinkLostError:
            return None
