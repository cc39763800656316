"""The first code on a node: puts the package there, by its hash, and becomes a part of it.

The head runs ``COMMAND``, a constant that every login shell reads alike, and sends this file's
text as one line of JSON. The next line is a request:

    {"workdir": "~/.hadar", "code": "<hash>", "bytes": 123456, "become": "agent"}

Without the code, the node asks for it and takes that many bytes of a tar archive. In the workdir:

    code/<hash>/        the package, and the jobs' code folders; 0700 like all else
    runs/<run>/<node>/  workers, attempts and objects of a run
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import io
import json
import os
import secrets
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any

# A Python that is too old says which it is: it could not even read what follows.
COMMAND = (
    "-I -c 'import io,json,sys;sys.version_info<(3,10)and sys.exit(sys.version);"
    "exec(json.loads(io.FileIO(0,closefd=False).readline()))'"
)
MARK = "@hadar "  # in front of every answer, so that login noise is never read as one
_LARGEST_PACKAGE = 64 << 20


def main() -> None:
    os.umask(0o077)
    stdin = io.FileIO(0, closefd=False)  # unbuffered: what follows belongs to the next reader
    request = json.loads(stdin.readline())
    os.write(1, b"\n")  # ends a line that the login may have begun
    try:
        code = private_directory(request["workdir"], "code") / request["code"]
        if not code.is_dir():
            answer({"needs": "code"})
            unpack(io.BytesIO(_receive(stdin, int(request["bytes"]), request["code"])), code)
    except (OSError, ValueError) as error:
        answer(refusal(error))
        return
    sys.path.insert(0, str(code))
    part = importlib.import_module(f"hadar_cli.node.agent.{request['become']}")
    answer({"ready": True, "python": sys.version.split()[0], "pid": os.getpid()})
    part.main()


def answer(message: dict[str, Any]) -> None:
    """Tells the head; one line of JSON behind the mark."""
    line = memoryview((MARK + json.dumps(message) + "\n").encode())
    while line:
        line = line[os.write(1, line) :]


def refusal(error: Exception) -> dict[str, str]:
    """An error as an answer, with what to do about it where that is known."""
    if not isinstance(error, OSError) or not error.strerror:
        is_said = isinstance(error, (OSError, ValueError))  # in words, for people
        return {"error": str(error) if is_said else f"{type(error).__name__}: {error}"}
    what = f"{error.filename or 'file'}: {error.strerror}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            fix = "free some there, set another workdir in nodes.toml, or: hadar clean"
            return {"error": f"its disk is full ({error.strerror})", "fix": fix}
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return {"error": what, "fix": "set a workdir in nodes.toml that may be written to"}
    return {"error": what}


def private_directory(workdir: str, *names: str) -> Path:
    """A directory below the workdir, made if need be; refused when others may write there."""
    path = Path(workdir).expanduser()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("", *names):
        path = path / name
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            raise PermissionError(f"{path}: others may write there; choose another workdir")
    return path


def unpack(archive: IO[bytes], target: Path) -> None:
    """Makes ``target`` of a tar archive of plain files, whole or not at all."""
    # Other machines may share the disk: a pid would not tell them apart.
    scratch = target.with_name(f"{target.name}.{secrets.token_hex(6)}.part")
    try:
        scratch.mkdir(mode=0o700)
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for member in tar:
                _unpack_file(tar, member, scratch)
        scratch.rename(target)
    except OSError:
        if not is_listed(target):  # or else another connection was first
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_listed(path: Path) -> bool:
    """Whether it is there by a new look into its folder: a network's disk remembers for half a
    minute that another machine had not made it yet."""
    return path.name in os.listdir(path.parent)  # noqa: PTH208


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    parts = PurePosixPath(member.name).parts
    content = tar.extractfile(member) if member.isreg() else None
    if content is None or not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"the archive holds {member.name!r}, which is no plain file")
    path = root.joinpath(*parts)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o700 if member.mode & 0o100 else 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file)


def _receive(stdin: io.FileIO, size: int, digest: str) -> bytes:
    if size > _LARGEST_PACKAGE:
        raise ValueError(f"{size} bytes are too many for the package")
    content = bytearray()
    while len(content) < size:
        chunk = stdin.read(min(1 << 16, size - len(content)))
        if not chunk:
            raise ValueError("the connection ended within the package")
        content += chunk
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError("the package arrived damaged")
    return bytes(content)


if __name__ == "__main__":
    main()
