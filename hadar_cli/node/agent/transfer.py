"""The node's end of file transfers: requests on stdin, answers and bytes on stdout.

    {"do": "put", "directory": …, "name": <sha256>, "bytes": n, "seal": false, "known": false}
                                                                   then n - offset bytes follow
    {"do": "get", "path": …, "offset": k, "limit": n}              answered by bytes - k bytes
    {"do": "unpack", "archive": …, "workdir": …, "code": <sha256>}
    {"do": "data", "workdir": …, "data": <sha256>}                 what is missing of a data set
    {"do": "pack", "workdir": …, "archive": …}                     some of it, see files/datasets.py
    {"do": "venv", "workdir": …, "wanted": […], "constraints": […]}    see files/venvs.py
    {"do": "workspace", "run": …, "job": n, "code": …, "workdir": …, "links": {…}}
    {"do": "list", "directory": …, "most": n}                      plain files that a job left
    {"do": "keep", "directory": …, "names": […]}
    {"do": "look", "path": …}                                      whether anything is there

While it is busy with something that may take long, such as hashing, it says ``{"alive": true}``
every few seconds: the head's patience is with silence only.

Files arrive under a temporary name and are renamed once their hash is right; a partial one stays
for the next connection to go on from. Links are never followed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by its path, on this computer
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hadar_cli.node.agent.bootstrap import answer, is_listed, private_directory, refusal, unpack
from hadar_cli.node.agent.plain_files import open_plain
from hadar_cli.node.files import datasets
from hadar_cli.node.files.outputs import list_outputs
from hadar_cli.node.files.venvs import BuildError, make_venv
from hadar_cli.node.files.workspace import make_workspace

_CHUNK = 1 << 20
_F_SETPIPE_SZ = 1031
_PART = ".part"
_ALIVE_EVERY_S = 5.0
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
            answer(refusal(error))
            if request["do"] in ("put", "get"):
                return  # bytes may be under way: nobody could tell them from requests


def _serve(request: Message) -> None:
    match request["do"]:
        case "put":
            directory, size = Path(request["directory"]).expanduser(), int(request["bytes"])
            if request.get("known"):  # seen whole over another connection
                _verified.add(str(directory / request["name"]))
            _put(directory, request["name"], size, request.get("seal", False))
        case "get":
            path = Path(request["path"]).expanduser()
            _get(path, int(request["offset"]), int(request["limit"]))
        case "unpack":
            with _telling_life():
                place = _unpack(request)
            answer({"path": place})
        case "workspace":
            with _telling_life():
                place = _workspace(request)
            answer({"path": place})
        case "venv":
            _venv(request)
        case "data":
            _data(Path(request["workdir"]).expanduser(), request["data"])
        case "pack":
            workdir = Path(request["workdir"]).expanduser()
            with _telling_life():
                datasets.take_in_pack(Path(request["archive"]), workdir)
            answer({})
        case "list":
            folder = Path(request["directory"]).expanduser()
            files, others = list_outputs(folder, int(request["most"]))
            answer({"files": files, "others": others})
        case "look":
            answer({"there": Path(request["path"]).exists()})
        case "keep":
            _keep(Path(request["directory"]).expanduser(), request["names"])
        case unknown:
            raise ValueError(f"unknown request {unknown!r}")


def _put(directory: Path, name: str, size: int, is_sealed: bool) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = directory / name
    with _telling_life():
        is_there = _is_file(final, size) and _is_whole(final)
    if is_there:
        answer({"have": True, "path": str(final)})
        return
    part = directory / f"{name}{_PART}"
    descriptor = _open_part(part, size)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        digest = hashlib.sha256()
        with _telling_life():
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
        raise ValueError("the file arrived damaged, or changed on the way")
    if is_sealed:
        datasets.seal(part)
    with suppress(FileNotFoundError):  # another connection was quicker to put it in its place
        part.replace(final)
    _verified.add(str(final))
    answer({"have": True, "path": str(final)})


def _is_whole(path: Path) -> bool:
    """Whether a file that an earlier connection left is what its name says: a crash of the machine
    can leave one of the right length. It is looked at once a connection."""
    if str(path) not in _verified:
        digest = hashlib.sha256()
        try:
            with open_plain(path) as file:
                for chunk in _chunks(file.fileno(), os.fstat(file.fileno()).st_size):
                    digest.update(chunk)
        except FileNotFoundError:  # another connection has unpacked and removed it meanwhile
            return False
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


def _get(path: Path, offset: int, limit: int) -> None:
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"{path} holds {size} bytes, more than the {limit} allowed")
        digest = hashlib.sha256()
        with _telling_life():
            for chunk in _chunks(file.fileno(), min(offset, size)):
                digest.update(chunk)
        answer({"bytes": size})
        for chunk in _chunks(file.fileno(), size - file.tell()):
            digest.update(chunk)
            _write_all(1, chunk)
        if file.tell() < size:
            os._exit(1)  # it shrank: ending in mid-stream is the only way to say so
        answer({"sha256": digest.hexdigest()})


def _unpack(request: Message) -> str:
    code = private_directory(request["workdir"], "code") / request["code"]
    archive = Path(request["archive"])
    try:
        if not code.is_dir():
            with archive.open("rb") as file:
                unpack(file, code)
        archive.unlink(missing_ok=True)
    except FileNotFoundError:
        if not is_listed(code):  # else another connection has unpacked it meanwhile
            raise
    return str(code)


def _venv(request: Message) -> None:
    workdir = Path(request["workdir"]).expanduser()
    try:
        python = make_venv(
            workdir, request["wanted"], request["constraints"], lambda now: answer({"now": now})
        )
    except BuildError as error:
        raise ValueError(str(error)) from error
    answer({"python": str(python)})


def _data(workdir: Path, digest: str) -> None:
    with _telling_life():
        numbers, size = datasets.missing(workdir, digest)
    answer({"missing": numbers, "bytes": size, "free": shutil.disk_usage(workdir).free})


def _workspace(request: Message) -> str:
    run, workdir = Path(request["run"]).expanduser(), Path(request["workdir"]).expanduser()
    shown = {
        path: datasets.show_set(run, digest, workdir) for path, digest in request["links"].items()
    }
    code = Path(request["code"]) if request["code"] else None
    return str(make_workspace(run, int(request["job"]), code, shown))


def _keep(directory: Path, names: list[str]) -> None:
    """Removes all other objects, but for what of these is still arriving."""
    if directory.is_dir():
        for path in directory.iterdir():
            if path.name.removesuffix(_PART) not in names:
                path.unlink(missing_ok=True)
    answer({})


@contextmanager
def _telling_life() -> Iterator[None]:
    """Says that it is alive while the caller sends nothing and does not look at its input."""
    is_done = threading.Event()

    def tell() -> None:
        while not is_done.wait(_ALIVE_EVERY_S):
            answer({"alive": True})

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


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


if __name__ == "__main__":
    main()
