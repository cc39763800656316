"""What a node session decides: a state machine without threads, sockets or clocks.

Events come in as calls: what the head wants, what the node says, what came of an instruction.
Instructions come out by ``take``; ``threads.py`` carries them out on a real node, ``tests/faults``
on simulated ones, through everything that can go wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hadar_cli.core.model import Node
from hadar_cli.core.reasons import Loss
from hadar_cli.engine.ports import (
    CopyOrder,
    DeviceTaken,
    Failed,
    HandedIn,
    Moving,
    NodeBack,
    NodeGone,
    NodeSilent,
    Progressed,
    Report,
)
from hadar_cli.node.agent_events import Exited, Finished
from hadar_cli.node.contract import Assignment
from hadar_cli.nodes.endings import explain_end
from hadar_cli.nodes.orders import read_result
from hadar_cli.nodes.other_users import OtherUsers
from hadar_cli.nodes.session.instructions import (
    Abort,
    Connect,
    Disconnect,
    EndWorkers,
    Fetch,
    Forget,
    Instruction,
    Release,
    Renewals,
    Send,
    Tell,
)
from hadar_cli.nodes.session.returning import Returning, absence_for, in_words, is_hopeless
from hadar_cli.nodes.session.state import CONNECTING, EMPTY, TRIES, Held, Phase, Stage, Workers
from hadar_cli.nodes.wire import AgentError, LinkLostError, Message, NotYetError, SupersededError

LEASE_S, LOOK_EVERY_S = 20.0, 1.0
# Looks at which nothing new was heard of a node, which is asked at each of them. They are counted,
# not timed: a head that slept itself has no reason to think its nodes dead.
_SILENT, _DEAD_LINK, _GONE = 3, 7, 12
_MOST_REFUSALS = 3  # of orders, in a row; a node that takes none is left until it can be opened
_PROGRESS_EVERY_S = 0.1  # of one copy; what comes faster is passed over


class NodeSession:
    """One node's copies, workers and connection."""

    def __init__(self, node: Node, epoch: int) -> None:
        self.devices = {device.name: device.index for device in node.devices}
        self.other_users = OtherUsers(node)
        self.phase = Phase.NEW
        self.held: dict[str, Held] = {}  # one SENDING to a device at the most; empty in EMPTY
        self.workers = Workers(self.devices, epoch)  # none in EMPTY
        self._refusals = 0  # in a row, below _MOST_REFUSALS
        self._was_open, self._returning, self._renewals = False, Returning(), Renewals()
        self._heard_at, self._unheard = 0.0, 0  # looks since anything was heard
        self._instructions: list[Instruction] = []

    def take(self) -> list[Instruction]:
        """What is to be done, in this order, since the last call."""
        if self.other_users.leaves_because and not self.held and self.phase is Phase.OPEN:
            self._give_up(NotYetError(self.other_users.leaves_because))
            self._do(Connect(moves_on=True))
        taken, self._instructions = self._instructions, []
        return taken

    def validate(self) -> None:
        """Raises AssertionError where the state is one that cannot be."""
        assert not (self.phase in EMPTY and (self.held or self.workers.names)), self.phase
        self.workers.validate()
        assert self._refusals < _MOST_REFUSALS
        Held.validate_all(self.held, self.devices, self.phase is Phase.OPEN)

    # -- what the head wants -------------------------------------------------------------------

    def begin(self, orders: Sequence[CopyOrder]) -> None:
        """Connects, and takes over copies that an earlier head started with these orders."""
        for order in orders:
            self.held[order.attempt] = Held(order, Stage.RUNNING)
        self.phase = Phase.OPENING
        self._do(Connect())

    def start(self, order: CopyOrder) -> None:
        if self.phase is Phase.CLOSED:
            return
        if self.phase is Phase.NEW:
            self.begin(())
        self.held[order.attempt] = Held(order, Stage.WAITING)
        if self.phase in (Phase.GONE, Phase.REFUSED):
            self._fail(order.attempt, Loss.NODE_GONE)
        elif why := self.other_users.leaves_because:
            self._fail(order.attempt, Loss.ORDER_REFUSED, why)
        self._send_waiting()

    def recall(self, attempts: Sequence[str] | None) -> None:
        """Asks these copies, or all, to hand in now; their results arrive like any other."""
        for attempt, held in self.held.items():
            if attempts is None or attempt in attempts:
                held.is_recalled = True
                if held.stage in (Stage.RUNNING, Stage.FETCHING):
                    self._release(held.order.device)

    def abandon(self, attempts: Sequence[str]) -> None:
        """Ends these copies and says no word of them: nobody wants what they have."""
        for attempt in attempts:
            held = self.held.get(attempt)
            if held and held.stage is Stage.SENDING:
                held.is_abandoned = True  # its process may be about to start
            elif held:
                self._drop(attempt)

    def _drop(self, attempt: str) -> None:
        """Without its files the process has nothing to hand in, and is not waited for."""
        held = self.held.pop(attempt)
        if self.phase is Phase.OPEN:
            self._do(Forget(attempt))
        if self.workers.is_there(held):
            self._release(held.order.device)
            self.workers.by_device.pop(held.order.device, None)  # whom nobody names is ended

    def close(self) -> None:
        """Nothing is decided any more; the workers' end is the caller's to see to."""
        self.phase = Phase.CLOSED
        self.held.clear()
        self.workers.by_device.clear()

    # -- what comes of the connection ----------------------------------------------------------

    def opening(self) -> tuple[list[str], list[str]]:
        """Attempts and workers that the agent about to be started is to go on with."""
        for held in self.held.values():
            held.finished = None  # it tells again what the last one told
        self.other_users.begin_anew()
        return list(self.held), self.workers.names

    def opened(self, known: Mapping[str, Assignment], now: float) -> None:
        """An agent is there, and knows of these attempts."""
        if self.phase not in CONNECTING:
            return
        was_gone, self.phase = self.phase is Phase.GONE, Phase.OPEN
        self._was_open, self._renewals = True, Renewals()
        self._returning.succeed()
        strays = sorted(known.keys() - self.held.keys())  # abandoned since they were named
        for attempt, held in list(self.held.items()):
            if assigned := known.get(attempt):
                held.worker = assigned.worker
                self._run(held, assigned, now)
            elif held.stage is Stage.RUNNING:
                self._fail(attempt, Loss.NODE_FORGOT)
        self._instructions += [Forget(attempt) for attempt in strays]
        self._instructions += [Release(known[attempt].worker) for attempt in strays]
        if was_gone:
            self._unheard = 0
            self._tell(NodeSilent(tuple(self.devices), is_over=True))
            self._tell(NodeBack(tuple(self.devices)))
        self._send_waiting()

    def unreachable(self, error: Exception, now: float) -> None:
        """No agent could be started: tries again until nothing is heard any more, or something is
        and nothing comes of it."""
        if self.phase not in CONNECTING:
            return
        pause_s = self._returning.pause_s(error, now) if self.phase is Phase.MENDING else None
        self._leave(error) if pause_s is None else self._do(Connect(pause_s))

    def lost(self, error: Exception, now: float) -> None:
        """The link broke, or somebody else gives the orders there."""
        if self.phase is not Phase.OPEN:
            return
        abandoned = {attempt for attempt, held in self.held.items() if held.is_abandoned}
        for held in self.held.values():
            held.is_abandoned = False
            if held.stage is Stage.SENDING:
                held.stage = Stage.WAITING
            elif held.stage is Stage.FETCHING:
                held.stage, held.result = Stage.RUNNING, None
            held.late_at = None
        if is_hopeless(error):
            self._leave(error)
        else:
            self.phase = Phase.MENDING
            self._returning.mend(now + LEASE_S)
            self._do(Connect())
        for attempt in abandoned & self.held.keys():
            self._drop(attempt)

    def look(self, heard_at: float, now: float) -> None:
        """Once every LOOK_EVERY_S; ``heard_at`` is when the last byte came from the node."""
        if self.phase is Phase.CLOSED:
            return
        self._listen(heard_at)
        for attempt, held in list(self.held.items()):
            if held.late_at is not None and now > held.late_at:
                self._drop(attempt)
                self._tell(Failed(attempt, Loss.LATE, Loss.LATE.text))
        if self.phase in EMPTY:
            return
        if self._unheard == _SILENT:
            self._tell(NodeSilent(tuple(self.devices)))
        if self._unheard >= _GONE and self._was_open:
            self._do(Abort())
            error = LinkLostError(f"nothing was heard of it for {self._unheard} s")
            if self.phase is Phase.OPEN:
                self._leave(error)
            else:  # the attempt to mend ends by the abort
                self._give_up(error)
        elif self.phase is Phase.OPEN:
            if self._unheard == _DEAD_LINK:
                self._do(Abort())
            wanted = Held.devices_of(self.held, self.devices)
            self._instructions += self._renewals.due(self._unheard, wanted)

    def _listen(self, heard_at: float) -> None:
        if heard_at > self._heard_at:
            if self._unheard >= _SILENT and self.phase not in EMPTY:
                self._tell(NodeSilent(tuple(self.devices), is_over=True))
            self._heard_at, self._unheard = heard_at, 0
        else:
            self._unheard += 1

    def _leave(self, error: Exception) -> None:
        self._give_up(error)
        if is_hopeless(error):
            self.phase = Phase.REFUSED
            self._do(Disconnect(gives_back=not isinstance(error, SupersededError)))
        else:
            self._do(Connect(self._returning.after_s(error)))

    def _give_up(self, error: Exception) -> None:
        self.workers.by_device.clear()
        if self._returning.is_told(error, absence := absence_for(error, self._was_open)):
            return
        self.phase = Phase.GONE
        for attempt in list(self.held):
            self._fail(attempt, Loss.NODE_GONE, f"{Loss.NODE_GONE.text}: {error}")
        self._tell(NodeGone(tuple(self.devices), in_words(error), absence))

    # -- what comes of orders ------------------------------------------------------------------

    def ordered(self, attempt: str, assigned: Assignment, now: float) -> None:
        self._refusals = 0
        held = self.held.get(attempt)
        if held and held.stage is Stage.SENDING:
            held.tries = 0
            self._run(held, assigned, now)
        self._send_waiting()

    def order_refused(self, attempt: str, error: AgentError) -> None:
        """A full or broken disk stays so: others get the work, the journal no word of each try."""
        held = self.held.get(attempt)
        if held and held.stage is Stage.SENDING:
            self.workers.forget_unstarted(held)
            self._fail(attempt, Loss.ORDER_REFUSED, str(error))
        self._refusals += 1
        if self._refusals == _MOST_REFUSALS:
            self._refusals = 0
            reason = AgentError(f"it takes no orders: {error}")
            self._give_up(reason)
            self._do(EndWorkers())
            self._leave(reason)
        self._send_waiting()

    def _send_waiting(self) -> None:
        """One order at a time to each device, in the order in which they came."""
        if self.phase is not Phase.OPEN:
            return
        busy = {h.order.device for h in self.held.values() if h.stage is Stage.SENDING}
        for attempt, held in list(self.held.items()):
            if held.stage is Stage.WAITING and held.order.device not in busy:
                if not self._may_try(attempt, held):
                    continue
                if held.order.follows and not self.workers.holds(held.order):
                    self._fail(attempt, Loss.PROCESS_GONE)
                    continue
                held.stage = Stage.SENDING
                held.worker, instead_of = self.workers.for_order(held.order)
                self._do(Send(held.order, held.worker, instead_of))
                busy.add(held.order.device)

    def _run(self, held: Held, assigned: Assignment, now: float) -> None:
        held.stage, held.warm = Stage.RUNNING, assigned.is_warm
        held.runs_from(now)
        self.workers.took(held)
        if held.is_abandoned:
            self._drop(held.order.attempt)
        elif held.finished:
            self._collect(held.order.attempt, held, held.finished)
        elif held.is_recalled:
            self._release(held.order.device)

    def moved(self, attempt: str, done: int, total: int) -> None:
        """So much of what is sent or fetched for it has arrived, or it waits for what moves."""
        held = self.held.get(attempt)
        if held and held.stage in (Stage.SENDING, Stage.FETCHING):
            self._tell(Moving(attempt, done, total, held.has_arrived(done)))

    def _release(self, device: str) -> None:
        if self.phase is Phase.OPEN and (worker := self.workers.by_device.pop(device, None)):
            self._do(Release(worker.name))

    def _may_try(self, attempt: str, held: Held) -> bool:
        if held.tries == TRIES:
            self._fail(attempt, Loss.CONNECTION)
            return False
        held.tries += 1
        return True

    # -- what the node says --------------------------------------------------------------------

    def used(self, message: Message) -> None:
        """Who else is on the node's devices. A copy on one that is needed hands in and leaves."""
        for change in self.other_users.judge(message):
            self._tell(change)
            if isinstance(change, DeviceTaken):
                device = change.device
                self.recall([a for a, held in self.held.items() if held.order.device == device])
                if all(held.order.device != device for held in self.held.values()):
                    self._release(device)  # a process that only waits there for its next order

    def progressed(self, report: Progressed, now: float) -> None:
        held = self.held.get(report.attempt)
        if held and report.may_last_s:
            held.is_at_work(now, report.may_last_s)
        if held and now > held.progressed_at + _PROGRESS_EVERY_S:
            held.progressed_at = now
            self._tell(report)

    def finished(self, attempt: str, finished: Finished) -> None:
        held = self.held.get(attempt)
        if not held or held.stage is Stage.FETCHING:
            return  # late or repeated
        held.finished = finished
        if held.stage is Stage.RUNNING and self.phase is Phase.OPEN:
            self._collect(attempt, held, finished)

    def exited(self, attempt: str, exited: Exited) -> None:
        if held := self.held.get(attempt):
            self.workers.forget(held)
            self.other_users.forget(held.order.device)
            self._fail(attempt, *explain_end(exited, held.order), exited.log)

    def _collect(self, attempt: str, held: Held, finished: Finished) -> None:
        held.finished = None
        if not self._may_try(attempt, held):
            return
        try:
            held.result, held.stays = read_result(finished.result, held.order)
        except ValueError as error:
            self._refuse(attempt, held, error)
            return
        held.stage, held.late_at = Stage.FETCHING, None
        if finished.checkpoint and held.result.steps:
            self._do(Fetch(attempt, finished.checkpoint, finished.bytes))
        else:
            self.fetched(attempt, None)

    def fetched(self, attempt: str, weights: str | None) -> None:
        """The copy's checkpoint is in the store, under this hash."""
        held = self.held.get(attempt)
        if not held or held.stage is not Stage.FETCHING or not held.result:
            return
        if not held.stays:
            self.workers.forget(held)
        del self.held[attempt]
        self._do(Forget(attempt))
        self._tell(HandedIn(attempt, held.result, weights, held.warm, held.stays))

    def fetch_refused(self, attempt: str, error: AgentError) -> None:
        if held := self.held.get(attempt):
            self._refuse(attempt, held, error)

    def _refuse(self, attempt: str, held: Held, error: Exception) -> None:
        if self.workers.is_there(held):
            self._release(held.order.device)  # nobody knows what it would do next
        self._fail(attempt, Loss.BAD_RESULT, f"{Loss.BAD_RESULT.text}: {error}")

    # -- instructions --------------------------------------------------------------------------

    def _fail(self, attempt: str, reason: Loss, why: str = "", log: str = "") -> None:
        held = self.held.pop(attempt, None)
        if held and not held.is_abandoned:
            self._tell(Failed(attempt, reason, why or reason.text, log))

    def _tell(self, report: Report) -> None:
        self._do(Tell(report))

    def _do(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)
