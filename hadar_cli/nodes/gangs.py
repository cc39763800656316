"""One attempt, many processes: a gang's order as its members' orders, their reports as one.

A state machine without threads, sockets or clocks, like ``session/decisions.py``: the executor, and
the one of ``tests/faults``, carry out what ``take`` returns. Rank 0 hands in for all, as every step
needed every member. One member lost is the attempt lost: the others are let go at once, for they
would wait for it forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias
from urllib.parse import quote

from hadar_cli.core.model import Node
from hadar_cli.core.reasons import Loss
from hadar_cli.engine.ports import CopyOrder, Failed, HandedIn, Moving, Progressed, Report
from hadar_cli.node.contract import Membership

_TRAILS_S = 5.0  # as long are the others waited for, once the outcome is known


@dataclass(frozen=True, slots=True)
class MemberOrder(CopyOrder):
    """The order of one process of a gang."""

    member: Membership | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Give this order to its device's session."""

    order: CopyOrder


@dataclass(frozen=True, slots=True)
class Abandon:
    """End these members' processes: nobody wants what they have."""

    attempts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindPort:
    """Ask the device's node for a free port of its address; then ``port_found`` or ``no_port``."""

    attempt: str
    device: str
    address: str


@dataclass(frozen=True, slots=True)
class PortAnswer:
    """What came of a ``FindPort``: a port, or why there is none."""

    attempt: str
    port: int
    why: str = ""
    is_gone: bool = False  # the node cannot be asked


@dataclass(frozen=True, slots=True)
class TellHead:
    report: Report


Action: TypeAlias = Start | Abandon | FindPort | TellHead


@dataclass(slots=True)
class _Gang:
    """An attempt of several members, until its end is told."""

    order: CopyOrder
    members: tuple[str, ...]  # their attempts, by rank; the first is the gang's own
    awaited: set[str] = field(default_factory=set)  # those whose end is not known
    is_sent: bool = False  # or else it waits for a port, or for the one that it follows
    is_warm: bool = True
    stays: bool = True
    first: HandedIn | None = None  # of rank 0
    bereaved: Failed | None = None  # of one who ended because of another
    settles_by: float = 0.0  # whatever those who are awaited have to say


class Gangs:
    """All gangs of one executor. ``directories`` are the run's, by node."""

    def __init__(self, nodes: Sequence[Node], directories: Mapping[str, str]) -> None:
        self._node_of = {device.name: node for node in nodes for device in node.devices}
        self._directories = directories
        self._gangs: dict[str, _Gang] = {}  # by attempt
        self._gang_of: dict[str, str] = {}  # by a member's attempt
        # By attempt under way or followed: the name of its gang, and where its members met.
        self._names: dict[str, tuple[str, str]] = {}
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        """What is to be done, in this order, since the last call."""
        taken, self._actions = self._actions, []
        return taken

    # -- what the head wants -------------------------------------------------------------------

    def start(self, order: CopyOrder) -> None:
        if not order.gang:
            self._actions.append(Start(order))
            return
        gang, before = self._hold(order), self._gangs.get(order.follows)
        if before and not before.is_sent:
            return
        if order.follows in self._names:  # its members know each other
            self._send(gang, *self._names[order.follows])
            return
        first = self._node_of[order.device]
        if len({self._node_of[device].machine for device in order.devices}) == 1:
            self._send(gang, order.attempt, f"file://{self._meeting_file(first, order.attempt)}")
        else:
            self._actions.append(FindPort(order.attempt, order.device, address_of(first)))

    def adopt(self, orders: Iterable[CopyOrder]) -> list[CopyOrder]:
        """Orders that an earlier head gave, as those of their processes."""
        members: list[CopyOrder] = []
        for order in orders:
            members += self._members(self._hold(order)) if order.gang else [order]
        return members

    def port_found(self, attempt: str, port: int) -> None:
        if gang := self._gangs.get(attempt):
            address = address_of(self._node_of[gang.order.device])
            host = f"[{address}]" if ":" in address else address
            self._send(gang, attempt, f"tcp://{host}:{port}")

    def no_port(self, attempt: str, why: str, is_gone: bool = False) -> None:
        if gang := self._gangs.get(attempt):
            self._end(gang)
            device = gang.order.device
            if is_gone:
                told = f"{Loss.NODE_GONE.text}: {why}"
                self._tell(Failed(attempt, Loss.NODE_GONE, told, "", device))
                return
            told = f"its members cannot meet at {address_of(self._node_of[device])}: {why}"
            self._tell(Failed(attempt, Loss.CANNOT_MEET, told, "", device))

    def members_of(self, attempts: Sequence[str]) -> list[str]:
        """The attempts of all processes of these."""
        gangs = [(attempt, self._gangs.get(attempt)) for attempt in attempts]
        return [one for attempt, gang in gangs for one in (gang.members if gang else (attempt,))]

    # -- what comes back -----------------------------------------------------------------------

    def hear(self, report: Report, now: float) -> None:
        """A session's report: of no gang's member it is passed on as it is."""
        attempt = getattr(report, "attempt", None)
        gang = self._gangs.get(self._gang_of.get(attempt, "")) if attempt else None
        if gang is None:
            if not (attempt and is_member(attempt)):
                self._tell(report)
            return
        match report:
            case HandedIn():
                self._take_result(gang, report, now)
            case Failed():
                self._take_loss(gang, report, now)
            case Progressed() if attempt == gang.order.attempt:
                self._tell(report)
            case Moving():
                self._tell(replace(report, attempt=gang.order.attempt))

    def look(self, now: float) -> None:
        """From time to time: nobody waits long for those who trail."""
        for gang in list(self._gangs.values()):
            if gang.first and now > gang.settles_by:
                self._hand_in(gang, stays=False)
            elif gang.bereaved and now > gang.settles_by:
                self._lose(gang, gang.bereaved)

    def _take_result(self, gang: _Gang, report: HandedIn, now: float) -> None:
        gang.awaited.discard(report.attempt)
        gang.is_warm &= report.warm
        gang.stays &= report.stays
        if report.attempt == gang.order.attempt:
            gang.first, gang.settles_by = report, now + _TRAILS_S
        if not gang.awaited:
            self._hand_in(gang, gang.stays)

    def _take_loss(self, gang: _Gang, report: Failed, now: float) -> None:
        gang.awaited.discard(report.attempt)
        if gang.first:  # all steps are done: it costs no more than a process
            gang.stays = False
            if not gang.awaited:
                self._hand_in(gang, stays=False)
        elif report.reason is Loss.MEMBER_LOST and gang.awaited:
            if not gang.bereaved:  # another one knows more
                gang.bereaved, gang.settles_by = report, now + _TRAILS_S
        elif report.reason is Loss.MEMBER_LOST:
            self._lose(gang, gang.bereaved or report)
        else:
            self._lose(gang, report)

    def _lose(self, gang: _Gang, report: Failed) -> None:
        rank = gang.members.index(report.attempt)
        device = gang.order.devices[rank]
        self._end(gang)
        why = f"its member on {device}: {report.why}"
        self._tell(Failed(gang.order.attempt, report.reason, why, report.log, device))

    def _hand_in(self, gang: _Gang, stays: bool) -> None:
        assert gang.first
        self._end(gang)
        self._tell(replace(gang.first, warm=gang.is_warm, stays=stays))

    def _end(self, gang: _Gang) -> None:
        """Nobody listens to it any more, and nobody of it is left at work."""
        del self._gangs[gang.order.attempt]
        for member in gang.members:
            del self._gang_of[member]
        if left := tuple(member for member in gang.members if member in gang.awaited):
            self._actions.append(Abandon(left))
        in_use = {*self._gangs, *(other.order.follows for other in self._gangs.values())}
        in_use.add(gang.order.attempt)  # the next one may follow it
        self._names = {a: name for a, name in self._names.items() if a in in_use}
        for following in self._unsent_after(gang):
            self._end(following)
            attempt, gone = following.order.attempt, Loss.PROCESS_GONE
            self._tell(Failed(attempt, gone, gone.text, "", following.order.device))

    def _meeting_file(self, node: Node, attempt: str) -> str:
        path = quote(f"{self._directories[node.name]}/gangs/{attempt}")
        return path if path.startswith("/") else f"/{path}"

    # -- members -------------------------------------------------------------------------------

    def _hold(self, order: CopyOrder) -> _Gang:
        members = tuple(member_attempt(order.attempt, rank) for rank in range(len(order.gang)))
        gang = self._gangs[order.attempt] = _Gang(order, members)
        self._gang_of |= dict.fromkeys(members, order.attempt)
        return gang

    def _send(self, gang: _Gang, name: str, meets_at: str) -> None:
        self._names[gang.order.attempt] = (name, meets_at)
        self._actions += [Start(order) for order in self._members(gang)]
        for following in self._unsent_after(gang):
            self._send(following, name, meets_at)

    def _unsent_after(self, gang: _Gang) -> list[_Gang]:
        before = gang.order.attempt
        return [g for g in self._gangs.values() if g.order.follows == before and not g.is_sent]

    def _members(self, gang: _Gang) -> list[CopyOrder]:
        gang.awaited, gang.is_sent = set(gang.members), True
        return [self._member(gang, rank) for rank in range(len(gang.members))]

    def _member(self, gang: _Gang, rank: int) -> MemberOrder:
        order, size = gang.order, len(gang.members)
        name, meets_at = self._names.get(order.attempt, (order.attempt, ""))
        given = {one.name: getattr(order, one.name) for one in fields(CopyOrder)}
        return MemberOrder(
            **given
            | {
                "attempt": gang.members[rank],
                "device": order.devices[rank],
                "gang": (),
                "follows": member_attempt(order.follows, rank) if order.follows else "",
                "returns_weights": rank == 0,
                "evaluate": order.evaluate and rank == 0,
                # Each may hold another optimizer state of its own: all take the one that is sent.
                "merged_of": (),
                "member": Membership(name, rank, size, meets_at, order.shares),
            }
        )

    def _tell(self, report: Report) -> None:
        self._actions.append(TellHead(report))

    def validate(self) -> None:
        """Raises AssertionError where the state is one that cannot be."""
        members = {member: a for a, gang in self._gangs.items() for member in gang.members}
        assert self._gang_of == members, "a member is of no gang, or of two"
        for attempt, gang in self._gangs.items():
            assert gang.members[0] == attempt == gang.order.attempt
            assert gang.awaited <= set(gang.members)
            assert (gang.first is None) or attempt not in gang.awaited, "it ended twice"


def member_attempt(attempt: str, rank: int) -> str:
    """Rank 0's is the gang's own, by which everybody knows it."""
    return f"{attempt}.{rank}" if rank else attempt


def is_member(attempt: str) -> bool:
    """Whether it is of a member other than rank 0."""
    return "." in attempt


def address_of(node: Node) -> str:
    """Where the node's gangs listen."""
    return node.address or node.host
