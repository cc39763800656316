"""Exchanges among members on one machine: through its memory, where gloo would use sockets.

Gloo passes every sum around a ring, from process to process: among five that share two cores even
the smallest takes 10 ms. Here each puts its numbers into memory that the others can read, tells
them by a pipe, and adds up everybody's in the order of ranks. Memory and pipes have no name in any
folder: they are gone with their processes.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

_WORDS = struct.Struct("<iqiqq")  # rank, exchanges it has read, file, first byte, bytes
_LEFT = -1  # in place of a file: whoever says so takes no part any more
_ALIGNED = 64
_LEAST_BYTES = _LARGE_BYTES = 1 << 20
_PIPE_BYTES = _WORDS.size * 1024


@dataclass(frozen=True, slots=True)
class _Note:
    """Where a member's numbers of one exchange lie in its memory."""

    file: int
    first: int
    size: int

    @property
    def end(self) -> int:
        return self.first + self.size


@dataclass(slots=True)
class _Member:
    """What one has told so far, this process included."""

    pid: int
    pipe: int  # by which it is told something
    end: int  # readable once its process has ended
    notes: dict[int, _Note] = field(default_factory=dict)  # by exchange, those not read here yet
    told: int = 0  # exchanges
    read: int = 0  # exchanges of which it needs nothing any more
    has_left: bool = False
    memory: dict[int, mmap.mmap] = field(default_factory=dict)  # by file


_left: list[HostGroup] = []  # whose memory others may still read


class Work:
    """An exchange that has begun: as torch's, it is to be waited for."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.wait = finish


class HostGroup:
    """A process group with the few calls of torch's that gangs need.

    Raises OSError where this machine, or another member, does not offer what it takes.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        if sys.platform != "linux":
            raise OSError("only Linux has memory and processes as files")
        while _left:
            _left.pop()._close()
        self._rank = rank
        self._ears, self._mouth = os.pipe()
        os.set_blocking(self._ears, False)
        store.set(f"at/{rank}", f"{os.getpid()} {self._mouth}")
        self._members = [_meet(store.get(f"at/{other}").decode()) for other in range(size)]
        self._me, self._begun = self._members[rank], 0
        self._files: list[int] = []  # of this member; the last is in use
        self._lent: dict[int, _Note] = {}  # by exchange, what somebody may still read
        self._next = 0  # byte
        self._untold = b""
        self._wakes = select.poll()
        others = [member for member in self._members if member is not self._me]
        for watched in (self._ears, *(member.end for member in others)):
            self._wakes.register(watched, select.POLLIN)

    # -- exchanges -----------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> Work:
        [tensor] = tensors
        number = self._lend(tensor)
        add_up = self._add_all if tensor.nbytes < _LARGE_BYTES else self._add_a_part

        def finish() -> None:
            add_up(self._everybodys(number, tensor), tensor.view(-1))
            self._forget(number)

        return Work(finish)

    def _add_all(self, parts: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
        """Everyone for itself: less work than waiting for each other once more."""
        torch.add(parts[0], parts[1], out=flat)
        for part in parts[2:]:
            flat.add_(part)

    def _add_a_part(self, parts: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
        """Each adds up one piece, within its own memory, and all take the sums from there."""
        pieces = [part.tensor_split(len(parts)) for part in parts]
        mine = pieces[self._rank][self._rank]
        for rank, theirs in enumerate(pieces):
            if rank != self._rank:
                mine.add_(theirs[self._rank])
        added = self._lend(flat[:0])
        self._everybodys(added, flat[:0])
        for rank, place in enumerate(flat.tensor_split(len(parts))):
            place.copy_(pieces[rank][rank])
        self._forget(added)

    def allgather(
        self, rooms: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor]
    ) -> Work:
        [tensor] = tensors
        number = self._lend(tensor)

        def finish() -> None:
            for room, part in zip(rooms[0], self._everybodys(number, tensor), strict=True):
                room.view(-1).copy_(part)
            self._forget(number)

        return Work(finish)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> Work:
        """Rank 0's, to everybody."""
        [tensor] = tensors
        number = self._lend(tensor)

        def finish() -> None:
            tensor.view(-1).copy_(self._everybodys(number, tensor)[0])
            self._forget(number)

        return Work(finish)

    def shutdown(self) -> None:
        """Leaves; whoever waits for this member hears of it at once. Others may still be reading
        what it told last: its memory is given back when the next group begins."""
        self._tell(_Note(_LEFT, 0, 0))
        self._tell_others()
        _left.append(self)

    def _close(self) -> None:
        held = [file for member in self._members for file in (member.pipe, member.end)]
        for file in (self._ears, self._mouth, *self._files, *held):
            os.close(file)

    # -- this member's numbers -----------------------------------------------------------------

    def _lend(self, tensor: torch.Tensor) -> int:
        """Puts the numbers where the others can read them; the exchange's number."""
        note = self._room(tensor.nbytes)
        self._view(self._me, note, tensor).copy_(tensor.view(-1))
        number, self._begun = self._begun, self._begun + 1
        self._lent[number] = note
        self._hear(self._rank, note)
        self._tell(note)
        return number

    def _room(self, size: int) -> _Note:
        """Memory that nobody reads any more: behind the last, at the front, or in a new file."""
        self._listen()
        done = min(member.read for member in self._members)
        self._lent = {number: note for number, note in self._lent.items() if number >= done}
        file = self._files[-1] if self._files else -1
        in_use = [note for note in self._lent.values() if note.file == file]
        whole = len(self._me.memory[file]) if self._files else 0
        for first in (self._next, 0):
            end = first + size
            if end <= whole and all(n.end <= first or end <= n.first for n in in_use):
                break
        else:
            file, first, end = os.memfd_create("hadar gang"), 0, size
            os.truncate(file, max(_LEAST_BYTES, 2 * whole, 4 * size))
            self._files.append(file)
            self._memory_of(self._me, file)
        self._next = -(-end // _ALIGNED) * _ALIGNED
        return _Note(file, first, size)

    def _tell(self, note: _Note) -> None:
        """Once this member waits itself: nobody needs to know before, and each word that arrives
        wakes one who waits."""
        words = _WORDS.pack(self._rank, self._me.read, note.file, note.first, note.size)
        if len(self._untold) + len(words) > select.PIPE_BUF:  # beyond it, words could be mixed up
            self._tell_others()
        self._untold += words

    def _tell_others(self) -> None:
        words, self._untold = self._untold, b""
        for member in self._members if words else ():
            if member is not self._me:
                with suppress(OSError):  # whoever is gone is missed when it is waited for
                    os.write(member.pipe, words)

    def _forget(self, number: int) -> None:
        for member in self._members:
            del member.notes[number]
        self._me.read = min(self._me.notes, default=self._begun)

    # -- the others' ---------------------------------------------------------------------------

    def _everybodys(self, number: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """By rank, once all have told theirs."""
        self._tell_others()
        while missing := [m for m in self._members if number not in m.notes]:
            if gone := next((m for m in missing if m.has_left), None):
                raise RuntimeError(f"rank {self._members.index(gone)} has ended")
            ready = {file for file, _ in self._wakes.poll()}
            self._listen()  # to what one said before it ended, too
            for member in self._members:
                if member.end in ready:
                    member.has_left = True
                    self._wakes.unregister(member.end)
        return [self._view(member, member.notes[number], tensor) for member in self._members]

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            for rank, read, *where in _WORDS.iter_unpack(os.read(self._ears, _PIPE_BYTES)):
                self._members[rank].read = read
                self._hear(rank, _Note(*where))

    def _hear(self, rank: int, note: _Note) -> None:
        member = self._members[rank]
        if note.file == _LEFT:
            member.has_left = True
        else:
            member.notes[member.told] = note
            member.told += 1

    def _view(self, member: _Member, note: _Note, like: torch.Tensor) -> torch.Tensor:
        if note.size != like.nbytes:
            raise RuntimeError("members exchange numbers of different sizes")
        if not note.size:
            return like.view(-1)
        memory = self._memory_of(member, note.file)
        return torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=note.first)

    def _memory_of(self, member: _Member, file: int) -> mmap.mmap:
        if file not in member.memory:
            opened = os.open(f"/proc/{member.pid}/fd/{file}", os.O_RDWR)
            try:
                member.memory[file] = mmap.mmap(opened, 0)
            finally:
                os.close(opened)
        return member.memory[file]


def _meet(where: str) -> _Member:
    pid, mouth = map(int, where.split())
    return _Member(pid, os.open(f"/proc/{pid}/fd/{mouth}", os.O_WRONLY), os.pidfd_open(pid))
