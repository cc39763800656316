"""Carries out what a node session decides: its threads, its connection, its transfers.

Each node has threads of its own, so that none waits for another node, nor the watchdog for its
own: one connects, one speaks (renewals, releases), one listens (the agent's client), two a device
move files, side by side, and the watchdog looks once a second, and cuts a link on which nothing is
heard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeAlias

from hadar_cli.engine.ports import CopyOrder, Report
from hadar_cli.errors import HadarError, StorageError
from hadar_cli.node.contract import Assignment
from hadar_cli.nodes.agent_client import AgentLink
from hadar_cli.nodes.connection import Connection, TellMoved
from hadar_cli.nodes.gangs import PortAnswer
from hadar_cli.nodes.orders import order_request, read_exited, read_finished, read_progress
from hadar_cli.nodes.session import decisions
from hadar_cli.nodes.session.decisions import NodeSession
from hadar_cli.nodes.session.instructions import (
    Abort,
    Connect,
    Disconnect,
    EndWorkers,
    Fetch,
    Forget,
    Instruction,
    Release,
    Renew,
    Send,
    Tell,
)
from hadar_cli.nodes.session.state import Phase, checkpoints_of
from hadar_cli.nodes.wire import AgentError, LinkLostError, Message, SupersededError, read_as, said

_STILL_OPENING_S = 3.0  # as long is waited for a node when the run ends
_LOOK_FOR_LINK_S = 0.05
_END_S = 15.0  # for workers to end, beyond their grace
_TELL_EVERY_S = 0.5  # that files move

P = ParamSpec("P")
TellHead: TypeAlias = Callable[["Report | HadarError"], None]


@dataclass(frozen=True, slots=True)
class _Opened:
    attempts: dict[str, Assignment]


@dataclass(frozen=True, slots=True)
class _Port:
    port: int


class SessionThreads:
    """One node's session, alive. ``tell`` takes reports, and errors no node is to blame for."""

    def __init__(
        self, connection: Connection, epoch: int, tell: TellHead, imports: Sequence[str] = ()
    ) -> None:
        self._connection, self._epoch, self._tell = connection, epoch, tell
        self._imports = list(imports)
        self.name, self.devices = connection.node.name, connection.node.devices
        self._session = NodeSession(connection.node, epoch)
        self._deciding = threading.RLock()  # held for decisions only, never while waiting
        self._link: AgentLink | None = None
        self._was_open = False
        self._closing = threading.Event()
        name = connection.node.name
        self._work = ThreadPoolExecutor(1, thread_name_prefix=name)
        lanes = max(1, 2 * len(self.devices))  # an order out and a result in, each
        self._files = ThreadPoolExecutor(lanes, thread_name_prefix=f"{name} files")
        self._placing = threading.Lock()  # one device's code and data at a time
        self._words = ThreadPoolExecutor(1, thread_name_prefix=f"{name} words")
        self._renewal: Future[None] | None = None
        threading.Thread(target=self._watch, name=f"{name} watchdog", daemon=True).start()

    # -- what the head wants -------------------------------------------------------------------

    def begin(self, orders: Sequence[CopyOrder]) -> None:
        """Connects, and takes over copies that an earlier head started with these orders."""
        self._decide(NodeSession.begin, orders)

    def start(self, order: CopyOrder) -> None:
        self._decide(NodeSession.start, order)

    def recall(self, attempts: Sequence[str] | None) -> None:
        self._decide(NodeSession.recall, attempts)

    def abandon(self, attempts: Sequence[str]) -> None:
        self._decide(NodeSession.abandon, attempts)

    def find_port(self, attempt: str, address: str, answer: Callable[[PortAnswer], None]) -> None:
        """Asks the node for a free port of its address; the answer comes by another thread."""

        def ask() -> None:
            try:
                found = read_as(self._awaited_link().ask("port", host=address), _Port)
                answer(PortAnswer(attempt, found.port))
            except LinkLostError as error:
                answer(PortAnswer(attempt, 0, said(str(error)), is_gone=True))
            except Exception as error:
                answer(PortAnswer(attempt, 0, said(str(error))))

        threading.Thread(target=ask, name=f"{self._connection.node.name} port", daemon=True).start()

    def _awaited_link(self) -> AgentLink:
        """The link, once there is one: the node may be about to be opened."""
        deadline = time.monotonic() + decisions.LEASE_S
        while time.monotonic() < deadline and not self._closing.is_set():
            if link := self._link:
                return link
            if self._session.phase in (Phase.GONE, Phase.REFUSED):
                break
            time.sleep(_LOOK_FOR_LINK_S)
        raise LinkLostError("it is not connected")

    def stop(self, grace_s: float) -> None:
        """Ends every copy; where the node cannot be reached, they end with the lease."""
        if self._closing.is_set():
            return
        with self._deciding:
            is_there = self._was_open and self._session.phase not in (Phase.GONE, Phase.REFUSED)
            self._session.close()
            self._closing.set()
        self._connection.end_transfers()  # nobody waits for what is still under way
        self._work.submit(self._stop, grace_s, is_there)
        # One that has never answered has nothing to end, and may take a minute to fail.
        hurry = threading.Timer(_STILL_OPENING_S, self._abandon_opening)
        hurry.start()
        self._work.shutdown(wait=True)
        hurry.cancel()
        self._files.shutdown(wait=True, cancel_futures=True)
        self._words.shutdown(wait=False)

    def leave(self) -> None:
        """Lets go of the node without a word: its copies live on as long as the lease lasts."""
        if self._closing.is_set():
            return
        with self._deciding:
            self._session.close()
            self._closing.set()
        self._work.submit(self._connection.close)
        hurry = threading.Timer(_STILL_OPENING_S, self._connection.abort)
        hurry.start()
        self._work.shutdown(wait=True)
        hurry.cancel()
        self._words.shutdown(wait=False)

    # -- deciding ------------------------------------------------------------------------------

    def _decide(
        self,
        event: Callable[Concatenate[NodeSession, P], None],
        *facts: P.args,
        **named: P.kwargs,
    ) -> None:
        """One event at a time."""
        with self._deciding:
            event(self._session, *facts, **named)
            for instruction in self._session.take():
                self._carry_out(instruction)

    def _answer(
        self,
        link: AgentLink,
        event: Callable[Concatenate[NodeSession, P], None],
        *facts: P.args,
        **named: P.kwargs,
    ) -> None:
        """What came of an instruction; passed over if it was for an earlier link than today's."""
        with self._deciding:
            if link is self._link:
                self._decide(event, *facts, **named)

    def _carry_out(self, instruction: Instruction) -> None:
        """Waits for nothing: what takes its time is left to the threads."""
        link = self._link
        match instruction:
            case Tell(report):
                self._tell(report)
            case Connect():
                self._link = None
                self._submit(self._work, self._connect, instruction, link)
            case Send():
                self._submit(self._files, self._guarded, link, self._send, instruction)
            case Fetch():
                self._submit(self._files, self._guarded, link, self._fetch, instruction)
            case Release(worker):
                self._submit(self._words, self._say, link, "release", {"worker": worker})
            case Forget(attempt):
                self._submit(self._words, self._say, link, "forget", {"attempt": attempt})
            case Renew(wanted) if self._renewal is None or self._renewal.done():
                told = {"wanted": wanted}
                self._renewal = self._submit(self._words, self._say, link, "renew", told)
            case EndWorkers():
                self._submit(self._work, self._end_workers, link)
            case Abort():
                threading.Thread(target=self._connection.abort, daemon=True).start()
            case Disconnect(gives_back):
                self._link = None
                self._submit(self._work, self._part, gives_back)

    def _submit(
        self, pool: ThreadPoolExecutor, action: Callable[..., None], *arguments: Any
    ) -> Future[None] | None:
        return None if self._closing.is_set() else pool.submit(action, *arguments)

    # -- on the thread that connects -----------------------------------------------------------

    def _connect(self, how: Connect, before: AgentLink | None) -> None:
        if how.moves_on and before:
            self._move_on(before)
        with suppress(Exception):
            self._connection.close()
        if how.after_s and self._closing.wait(how.after_s):
            return
        try:
            link, known = self._open()
        except Exception as error:
            self._decide(NodeSession.unreachable, error, time.monotonic())
            return
        with self._deciding:
            self._link, self._was_open = link, True
            self._decide(NodeSession.opened, known, time.monotonic())
        if link.why_ended:  # before anybody knew it as ours
            self._on_end(link)

    def _open(self) -> tuple[AgentLink, dict[str, Assignment]]:
        """Starts an agent and agrees with it on the copies under way."""
        with self._deciding:
            attempts, workers = self._session.opening()
        link = self._connection.open_agent(self._on_event, self._on_end)
        answer = link.ask(
            "open",
            directory=self._connection.directory,
            run=self._connection.token,
            epoch=self._epoch,
            lease_s=decisions.LEASE_S,
            env=dict(self._connection.node.env),
            attempts=attempts,
            workers=workers,
            imports=self._imports,
            nursery=self._connection.nursery,
            is_shared=self._session.other_users.is_needed,
            turns=self._session.other_users.turns,
            door=self._connection.door,
        )
        return link, read_as(answer, _Opened).attempts

    # -- on the threads that move files --------------------------------------------------------

    def _guarded(
        self, link: AgentLink, action: Callable[[AgentLink, Any], None], instruction: Any
    ) -> None:
        """Whatever goes wrong costs this node only."""
        if link is not self._link:
            return  # it broke in the meantime; the session knows what was not done
        try:
            action(link, instruction)
        except StorageError as error:
            self._tell(error)  # the head's own disk
        except Exception as error:
            self._answer(link, NodeSession.lost, error, time.monotonic())

    def _send(self, link: AgentLink, send: Send) -> None:
        order, node = send.order, self._connection.node
        if send.instead_of:
            link.tell("release", worker=send.instead_of)
        try:
            with self._placing:
                launch = self._connection.place(order.job)
            checkpoint = self._push(order, order.weights, f"weights of {order.job.id}")
            optimizer = self._push(order, order.optimizer, f"optimizer of {order.job.id}")
            request = order_request(order, send.worker, node, launch, checkpoint, optimizer)
            assigned = read_as(link.ask("order", **request.message()), Assignment)
        except SupersededError:
            raise
        except AgentError as error:
            self._answer(link, NodeSession.order_refused, order.attempt, error)
            return
        now = time.monotonic()
        self._answer(link, NodeSession.ordered, order.attempt, assigned, now)

    def _push(self, order: CopyOrder, digest: str | None, series: str) -> str:
        tell = self._mover(order.attempt)
        return self._connection.push(digest, series, self._under_way, tell) if digest else ""

    def _under_way(self) -> set[str]:
        with self._deciding:
            return checkpoints_of(self._session.held.values())

    def _mover(self, attempt: str) -> TellMoved:
        """Tells the session, from time to time, that something moves for an attempt."""
        told_at = 0.0

        def tell(done: int, total: int) -> None:
            nonlocal told_at
            now = time.monotonic()
            if now > told_at + _TELL_EVERY_S:
                told_at = now
                self._decide(NodeSession.moved, attempt, done, total)

        return tell

    def _fetch(self, link: AgentLink, fetch: Fetch) -> None:
        try:
            weights = self._connection.pull(fetch.path, fetch.size, self._mover(fetch.attempt))
        except SupersededError:
            raise
        except AgentError as error:
            self._answer(link, NodeSession.fetch_refused, fetch.attempt, error)
            return
        self._answer(link, NodeSession.fetched, fetch.attempt, weights)

    def _end_workers(self, link: AgentLink) -> None:
        with suppress(HadarError):
            link.ask("stop", timeout_s=_END_S, grace_s=0.0)

    def _move_on(self, link: AgentLink) -> None:
        """Ends what is left there first, so that the machine is free at once."""
        self._end_workers(link)
        with suppress(Exception):
            self._connection.move_on()

    def _part(self, gives_back: bool) -> None:
        self._connection.close()
        with suppress(HadarError):  # else it is done at the run's end
            self._connection.give_back() if gives_back else None

    # -- the end -------------------------------------------------------------------------------

    def _stop(self, grace_s: float, is_there: bool) -> None:
        began, link, patience_s = time.monotonic(), self._link, grace_s + _END_S
        if is_there:
            try:
                self._end_all(link, grace_s, patience_s)
            except Exception:
                # At once: its agent has only just died, and what it left waits for another one.
                if time.monotonic() < began + patience_s:
                    with suppress(Exception):
                        self._end_all(None, grace_s, patience_s)
        self._link = None
        with suppress(Exception):
            self._connection.close()

    def _end_all(self, link: AgentLink | None, grace_s: float, patience_s: float) -> None:
        if not link or link.why_ended:
            self._connection.close()
            link, _ = self._open()
        link.ask("stop", timeout_s=patience_s, grace_s=grace_s)
        link.close()

    def _abandon_opening(self) -> None:
        if not self._was_open:
            self._connection.abort()

    # -- on other threads ----------------------------------------------------------------------

    def _say(self, link: AgentLink, do: str, fields: Message) -> None:
        try:
            link.tell(do, **fields)
        except LinkLostError:
            if link is self._link:
                self._connection.abort()

    def _watch(self) -> None:
        busy_at = 0.0
        while not self._closing.wait(decisions.LOOK_EVERY_S):
            link, now = self._link, time.monotonic()
            heard_at = max(link.heard_at if link else 0.0, self._connection.heard_at())
            busy_at = now if self._session.held or not link else busy_at
            if link and (why := self._connection.recalled(now - busy_at)):
                self._decide(NodeSession.used, {"event": "leaving", "why": why})
            self._decide(NodeSession.look, heard_at, now)

    def _on_event(self, message: Message) -> None:
        attempt, now = str(message.get("attempt")), time.monotonic()
        match message["event"]:
            case "gpus" | "turns" | "leaving":
                self._decide(NodeSession.used, message)
            case "progress":
                if progress := read_progress(message):
                    self._decide(NodeSession.progressed, progress, now)
            case "finished":
                self._decide(NodeSession.finished, attempt, read_finished(message))
            case "exited":
                self._decide(NodeSession.exited, attempt, read_exited(message))

    def _on_end(self, link: AgentLink) -> None:
        error = LinkLostError(link.why_ended or "its agent ended")
        self._answer(link, NodeSession.lost, error, time.monotonic())
