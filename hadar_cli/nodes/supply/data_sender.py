"""Sends a data set to a node: what is not there yet, in packs and large files, after a cut on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.wire import AgentError, read_as
from hadar_cli.project.data import ALONE_BYTES, DataSet, Tell, next_pack

_SPARE = 1 << 30  # of the node's disk, never filled by data


@dataclass(frozen=True, slots=True)
class _Missing:
    missing: list[int]  # numbers of files, the first of them
    bytes: int  # of all that are
    free: int


class DataSender:
    """For one node. ``session`` gives a way for files of a size; ``scratch`` is the head's."""

    def __init__(
        self,
        session: Callable[[int], AbstractContextManager[TransferSession]],
        workdir: str,
        scratch: Path,
    ) -> None:
        self._session, self._workdir, self._scratch = session, workdir, scratch

    def send(self, held: DataSet, tell: Tell) -> None:
        """Returns when the set is on the node, whole."""
        self._scratch.write_bytes(held.manifest)
        with self._session(len(held.manifest)) as files:
            files.put(self._scratch, held.digest, f"{self._workdir}/data/sets")
        left = total = None
        while (found := self._look(held)).missing:
            if left is not None and found.bytes >= left:
                raise AgentError("it does not keep the data that it is sent")
            left, total = found.bytes, found.bytes if total is None else total
            tell(total - left, total)
            self._send_some(held, found.missing, total - left, total, tell)
        self._scratch.unlink(missing_ok=True)

    def _look(self, held: DataSet) -> _Missing:
        with self._session(0) as files:
            answer = files.ask("data", workdir=self._workdir, data=held.digest)
        found = read_as(answer, _Missing)
        if not all(0 <= number < len(held.files) for number in found.missing):
            raise AgentError("it misses files that the data set does not have")
        if found.bytes > found.free - _SPARE:
            raise AgentError(
                f"its disk has {found.free / 1e9:.3g} GB free, and {found.bytes / 1e9:.3g} GB of "
                f"{held.source} are to be sent, with 1 GB to spare",
                fix="free some there, set another workdir in nodes.toml, or: hadar clean",
            )
        return found

    def _send_some(
        self, held: DataSet, missing: list[int], done: int, total: int, tell: Tell
    ) -> None:
        while missing:
            file = held.files[missing[0]]
            if file.bytes >= ALONE_BYTES:
                digest, taken, path = held.hashes[missing[0]], 1, file.path
                place = f"{self._workdir}/data/files/{digest[:2]}"
            else:
                digest, taken = next_pack(held, missing, self._scratch)
                path, place = self._scratch, f"{self._workdir}/data/arriving"
            is_alone = path == file.path
            told = partial(_tell_from, tell, done, total)
            with self._session(path.stat().st_size) as files:
                sent, _ = files.put(path, digest, place, is_alone, told)
                if not is_alone:
                    files.ask("pack", workdir=self._workdir, archive=sent)
            done += sum(held.files[number].bytes for number in missing[:taken])
            missing = missing[taken:]


def _tell_from(tell: Tell, before: int, total: int, now: int) -> None:
    tell(min(before + now, total), total)
