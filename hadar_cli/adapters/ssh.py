"""A machine reached by SSH as a node: nothing is installed there, and nothing listens there.

Every command is the same constant; what to do goes in by stdin, see ``node/bootstrap.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

from hadar_cli.adapters import openssh, packing
from hadar_cli.adapters.agent_link import AgentLink, OnEnd, OnEvent
from hadar_cli.adapters.packing import CodePacker
from hadar_cli.adapters.ssh_config import endpoint_of
from hadar_cli.adapters.ssh_transport import ChannelRefusedError, ChannelStream, SshTransport
from hadar_cli.adapters.store import RunStore
from hadar_cli.adapters.transfer import TransferSession
from hadar_cli.adapters.wire import AgentError, LinkLostError, Stream, Wire, said
from hadar_cli.core.model import Launch, Node
from hadar_cli.errors import InputError
from hadar_cli.node import bootstrap

DEFAULT_WORKDIR = "~/.hadar"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./~+-]+")
_BULK_BYTES = 8 << 20  # from here on, starting an ssh process pays
_PATIENCE_S = 60.0
_KEPT_OBJECTS = 16  # of checkpoints on the node; a device needs one at a time


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


def become(stream: Stream, node: Node, part: str) -> Wire:
    """Turns a command just started into ``part`` of the node's package, which is sent if new."""
    digest, content = packing.package()
    wire = Wire(stream)
    stream.write(json.dumps(Path(bootstrap.__file__).read_text()).encode() + b"\n")
    workdir = node.workdir or DEFAULT_WORKDIR
    wire.send({"workdir": workdir, "code": digest, "bytes": len(content), "become": part})
    if wire.answer().get("needs"):
        wire.send_bytes(content)
        wire.answer()
    return wire


class SshConnection:
    """One connection, many channels; a bulk transfer may have an ssh process of its own."""

    def __init__(self, node: Node, store: RunStore, packer: CodePacker) -> None:
        self.node = node
        self._workdir = node.workdir or DEFAULT_WORKDIR
        self.directory = f"{self._workdir}/runs/{store.directory.name}/{node.name}"
        self._store, self._packer, self.token = store, packer, store.facts.token
        self._transport: SshTransport | None = None
        self._second: SshTransport | None = None  # for files, where one channel is all one gets
        self._files: TransferSession | None = None
        self._bulk: TransferSession | None = None
        self._bulk_process: openssh.BulkProcess | None = None
        self._bulk_works = True
        self._placed: dict[str, str] = {}  # archive -> where it was unpacked
        self._pushed: dict[str, None] = {}  # checkpoints on the node, the latest last

    def open_agent(self, on_event: OnEvent, on_end: OnEnd) -> AgentLink:
        self.close()
        self._transport = SshTransport.logged_in(endpoint_of(self.node))
        stream, wire = self._run("agent")
        stream.be_patient(None)  # it speaks when there is something to say
        return AgentLink(wire, on_event, on_end)

    def place(self, launch: Launch) -> Launch:
        """The code folder with the script in it, or the script alone, as copies on the node."""
        folder, script = launch.sync, launch.script
        if folder:
            folder = self._place(Path(folder))
        if script:
            inside = launch.sync is not None and Path(script).is_relative_to(launch.sync)
            if inside and launch.sync:
                script = f"{folder}/{Path(script).relative_to(launch.sync).as_posix()}"
            else:
                alone = self._place(Path(script))
                folder, script = folder or alone, f"{alone}/{Path(script).name}"
        return replace(launch, sync=folder, script=script)

    def _place(self, source: Path) -> str:
        archive = self._packer.pack(source)
        if archive.digest not in self._placed:
            files = self._session(archive.path.stat().st_size)
            sent, _ = files.put(archive.path, archive.digest, f"{self._workdir}/code/arriving")
            fields = {"archive": sent, "workdir": self._workdir, "code": archive.digest}
            self._placed[archive.digest] = str(files.ask("unpack", **fields)["path"])
        return self._placed[archive.digest]

    def push(self, digest: str) -> str:
        source, objects = self._store.object_path(digest), f"{self.directory}/objects"
        files = self._session(source.stat().st_size)
        path, sent = files.put(source, digest, objects)
        self._pushed.pop(digest, None)
        self._pushed[digest] = None
        if sent:
            spare = len(self._pushed) - _KEPT_OBJECTS - 2 * len(self.node.devices)
            for old in list(self._pushed)[: max(0, spare)]:
                del self._pushed[old]
            files.ask("keep", directory=objects, names=list(self._pushed))
        return path

    def pull(self, path: str, size: int) -> str:
        # Not named by the node's word: the same file again is the same scratch file again.
        name = hashlib.sha256(path.encode()).hexdigest()[:16]
        scratch = self._store.scratch_path(f"from-{self.node.name}-{name}")
        session = self._session(size)
        try:
            digest = session.get(path, scratch)
        except AgentError:  # the node's end leaves after a refusal: the next file has a new one
            self._end(session)
            scratch.unlink(missing_ok=True)
            raise
        self._store.keep(scratch, digest)
        return digest

    def heard_at(self) -> float:
        transports = (self._transport, self._second)
        return max((t.heard_at for t in transports if t), default=0.0)

    def abort(self) -> None:
        for transport in (self._transport, self._second):
            if transport:
                transport.abort()
        if self._bulk_process:
            self._bulk_process.abort()

    def close(self) -> None:
        for opened in (self._transport, self._second, self._bulk_process):
            if opened:
                opened.close()
        self._transport = self._second = self._files = self._bulk = self._bulk_process = None

    # -- channels and processes --------------------------------------------------------------

    def _run(self, part: str) -> tuple[ChannelStream, Wire]:
        if not self._transport:
            raise LinkLostError("the connection is closed")
        try:
            stream = (self._second or self._transport).run(command_of(self.node))
        except ChannelRefusedError:
            if self._second:
                raise
            self._second = SshTransport.logged_in(self._transport.endpoint)
            stream = self._second.run(command_of(self.node))
        try:
            return stream, become(stream, self.node, part)
        except LinkLostError as error:
            complaint = said(stream.complaint() or str(error))
            raise LinkLostError(
                f"{self.node.python or 'python3'} does not start there: {complaint}",
                fix="set python in nodes.toml to one that has torch and safetensors",
            ) from error

    def _session(self, size: int) -> TransferSession:
        """A way for files of that size: an ssh process for large ones, where that works."""
        if size >= _BULK_BYTES and self._bulk_works and not self._bulk:
            self._bulk = self._try_bulk()
        if size >= _BULK_BYTES and self._bulk:
            return self._bulk
        if not self._files:
            self._files = TransferSession(self._run("transfer")[1])
        return self._files

    def _end(self, session: TransferSession) -> None:
        session.close()
        if session is self._files:
            self._files = None
        elif self._bulk_process:
            self._bulk_process.close()
            self._bulk = self._bulk_process = None

    def _try_bulk(self) -> TransferSession | None:
        if self._transport and openssh.can_reach(self._transport.endpoint):
            endpoint, key = self._transport.endpoint, self._transport.host_key
            command = command_of(self.node)
            self._bulk_process = openssh.BulkProcess(endpoint, key, command, _PATIENCE_S)
            try:
                return TransferSession(become(self._bulk_process.stream, self.node, "transfer"))
            except LinkLostError:
                self._bulk_process.close()
                self._bulk_process = None
        self._bulk_works = False
        return None
