"""Where the members of a gang find each other, and how each knows that the others still live.

They use process groups of their own, not torch.distributed's global one: a library that finds that
set up would divide the work among the processes in its own way.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from hadar_cli.node.contract import Membership
from hadar_cli.node.log_phrases import MEMBER_LOST
from hadar_cli.node.network import listening, own_address, place_of
from hadar_cli.node.training.gangs.errors import CannotShare, MemberLost
from hadar_cli.node.training.gangs.same_host import HostGroup

_c10d: Any = distributed  # what it offers differs from torch to torch
_MEET_S = 300.0  # until all are there: a start on the slowest node
_LONGEST_WAIT_S = 86_400.0  # for others at their own work: that they live is watched apart
_KNOCK_S = 10.0  # for another member's machine to answer at all
_AGAIN_S = 0.2
_BEAT_S = 2.0
_SILENCE_S = 60.0  # of a member; no limit for one that works, however long
_LEFT_BEHIND = 70  # exit code


class Meeting:
    """A gang that has met: its groups for gradients and for numbers, and the watch on it."""

    def __init__(self, member: Membership, device: torch.device) -> None:
        if not distributed.is_available():
            raise CannotShare(f"torch {torch.__version__} on this node has no torch.distributed")
        self.member, self.device = member, device
        store = _store(member)
        self._store = _c10d.PrefixStore(member.gang, store)
        address = own_address(place_of(member.meets_at))
        try:
            if not place_of(member.meets_at).path:
                require_reach(self._store, member, address)
            backends = self._tell_all("backend", _backend(device))
            self.is_on_host = set(backends) != {"nccl"}  # what travels passes through main memory
            self.is_direct = device.type == "cpu" or not self.is_on_host
            # Apart, so that one who is elsewhere in its step still hears where the others are.
            self.numbers = self._group("numbers", address)
            self.gradients = (
                self._group("gradients", address)
                if self.is_on_host
                else _nccl(_c10d.PrefixStore("nccl", self._store), member)
            )
        except RuntimeError as error:
            raise MemberLost(f"the gang of {member.size} did not meet: {error}") from error
        self._watch = _Watch(self._store, member)

    def need_all(self, is_needed: bool) -> None:
        """Whether this process waits for the others: only then does their silence end it."""
        self._watch.is_needed = is_needed

    def close(self) -> None:
        """Leaves: the others see it at their next exchange at the latest."""
        self._watch.end()
        for group in {id(g): g for g in (self.numbers, self.gradients)}.values():
            if hasattr(group, "shutdown"):
                group.shutdown()

    def _tell_all(self, key: str, word: str) -> list[str]:
        """What every member says of itself."""
        self._store.set(f"{key}/{self.member.rank}", word)
        return [self._hear(f"{key}/{rank}", rank) for rank in range(self.member.size)]

    def _hear(self, key: str, rank: int) -> str:
        try:
            return str(self._store.get(key).decode())
        except RuntimeError as error:
            raise MemberLost(f"rank {rank} has not come: {error}") from error

    def _group(self, name: str, address: str) -> Any:
        """Through memory where all members can: on one machine, with a kernel that is not old."""
        store, member = _c10d.PrefixStore(name, self._store), self.member
        if place_of(member.meets_at).path:
            try:
                near = HostGroup(store, member.rank, member.size)
            except OSError as error:
                store.set(f"at/{member.rank}", "0 0")  # nobody's, for those who look for it
                near, why = None, f"gangs exchange by loopback on this machine: {error}"
                print(f"hadar: {why}", file=sys.stderr)
            if set(self._tell_all(f"{name} by memory", str(bool(near)))) == {"True"}:
                return near
        return _gloo(store, member, address)

    # -- exchanges ---------------------------------------------------------------------------

    def sum_later(self, tensor: torch.Tensor) -> Any:
        """Begins to add up the tensor, in place, over all members."""
        return self._guarded(lambda: self.gradients.allreduce([tensor]))

    def gather(self, row: list[float]) -> list[list[float]]:
        """Everyone's numbers."""
        mine = torch.tensor(row, dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.member.size)]
        self.wait(self._guarded(lambda: self.numbers.allgather([found], [mine])))
        return [theirs.tolist() for theirs in found]

    def from_first(self, tensors: list[torch.Tensor]) -> None:
        """Puts rank 0's values into everybody's tensors."""
        for tensor in tensors:
            sent = tensor.detach() if self.is_direct else tensor.detach().cpu()
            sent = sent.contiguous()
            view = torch.view_as_real(sent) if sent.is_complex() else sent
            self.wait(self._guarded(lambda view=view: self.gradients.broadcast([view])))
            with torch.no_grad():
                tensor.copy_(sent)

    def wait(self, work: Any) -> None:
        self._guarded(work.wait)

    def _guarded(self, action: Any) -> Any:
        try:
            return action()
        except RuntimeError as error:
            raise MemberLost(
                f"a member of the gang is gone (this is rank {self.member.rank} of "
                f"{self.member.size}): {error}"
            ) from error


def require_reach(store: Any, member: Membership, address: str) -> None:
    """Refuses a gang of which this member does not reach another.

    Gloo would wait for that one as long as for any step: a firewall mostly drops what it forbids.
    """
    with listening(address, 0) as door:
        store.set(f"door/{member.rank}", f"{address} {door.getsockname()[1]}")
        for rank in range(member.size):
            if rank != member.rank:
                host, port = store.get(f"door/{rank}").decode().split()
                _knock(rank, host, int(port))
        store.set(f"seen/{member.rank}", "")
        store.wait([f"seen/{rank}" for rank in range(member.size)])


def _knock(rank: int, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=_KNOCK_S).close()
    except OSError as error:
        why = error.strerror or "no answer"
        raise MemberLost(
            f"rank {rank} is not reached at {host}: {why}; let the machines of this network open "
            "TCP connections to each other (`hadar check` tells who reaches whom)"
        ) from error


def await_first(host: str, port: int) -> None:
    """Waits for rank 0 to listen. A machine that refuses is there, and rank 0 may still come; of
    one that does not answer at all nothing is to be hoped for: torch would try for minutes."""
    deadline = time.monotonic() + _MEET_S
    while True:
        try:
            return _knock(0, host, port)
        except MemberLost as error:
            is_there = isinstance(error.__cause__, ConnectionRefusedError)
            if not is_there or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_S)


class _Watch:
    """Ends this process when another member has been silent for too long.

    A process that is stopped, or cut off, sends no signal: the exchange with it would wait for
    ever, and it cannot be left from within.
    """

    def __init__(self, store: Any, member: Membership) -> None:
        self._store, self._member = store, member
        self._over = threading.Event()
        self.is_needed = False  # whether anybody is waited for: between orders nobody is
        self._heard: dict[int, tuple[bytes, float]] = {}
        threading.Thread(target=self._watch, name="hadar gang watch", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        beats, answered_at = 0, time.monotonic()
        others = [rank for rank in range(self._member.size) if rank != self._member.rank]
        while not self._over.wait(_BEAT_S):
            beats += 1
            try:
                self._store.set(f"beat/{self._member.rank}", str(beats))
                for rank in others:
                    self._listen(rank)
                answered_at = time.monotonic()
            except RuntimeError as error:  # rank 0's store: it may be gone, or only slow
                if time.monotonic() > answered_at + _SILENCE_S:
                    self._leave(f"rank 0 does not answer: {error}")

    def _listen(self, rank: int) -> None:
        key, now = f"beat/{rank}", time.monotonic()
        beat = self._store.get(key) if self._store.check([key]) else b""
        last, since = self._heard.setdefault(rank, (beat, now))
        if beat != last:
            self._heard[rank] = (beat, now)
        elif now > since + _SILENCE_S:
            self._leave(f"rank {rank} has said nothing for {now - since:.0f} s")

    def _leave(self, why: str) -> None:
        if self.is_needed and not self._over.is_set():
            print(f"{MEMBER_LOST}: {why}", file=sys.stderr, flush=True)
            os._exit(_LEFT_BEHIND)


def _store(member: Membership) -> Any:
    patience = timedelta(seconds=_MEET_S)
    place = place_of(member.meets_at)
    if place.path:
        Path(place.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = _c10d.FileStore(place.path, member.size)
        store.set_timeout(patience)
        return store
    if member.rank:
        await_first(place.host, place.port)
        try:
            return _c10d.TCPStore(place.host, place.port, timeout=patience)
        except RuntimeError as error:
            raise MemberLost(f"rank 0 is not at {member.meets_at}: {error}") from error
    try:
        place_taken = listening(place.host, place.port)  # where torch would listen everywhere
    except OSError as error:
        raise MemberLost(f"rank 0 cannot listen at {member.meets_at}: {error}") from error
    return _c10d.TCPStore(
        place.host,
        place.port,
        is_master=True,
        timeout=patience,
        wait_for_workers=False,
        master_listen_fd=place_taken.detach(),
    )


def _backend(device: torch.device) -> str:
    """Cards of one vendor speak NCCL (RCCL has its name too); others meet in main memory."""
    if device.type != "cuda" or not distributed.is_nccl_available():
        return "gloo"
    return "nccl" if torch.version.cuda else "rccl"


def _gloo(store: Any, member: Membership, address: str) -> Any:
    options = _c10d.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=_LONGEST_WAIT_S)
    options._threads = 2
    options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=address)]
    return _c10d.ProcessGroupGloo(store, member.rank, member.size, options)


def _nccl(store: Any, member: Membership) -> Any:
    options = _c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=_LONGEST_WAIT_S)
    return _c10d.ProcessGroupNCCL(store, member.rank, member.size, options)
