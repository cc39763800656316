"""All that the head does with one node, in order, on a thread of its own.

A connection that breaks is mended, and the agent then tells again what became of its copies. A node
of which nothing is heard is reported silent, then gone, and back when it returns.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from hadar_cli.adapters.agent_link import AgentLink
from hadar_cli.adapters.connection import Connection
from hadar_cli.adapters.orders import order_request, read_progress, read_result
from hadar_cli.adapters.wire import (
    AgentError,
    LinkLostError,
    Message,
    SupersededError,
    read_as,
    said,
)
from hadar_cli.app.ports import (
    CopyOrder,
    Failed,
    HandedIn,
    NodeBack,
    NodeGone,
    NodeSilent,
    Report,
)
from hadar_cli.errors import HadarError, RefusedError, StorageError

LEASE_S = 20.0
# Looks, a second apart, at which nothing new was heard of a node that is asked at each. They are
# counted, not timed: a head that slept itself has no reason to think its nodes dead.
_SILENT, _DEAD_LINK, _GONE = 3, 7, 12
_PAUSES_S = (0.1, 0.3, 1.0, 2.0, 3.0)  # between attempts to mend; the last one repeats
_RETURN_EVERY_S = 5.0  # a node that is gone is looked for
_STILL_OPENING_S = 3.0  # as long is waited for it when the run ends
_LATE_S = 150.0  # past its deadline: longer than the supervisor waits before it ends the copy
_TRIES = 3  # to send an order or fetch a result, before the copy is given up
_MOST_REFUSALS = 3  # of orders, in a row; a node that takes none is left until it can be opened
_PROGRESS_EVERY_S = 0.1  # of one copy; what comes faster is passed over
_LONGEST_LOG = 4000
# How a script ends whose node lacks what every PyTorch job needs: no other copy would fare better.
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(torch|safetensors)'$")

Tell: TypeAlias = Callable[["Report | HadarError"], None]


@dataclass(slots=True)
class _Attempt:
    order: CopyOrder
    late_at: float
    worker: str = ""  # the process that it was given to
    sent: bool = False
    warm: bool = False
    tries: int = 0
    is_collected: bool = False  # or about to be
    progressed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Known:
    """What an agent knows of an attempt that it was sent."""

    worker: str
    warm: bool


@dataclass(frozen=True, slots=True)
class _Opened:
    attempts: dict[str, _Known]


class NodeHand:
    """One node's copies. ``tell`` takes reports, and errors that no node is to blame for."""

    def __init__(
        self, connection: Connection, epoch: int, tell: Tell, imports: Sequence[str] = ()
    ) -> None:
        self._connection, self._epoch, self._tell = connection, epoch, tell
        self._imports = list(imports)
        self.devices = connection.node.devices
        self._device = {d.name: d for d in self.devices}
        self._attempts: dict[str, _Attempt] = {}
        self._workers: dict[str, tuple[int, str]] = {}  # device -> job, worker
        self._trained: set[str] = set()  # workers whose weights are no longer the job's first
        self._hired = self._refusals = 0
        self._link: AgentLink | None = None
        self._begun = self._gone = self._was_open = False
        self._heard_at, self._unheard = 0.0, 0
        self._giving_up = threading.Lock()
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=connection.node.name)

    def begin(self, orders: Sequence[CopyOrder]) -> None:
        """Connects, and takes over copies that an earlier head started with these orders."""
        self._begun = True
        for order in orders:
            self._hold(order).sent = True
        self._do(self._begin)

    def start(self, order: CopyOrder) -> None:
        if not self._begun:
            self.begin(())
        self._hold(order)
        if self._gone:
            self._fail(order.attempt, "its node is gone", node_fault=True)
        else:
            self._do(self._send_order, order.attempt)

    def _hold(self, order: CopyOrder) -> _Attempt:
        held = _Attempt(order, time.monotonic() + order.seconds + _LATE_S)
        self._attempts[order.attempt] = held
        return held

    def report_late_copies(self) -> None:
        now = time.monotonic()
        for attempt, held in list(self._attempts.items()):
            if now > held.late_at:
                self._fail(attempt, "nothing was heard of it past its deadline")

    def look_after(self) -> None:
        """Renews the lease and listens; never waits for the node: one thread looks after all."""
        link = self._link
        self._listen(link)
        if self._gone or not self._begun:
            return
        if self._unheard == _SILENT:
            self._tell(NodeSilent(tuple(self._device)))
        if self._unheard >= _GONE and self._was_open:
            self._give_up(LinkLostError(f"nothing was heard of it for {self._unheard} s"))
        if not link:
            return  # while it is being opened, every step has a deadline of its own
        try:
            if self._unheard == _DEAD_LINK or self._gone:
                self._connection.abort()
            link.tell("renew")
        except LinkLostError:
            self._connection.abort()

    def _listen(self, link: AgentLink | None) -> None:
        """Counts the looks since anything was heard; large files are a sign of life too."""
        heard_at = max(link.heard_at if link else 0.0, self._connection.heard_at())
        if heard_at > self._heard_at:
            if self._unheard >= _SILENT:
                self._tell(NodeSilent(tuple(self._device), is_over=True))
            self._heard_at, self._unheard = heard_at, 0
        else:
            self._unheard += 1

    def recall(self, attempts: Sequence[str] | None) -> None:
        """Asks these copies, or all, to hand in now; their results arrive like any other."""
        for attempt, held in list(self._attempts.items()):
            if attempts is None or attempt in attempts:
                self._do(self._release, held.order.device)

    def stop(self, grace_s: float) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._do(self._stop, grace_s)
            # One that has never answered has nothing to end, and may take a minute to fail.
            hurry = threading.Timer(_STILL_OPENING_S, self._abandon_opening)
            hurry.start()
            self._thread.shutdown(wait=True)
            hurry.cancel()

    def _abandon_opening(self) -> None:
        if not self._was_open:
            self._connection.abort()

    # -- on the node's thread: the connection ------------------------------------------------

    def _do(self, action: Callable[..., None], *arguments: Any) -> None:
        """Queues an action; whatever goes wrong there costs this node only."""

        def guarded() -> None:
            try:
                action(*arguments)
            except StorageError as error:
                self._tell(error)  # the head's own disk
            except Exception as error:
                self._mend(error)

        if not self._closing.is_set() or action == self._stop:
            self._thread.submit(guarded)

    def _begin(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._leave(error)

    def _open(self) -> None:
        """Starts an agent and agrees with it on the copies under way."""
        for held in list(self._attempts.values()):
            held.is_collected = False  # a new agent tells again what the last one told
        link = self._connection.open_agent(self._on_event, self._on_end)
        answer = link.ask(
            "open",
            directory=self._connection.directory,
            run=self._connection.token,
            epoch=self._epoch,
            lease_s=LEASE_S,
            env=dict(self._connection.node.env),
            attempts=list(self._attempts),
            workers=[worker for _, worker in self._workers.values()],
            imports=self._imports,
        )
        self._link, opened = link, read_as(answer, _Opened)
        self._was_open = True
        for attempt, held in list(self._attempts.items()):
            if known := opened.attempts.get(attempt):
                held.worker, held.sent, held.warm = known.worker, True, known.warm
                self._workers[held.order.device] = (held.order.job.id, known.worker)
            elif held.sent:
                self._fail(attempt, "its node knows nothing of it", node_fault=True)
            else:
                self._do(self._send_order, attempt)
        if self._gone:
            self._gone, self._unheard = False, 0
            self._tell(NodeSilent(tuple(self._device), is_over=True))
            self._tell(NodeBack(tuple(self._device)))

    def _mend(self, error: Exception) -> None:
        """Reconnects until nothing is heard any more, or something is and nothing comes of it."""
        self._link = None
        give_up_at = time.monotonic() + LEASE_S
        pauses = iter(_PAUSES_S)
        pause = 0.0
        while not self._closing.wait(pause):
            is_hopeless = isinstance(error, RefusedError | SupersededError)
            if self._gone or is_hopeless or time.monotonic() > give_up_at:
                self._leave(error)
                return
            pause = next(pauses, _PAUSES_S[-1])
            self._connection.close()
            try:
                self._open()
                return
            except Exception as again:
                error = again

    def _give_up(self, error: Exception) -> None:
        """From whatever thread; that of the node may be waiting for it still."""
        with self._giving_up:
            if self._gone:
                return
            self._gone = True
            for attempt in list(self._attempts):
                self._fail(attempt, f"its node is gone: {error}", node_fault=True)
            refused = isinstance(error, RefusedError)
            self._tell(NodeGone(tuple(self._device), _in_words(error), refused))

    def _leave(self, error: Exception) -> None:
        self._link = None
        self._workers.clear()
        self._give_up(error)
        self._connection.close()
        if not isinstance(error, RefusedError | SupersededError):
            self._do(self._look_for_it)

    def _look_for_it(self) -> None:
        """A node that is gone may come back; its devices are used again then."""
        while not self._closing.wait(_RETURN_EVERY_S):
            try:
                self._open()
            except Exception:
                self._connection.close()
                continue
            return

    def _end_link(self, link: AgentLink) -> None:
        if link is self._link:
            raise LinkLostError(link.why_ended or "its agent ended")

    def _stop(self, grace_s: float) -> None:
        """Where the node cannot be reached, its copies end when the lease runs out."""
        if self._was_open and not self._gone:
            patience_s = grace_s + 15.0
            began = time.monotonic()
            try:
                self._end_all(grace_s, patience_s)
            except Exception:
                # At once: its agent has only just died, and what it left waits for another one.
                if time.monotonic() < began + patience_s:
                    self._link = None
                    with suppress(Exception):
                        self._end_all(grace_s, patience_s)
        self._link = None
        self._connection.close()

    def _end_all(self, grace_s: float, patience_s: float) -> None:
        if not self._link or self._link.why_ended:
            self._connection.close()
            self._open()
        assert self._link
        self._link.ask("stop", timeout_s=patience_s, grace_s=grace_s)
        self._link.close()

    # -- on the node's thread: copies --------------------------------------------------------

    def _send_order(self, attempt: str) -> None:
        held = self._attempts.get(attempt)
        if not held or held.sent or not self._link:
            return
        if not self._may_try(attempt, held):
            return
        order, device = held.order, self._device[held.order.device]
        if order.follows and self._workers.get(order.device, (None, ""))[0] != order.job.id:
            self._fail(attempt, "the process it was to go on in is gone", node_fault=True)
            return
        try:
            launch = self._connection.place(order.job.launch)
            weights = self._connection.push(order.weights) if order.weights else ""
            request = order_request(order, self._connection.node, device, launch, weights)
            held.worker = self._worker_for(order)
            answer = self._link.ask("order", worker=held.worker, **request)
        except SupersededError:
            raise
        except AgentError as error:
            self._fail(attempt, str(error), node_fault=True)
            self._count_refusal(error)
            return
        self._refusals = 0
        held.sent, held.warm, held.tries = True, answer.get("warm") is True, 0

    def _count_refusal(self, error: AgentError) -> None:
        """A disk that is full or broken stays so for a while: the others have the work until then,
        and the journal is spared a record of every try."""
        self._refusals += 1
        if self._refusals < _MOST_REFUSALS:
            return
        self._refusals = 0
        reason = AgentError(f"it takes no orders: {error}")
        self._give_up(reason)  # first, or copies would be told as failed that are stopped now
        if link := self._link:
            with suppress(HadarError):
                link.ask("stop", timeout_s=15.0, grace_s=0.0)
        self._leave(reason)

    def _may_try(self, attempt: str, held: _Attempt) -> bool:
        held.tries += 1
        if held.tries > _TRIES:
            self._fail(attempt, "its node's connection kept breaking", node_fault=True)
        return held.tries <= _TRIES

    def _worker_for(self, order: CopyOrder) -> str:
        """The worker that already holds this job on the device, or a new one in its place."""
        job, worker = self._workers.get(order.device, (None, ""))
        is_untrained = order.weights is None and not order.follows
        if job == order.job.id and not (is_untrained and worker in self._trained):
            return worker
        self._release(order.device)
        self._hired += 1
        worker = f"{self._device[order.device].index}-{order.job.id}-{self._hired}-e{self._epoch}"
        self._workers[order.device] = (order.job.id, worker)
        return worker

    def _release(self, device: str) -> None:
        if self._link and device in self._workers:
            self._link.tell("release", worker=self._workers.pop(device)[1])

    def _is_there(self, held: _Attempt) -> bool:
        """Whether the attempt's process is the device's; orders sent ahead may outlive theirs."""
        return self._workers.get(held.order.device, (0, ""))[1] == held.worker

    def _forget_worker(self, held: _Attempt) -> None:
        """It is gone or going: the device's next copy starts anew."""
        if self._is_there(held):
            self._workers.pop(held.order.device, None)

    def _collect(self, attempt: str, message: Message) -> None:
        held = self._attempts.get(attempt)
        if not held or not self._link or not self._may_try(attempt, held):
            return
        try:
            result = read_result(message.get("result", {}), held.order)
            path, size = message.get("weights"), message.get("bytes")
            size = size if isinstance(size, int) else 0
            weights = self._connection.pull(str(path), size) if path and result.steps else None
        except (ValueError, AgentError) as error:
            if self._is_there(held):
                self._release(held.order.device)  # nobody knows what it would do next
            self._fail(attempt, f"its result cannot be taken: {error}")
            return
        if result.steps:
            self._trained.add(held.worker)
        stays = message["result"].get("waiting") is True
        if not stays:
            self._forget_worker(held)
        self._link.tell("forget", attempt=attempt)
        if self._attempts.pop(attempt, None):
            self._tell(HandedIn(attempt, result, weights, held.warm, stays))

    # -- on the link's thread ----------------------------------------------------------------

    def _on_event(self, message: Message) -> None:
        attempt = str(message.get("attempt"))
        held = self._attempts.get(attempt)
        if not held:
            return  # late or repeated
        match message["event"]:
            case "progress":
                now, progress = time.monotonic(), read_progress(message)
                if progress and now > held.progressed_at + _PROGRESS_EVERY_S:
                    held.progressed_at = now
                    self._tell(progress)
            case "finished" if not held.is_collected:
                held.is_collected = True
                self._do(self._collect, attempt, message)
            case "exited":
                self._forget_worker(held)
                code, why = said(message.get("code")), said(message.get("why"))
                reason = f"it exited with code {code}" if why == "exited" else why
                # Told to leave before it came to what was sent ahead, it did no wrong.
                was_waiting = bool(held.order.follows) and why == "released"
                log = str(message.get("log", ""))[-_LONGEST_LOG:]
                blameless = was_waiting or message.get("node_fault") is True
                if missing := _missing_module(log):
                    self._fail(attempt, missing, log, node_fault=True, unfit=True)
                else:
                    self._fail(attempt, reason, log, blameless)

    def _on_end(self, link: AgentLink) -> None:
        self._do(self._end_link, link)

    def _fail(
        self,
        attempt: str,
        why: str,
        log: str = "",
        node_fault: bool = False,
        unfit: bool = False,
    ) -> None:
        if self._attempts.pop(attempt, None):
            self._tell(Failed(attempt, why, log, node_fault, unfit))


def _missing_module(log: str) -> str | None:
    """What the node's Python lacks, and what to do, if a script's last words say so."""
    last_words = log.strip().rpartition("\n")[2]
    found = _MISSING.match(last_words)
    return found and f"its python has no {found[1]}: pip install torch safetensors there"


def _in_words(error: Exception) -> str:
    fix = getattr(error, "fix", None)
    return f"{error}; {fix}" if fix else str(error)
