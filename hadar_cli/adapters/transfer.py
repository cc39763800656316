"""The head's end of file transfers: streamed, hashed on the way, resumed after a cut."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadar_cli.adapters.wire import AgentError, LinkLostError, Message, Wire, read_as, said
from hadar_cli.errors import StorageError

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


class TransferSession:
    """One node's files, over a wire to its ``transfer`` process. One transfer at a time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def put(self, source: Path, digest: str, directory: str) -> tuple[str, bool]:
        """Where the file is on the node, and whether it had to be sent."""
        size = source.stat().st_size
        self._wire.send({"do": "put", "directory": directory, "name": digest, "bytes": size})
        answer = self._wire.answer()
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
            except LinkLostError:
                with suppress(LinkLostError):
                    self._wire.answer()  # the node's reason, if it gave one
                raise
        return read_as(self._wire.answer(), _Place).path, True

    def get(self, path: str, scratch: Path) -> str:
        """Fetches a file into ``scratch``, from where an earlier try left off; its hash."""
        try:
            descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                digest = hashlib.sha256()
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                offset = file.tell()
                limit = min(_LARGEST, shutil.disk_usage(scratch.parent).free - _SPARE + offset)
                self._wire.send({"do": "get", "path": path, "offset": offset, "limit": limit})
                size = read_as(self._wire.answer(), _Size).bytes
                if not offset <= size <= limit:
                    raise AgentError(f"{said(path)} holds {said(size)} bytes, which cannot be")
                for chunk in self._wire.receive_bytes(size - offset):
                    digest.update(chunk)
                    file.write(chunk)
        except OSError as error:
            raise StorageError(f"{scratch}: {error.strerror}") from error
        if self._wire.answer().get("sha256") != digest.hexdigest():
            scratch.unlink()
            raise AgentError(f"{said(path)} arrived damaged")
        return digest.hexdigest()

    def ask(self, do: str, **fields: Any) -> Message:
        self._wire.send({"do": do, **fields})
        return self._wire.answer()

    def close(self) -> None:
        self._wire.close()
