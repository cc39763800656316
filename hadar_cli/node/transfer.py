"""The node's end of file transfers: requests on stdin, answers and bytes on stdout.

    {"do": "put", "directory": …, "name": <sha256>, "bytes": n}    then n - offset bytes follow
    {"do": "get", "path": …, "offset": k, "limit": n}              answered by bytes - k bytes
    {"do": "unpack", "archive": …, "workdir": …, "code": <sha256>}
    {"do": "keep", "directory": …, "names": […]}

Files arrive under a temporary name and are renamed once their hash is right; a partial one stays
for the next connection to go on from. Links are never followed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hadar_cli.node.bootstrap import answer, private_directory, unpack
from hadar_cli.node.plain_files import open_plain

_CHUNK = 1 << 20
_F_SETPIPE_SZ = 1031
Message = dict[str, Any]
_verified: set[str] = set()  # files whose hash was seen to be right


def main() -> None:
    for descriptor in (0, 1):
        widen_pipe(descriptor)
    stdin = io.FileIO(0, closefd=False)
    while line := stdin.readline():
        request: Message = json.loads(line)
        try:
            _serve(request)
        except (OSError, ValueError) as error:
            answer({"error": _in_words(error)})
            if request["do"] in ("put", "get"):
                return  # bytes may be under way: nobody could tell them from requests


def _serve(request: Message) -> None:
    match request["do"]:
        case "put":
            _put(Path(request["directory"]).expanduser(), request["name"], int(request["bytes"]))
        case "get":
            _get(request["path"], int(request["offset"]), int(request["limit"]))
        case "unpack":
            _unpack(request)
        case "keep":
            _keep(Path(request["directory"]).expanduser(), request["names"])
        case unknown:
            raise ValueError(f"unknown request {unknown!r}")


def _put(directory: Path, name: str, size: int) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = directory / name
    if _is_file(final, size) and _is_whole(final):
        answer({"have": True, "path": str(final)})
        return
    part = directory / f"{name}.part"
    descriptor = _open_part(part, size)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        digest = hashlib.sha256()
        for chunk in _chunks(file.fileno(), size):
            digest.update(chunk)
        answer({"offset": file.tell()})
        for chunk in _chunks(0, size - file.tell()):
            digest.update(chunk)
            _write_all(file.fileno(), chunk)
        if file.tell() < size:
            raise ConnectionError("the connection ended within the file")
    if digest.hexdigest() != name:
        part.unlink(missing_ok=True)
        raise ValueError("the file arrived damaged")
    with suppress(FileNotFoundError):  # another connection was quicker to put it in its place
        part.replace(final)
    _verified.add(str(final))
    answer({"have": True, "path": str(final)})


def _is_whole(path: Path) -> bool:
    """Whether a file that an earlier connection left is what its name says: a crash of the machine
    can leave one of the right length. It is looked at once a connection."""
    if str(path) not in _verified:
        digest = hashlib.sha256()
        with open_plain(path) as file:
            for chunk in _chunks(file.fileno(), os.fstat(file.fileno()).st_size):
                digest.update(chunk)
        if digest.hexdigest() != path.name:
            return False
        _verified.add(str(path))
    return True


def _open_part(part: Path, size: int) -> int:
    """The partial file, or a fresh one where it is none that could be gone on from.

    Another connection may still be writing to it: as its name is its content's hash, both write
    the same bytes to the same places.
    """
    if not _is_file(part) or part.lstat().st_size > size:
        with suppress(FileNotFoundError):
            part.unlink()
    return os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _get(path: str, offset: int, limit: int) -> None:
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"{path} holds {size} bytes, more than the {limit} allowed")
        digest = hashlib.sha256()
        answer({"bytes": size})
        sent = 0
        for chunk in _chunks(file.fileno(), size):
            digest.update(chunk)
            new = memoryview(chunk)[max(0, offset - sent) :]
            sent += len(chunk)
            _write_all(1, new)
        if sent < size:
            os._exit(1)  # it shrank: ending in mid-stream is the only way to say so
        answer({"sha256": digest.hexdigest()})


def _unpack(request: Message) -> None:
    code = private_directory(request["workdir"], "code") / request["code"]
    archive = Path(request["archive"])
    try:
        if not code.is_dir():
            with archive.open("rb") as file:
                unpack(file, code)
        archive.unlink(missing_ok=True)
    except FileNotFoundError:
        if not code.is_dir():  # else another connection has unpacked it meanwhile
            raise
    answer({"path": str(code)})


def _keep(directory: Path, names: list[str]) -> None:
    """Removes all other objects."""
    if directory.is_dir():
        for path in directory.iterdir():
            if path.name not in names:
                path.unlink()
    answer({})


def _chunks(descriptor: int, count: int) -> Iterator[bytes]:
    """Up to ``count`` bytes; fewer where the file or the connection ends."""
    while count > 0:
        chunk = os.read(descriptor, min(_CHUNK, count))
        if not chunk:
            return
        count -= len(chunk)
        yield chunk


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _is_file(path: Path, size: int | None = None) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and size in (None, facts.st_size)


def widen_pipe(descriptor: int) -> None:
    """Fewer and larger reads and writes, where it is a pipe and the system lets us."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _CHUNK)


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'file'}: {error.strerror}"
    return str(error)
