"""Real node sessions on simulated nodes: carries out, on a virtual clock and over a network that
fails, what ``NodeSession`` decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from hadar_cli.errors import RefusedError
from hadar_cli.node.agent_events import Exited, WorkerEnd
from hadar_cli.nodes.session.decisions import LOOK_EVERY_S, NodeSession
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
from hadar_cli.nodes.wire import AgentError, LinkLostError
from tests.faults import weights
from tests.faults.nodes import Copy, SimulatedNode

if TYPE_CHECKING:
    from tests.faults.executor import FaultyExecutor

P = ParamSpec("P")
_NO_ROUTE_S = (0.2, 8.0)  # until an attempt to connect fails


class SimulatedLink:
    """One head's way to one node, and the session that uses it."""

    def __init__(self, executor: FaultyExecutor, node: SimulatedNode, epoch: int) -> None:
        self._executor, self.node, self._epoch = executor, node, epoch
        self._clock, self._misfortune = executor.clock, executor.misfortune
        self.session = NodeSession(node.facts, epoch)
        self._number = 0  # of the link: what was said over an earlier one is never heard
        self._stalled: list[Callable[[], None]] = []  # on the line while it is cut
        self._heard_at = 0.0
        self._in(LOOK_EVERY_S, self._look)

    def decide(
        self,
        event: Callable[Concatenate[NodeSession, P], None],
        *facts: P.args,
        **named: P.kwargs,
    ) -> None:
        if self._executor.is_dead:
            return
        event(self.session, *facts, **named)
        self.session.validate()
        for instruction in self.session.take():
            self._carry_out(instruction)

    def lose(self, error: Exception) -> None:
        self.decide(NodeSession.lost, error, self._clock.now)

    def reach_again(self) -> None:
        """The line is whole again, and what was on it arrives, unless somebody has hung up."""
        stalled, self._stalled = self._stalled, []
        for action in stalled:
            self._over_the_line(action)

    # -- instructions ------------------------------------------------------------------------

    def _carry_out(self, instruction: Instruction) -> None:
        node = self.node
        match instruction:
            case Tell(report):
                self._executor.tell(node, report)
            case Connect(after_s):
                self._hang_up()
                self._in(after_s, self._over_this_link(self._connect))
            case Send():
                attempt = instruction.order.attempt
                self._move(attempt, lambda: self._send(instruction))
            case Fetch(attempt):
                self._move(attempt, lambda: self._fetch(attempt))
            case Release(worker):
                self._over_the_line(lambda: node.release(worker))
            case Forget(attempt):
                self._over_the_line(lambda: node.forget(attempt))
            case Renew() | EndWorkers() if node.is_cut:
                pass
            case Renew():
                node.renew()
            case EndWorkers():
                node.lose_processes()
            case Abort():
                self._in(0.0, self._over_this_link(lambda: self.lose(LinkLostError("cut off"))))
            case Disconnect():
                self._hang_up()

    def _move(self, attempt: str, arrive: Callable[[], None]) -> None:
        """Files take their time, those of several devices side by side, and tell of it."""
        dice = self._misfortune.aside
        if dice.random() < 0.7:
            self._over_the_line(arrive)
            return
        takes_s = self._misfortune.longest_move_s * dice.random()
        for second in range(int(takes_s)):
            told = self._over_this_link(partial(self._tell_of_move, attempt, second))
            self._in(second, told)
        self._in(takes_s, self._over_this_link(lambda: self._over_the_line(arrive)))

    def _tell_of_move(self, attempt: str, done: int) -> None:
        if not self.node.is_cut:
            self.decide(NodeSession.moved, attempt, done, 40)

    def _hang_up(self) -> None:
        self._number += 1
        self._stalled.clear()
        if self.node.listener is self:
            self.node.listener = None

    def _connect(self) -> None:
        node, dice = self.node, self._misfortune.dice
        if node in self._executor.refused:
            self._fail_to_connect(RefusedError("its host key has changed"))
        elif node.is_cut:
            error = LinkLostError("no route to host")
            fail = self._over_this_link(lambda: self._fail_to_connect(error))
            self._in(dice.uniform(*_NO_ROUTE_S), fail)
        else:
            attempts, workers = self.session.opening()
            known = node.open(self._epoch, attempts, workers, self)
            self.decide(NodeSession.opened, known, self._clock.now)

    def _fail_to_connect(self, error: Exception) -> None:
        self.decide(NodeSession.unreachable, error, self._clock.now)

    def _send(self, send: Send) -> None:
        order, strikes = send.order, self._misfortune.strikes
        if send.instead_of:
            self.node.release(send.instead_of)
        if strikes("order refused"):
            full = AgentError("OSError: no space left on device")
            self.decide(NodeSession.order_refused, order.attempt, full)
            return
        is_reset, arrives = strikes("link reset"), self._misfortune.dice.random() < 0.5
        if is_reset and not arrives:
            self.lose(LinkLostError("the connection broke"))
            return
        given = weights.given(self._executor.store, order.weights, order.optimizer)
        assigned = self.node.take(order, send.worker, given)
        if is_reset:  # its answer never arrives
            self.lose(LinkLostError("the connection broke"))
        else:
            self.decide(NodeSession.ordered, order.attempt, assigned, self._clock.now)

    def _fetch(self, attempt: str) -> None:
        copy = self.node.copies.get(attempt)
        if self._misfortune.strikes("link reset"):
            self.lose(LinkLostError("the connection broke"))
        elif copy and copy.trained:
            digest = self._executor.pull(copy)
            self.decide(NodeSession.fetched, attempt, digest)
        else:
            self.decide(NodeSession.fetch_refused, attempt, AgentError("no such file"))

    # -- what the node says --------------------------------------------------------------------

    def ended(self, node: SimulatedNode, copy: Copy) -> None:
        """A copy's end, as its node tells it."""
        strikes, dice = self._misfortune.strikes, self._misfortune.dice
        if strikes("report dropped"):
            node.forget(copy.order.attempt)
            return
        if dice.random() < 0.3:  # before the answer to what was asked just now
            self._over_the_line(lambda: self._hear(copy), at_once=True)
            return
        delay_s = dice.uniform(0, 60) if strikes("report delayed") else 0.0
        arrive = self._over_this_link(lambda: self._over_the_line(lambda: self._hear(copy)))
        self._in(delay_s, arrive)

    def _hear(self, copy: Copy) -> None:
        attempt = copy.order.attempt
        if copy.crashed or not copy.trained:
            self.node.forget(attempt)
            self.decide(NodeSession.exited, attempt, Exited(1, copy.crashed or WorkerEnd.EXITED))
        else:
            self.decide(NodeSession.finished, attempt, self._executor.says(copy))

    # -- time and the line ---------------------------------------------------------------------

    def _look(self) -> None:
        if self._executor.is_dead:
            return
        if not self.node.is_cut:
            self._heard_at = self._clock.now
        self.decide(NodeSession.look, self._heard_at, self._clock.now)
        self._in(LOOK_EVERY_S, self._look)

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._clock.at(self._clock.now + seconds, action)

    def _over_this_link(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action, as long as the link is today's and the head lives."""
        number = self._number

        def act() -> None:
            if number == self._number and not self._executor.is_dead:
                action()

        return act

    def _over_the_line(self, action: Callable[[], None], at_once: bool = False) -> None:
        """It arrives, or waits for the line to be whole again."""

        def arrive() -> None:
            if self.node.is_cut:
                self._stalled.append(action)
            else:
                action()

        if at_once:
            arrive()
        else:
            self._in(0.0, self._over_this_link(arrive))
