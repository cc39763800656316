"""Data that jobs share on a node: each file once, named by its hash, whichever set it belongs to.

    <workdir>/data/files/ab/abcd…     contents, sealed: read-only, and with a time stamp of ours
    <workdir>/data/sets/<hash>        a set's manifest: [[sha256, bytes, path], …]; [["…", 9, ""]]
                                      is a set that is one file
    <run>/data/<hash>/                a set as its script sees it: links to the contents

A script may write beside the data it reads: that goes to its run's own folder. One that changes a
content in place breaks its seal, and it is looked at again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

Entry = tuple[str, int, str]  # sha256, bytes, path within the set
_SEAL_S = 1_000_000_000  # the modification time of a content that nobody has touched
_CHUNK = 1 << 20
_MOST_TOLD = 10_000  # of what is missing, in one answer


def contents(workdir: Path) -> Path:
    return workdir / "data" / "files"


def content_path(workdir: Path, digest: str) -> Path:
    return contents(workdir) / digest[:2] / digest


def read_manifest(workdir: Path, digest: str) -> list[Entry]:
    """A set's files; raises ValueError for names that would lead out of it."""
    text = (workdir / "data" / "sets" / digest).read_text()
    entries = [(str(sha), int(size), str(name)) for sha, size, name in json.loads(text)]
    for sha, _, name in entries:
        parts = PurePosixPath(name).parts
        if ".." in parts or name.startswith("/") or len(sha) != 64 or not sha.isalnum():
            raise ValueError(f"the data set holds {name!r}, which cannot be")
    return entries


def missing(workdir: Path, digest: str) -> tuple[list[int], int]:
    """Numbers of the set's first files that are not here, and the bytes of all that are not."""
    numbers: list[int] = []
    size, seen = 0, set()
    for number, (sha, length, _) in enumerate(read_manifest(workdir, digest)):
        if sha in seen or _is_here(content_path(workdir, sha), length):
            continue
        seen.add(sha)
        size += length
        if len(numbers) < _MOST_TOLD:
            numbers.append(number)
    return numbers, size


def _is_here(path: Path, length: int) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    if facts.st_size == length and facts.st_mtime == _SEAL_S:
        return True
    if facts.st_size == length and _sha256(path) == path.name:
        seal(path)
        return True
    path.unlink()  # changed where it lay, or torn by a crash
    return False


def seal(path: Path) -> None:
    path.chmod(0o400)
    os.utime(path, (_SEAL_S, _SEAL_S))


def take_in_pack(archive: Path, workdir: Path) -> None:
    """Puts the files of a tar archive, named by their hashes, where contents lie."""
    with tarfile.open(archive, mode="r:") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or len(member.name) != 64 or not member.name.isalnum():
                raise ValueError(f"the pack holds {member.name!r}, which is no content")
            path = content_path(workdir, member.name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{secrets.token_hex(6)}.pack")
            try:
                with part.open("wb") as file:
                    shutil.copyfileobj(content, file, _CHUNK)
                if _sha256(part) != member.name:
                    raise ValueError("a file of the pack arrived damaged")
                seal(part)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    archive.unlink(missing_ok=True)


def show_set(run: Path, digest: str, workdir: Path) -> Path:
    """The set as a run's scripts see it: a folder of links, or one content."""
    entries = read_manifest(workdir, digest)
    if [name for _, _, name in entries] == [""]:
        return content_path(workdir, entries[0][0])
    return show_files(
        run / "data" / digest, ((name, content_path(workdir, sha)) for sha, _, name in entries)
    )


def show_files(folder: Path, links: Iterable[tuple[str, Path]]) -> Path:
    """A folder of links to files, made whole or not at all."""
    if folder.is_dir():
        return folder
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700, parents=True)
    made = {""}
    for name, target in links:
        parent = name.rpartition("/")[0]
        if parent not in made:
            made.add(parent)
            (scratch / parent).mkdir(mode=0o700, parents=True, exist_ok=True)
        (scratch / name).symlink_to(target)
    with suppress(OSError):  # another connection was first
        scratch.rename(folder)
    shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
