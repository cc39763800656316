"""SSH as a node's transport: one connection with many channels, an ssh process for large files."""

from __future__ import annotations

from hadar_cli.core.model import Node
from hadar_cli.nodes.connection import CommandStream
from hadar_cli.ssh import bulk
from hadar_cli.ssh.channel import ChannelStream
from hadar_cli.ssh.endpoints import endpoint_of
from hadar_cli.ssh.link import ChannelRefusedError, SshLink


class SshTransport:
    """Connects when the first stream is opened."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._links: list[SshLink] = []  # a second one where a server opens one channel only
        self._bulk: list[bulk.BulkStream] = []

    def open(self, command: str) -> ChannelStream:
        if self._links and not self._links[-1].is_connected:
            self.close()  # it was cut, and whoever else had a stream of it knows by now
        if not self._links:
            self._connect()
        try:
            return self._links[-1].start(command)
        except ChannelRefusedError:
            if len(self._links) > 1:
                raise
            self._connect()
            return self._links[-1].start(command)

    def _connect(self) -> None:
        link = SshLink(endpoint_of(self._node))
        self._links.append(link)  # before it is open, so that opening can be aborted
        try:
            link.open()
        except BaseException:
            self._links.remove(link)
            raise

    def open_bulk(self, command: str) -> CommandStream | None:
        if not self._links:
            self._connect()
        link = self._links[0]
        if not bulk.can_reach(link.endpoint):
            return None
        assert link.identity, "it is logged in"
        stream = bulk.BulkStream(link.endpoint, link.host_key, link.identity, command)
        self._bulk = [other for other in self._bulk if not other.is_closed] + [stream]
        return stream

    def heard_at(self) -> float:
        links, bulk = list(self._links), list(self._bulk)
        return max([0.0, *(link.heard_at for link in links), *(way.heard_at for way in bulk)])

    def abort(self) -> None:
        for link in list(self._links):
            link.abort()
        for stream in list(self._bulk):
            stream.kill()

    def close(self) -> None:
        while self._bulk:
            self._bulk.pop().close()
        while self._links:
            self._links.pop().close()

    def recalled(self, idle_s: float) -> str:
        return ""

    def move_on(self) -> None: ...

    def give_back(self) -> None:
        """The machine is its owner's all the time."""
