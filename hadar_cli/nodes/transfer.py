"""The head's end of file transfers: streamed, hashed on the way, resumed after a cut."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hadar_cli.errors import StorageError
from hadar_cli.nodes.wire import AgentError, LinkLostError, Message, Wire, read_as, said
from hadar_cli.project.requirements import Requirements

TellBytes: TypeAlias = Callable[[int], None]
_CHUNK = 1 << 20
_LARGEST = 256 << 30
_SPARE = 1 << 30  # of the head's disk, never filled by a node


@dataclass(frozen=True, slots=True)
class _Place:
    path: str


@dataclass(frozen=True, slots=True)
class _Offset:
    offset: int


@dataclass(frozen=True, slots=True)
class _Size:
    bytes: int


@dataclass(frozen=True, slots=True)
class _Python:
    python: str


class TransferSession:
    """One node's files, over a wire to its ``transfer`` process. One transfer at a time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def put(
        self,
        source: Path,
        digest: str,
        directory: str,
        seal: bool = False,
        tell: TellBytes | None = None,
        known: bool = False,
    ) -> tuple[str, bool]:
        """Where the file is on the node, and whether it had to be sent.

        ``tell`` hears how many of its bytes are there. A sealed file is not to change any more; a
        ``known`` one was seen there just now, so that it need not be read again.
        """
        size = source.stat().st_size
        request = {"do": "put", "directory": directory, "name": digest, "bytes": size}
        self._wire.send({**request, "seal": seal, "known": known})
        answer = self._answer(tell)
        if answer.get("have"):
            return read_as(answer, _Place).path, False
        offset = read_as(answer, _Offset).offset
        if not 0 <= offset <= size:
            raise AgentError(f"the node wants the file from byte {said(offset)} on")
        with source.open("rb", buffering=0) as file:
            file.seek(offset)
            try:
                while chunk := file.read(_CHUNK):
                    self._wire.send_bytes(chunk)
                    if tell:
                        tell(file.tell())
            except LinkLostError:
                with suppress(LinkLostError):
                    self._answer()  # the node's reason, if it gave one
                raise
        return read_as(self._answer(tell), _Place).path, True

    def get(
        self, path: str, scratch: Path, most: int = _LARGEST, tell: TellBytes | None = None
    ) -> str:
        """Fetches a file into ``scratch``, from where an earlier try left off; its hash."""
        try:
            descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                digest = hashlib.sha256()
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    if tell:
                        tell(0)
                offset = file.tell()
                limit = min(most, shutil.disk_usage(scratch.parent).free - _SPARE + offset)
                self._wire.send({"do": "get", "path": path, "offset": offset, "limit": limit})
                size = read_as(self._answer(tell), _Size).bytes
                if not offset <= size <= limit:
                    raise AgentError(f"{said(path)} holds {said(size)} bytes, which cannot be")
                for chunk in self._wire.receive_bytes(size - offset):
                    digest.update(chunk)
                    file.write(chunk)
                    if tell:
                        tell(file.tell())
        except OSError as error:
            raise StorageError(f"{scratch}: {error.strerror}") from error
        if self._answer().get("sha256") != digest.hexdigest():
            scratch.unlink()
            if offset:  # what an earlier try left may have been damaged since
                return self.get(path, scratch, most, tell)
            raise AgentError(f"{said(path)} arrived damaged")
        return digest.hexdigest()

    def ask(self, do: str, **fields: Any) -> Message:
        self._wire.send({"do": do, **fields})
        return self._answer()

    def make_venv(self, workdir: str, wanted: Requirements, tell: Callable[[str], None]) -> str:
        """The Python of a virtual environment with these packages; ``tell`` hears how it goes."""
        fields = {"wanted": list(wanted.wanted), "constraints": list(wanted.constraints)}
        self._wire.send({"do": "venv", "workdir": workdir, **fields})
        while "now" in (answer := self._answer()):
            tell(said(answer["now"], 160))
        return read_as(answer, _Python).python

    def _answer(self, tell: TellBytes | None = None) -> Message:
        """What the node answers, once it is done with what it says it is alive at."""
        while "alive" in (answer := self._wire.answer()):
            if tell:
                tell(0)
        return answer

    def close(self) -> None:
        self._wire.close()
