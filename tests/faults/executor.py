"""The head's hand on the simulated nodes: the executor port, through a network that fails."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hadar_cli.app.ports import (
    CopyOrder,
    CopyResult,
    Failed,
    HandedIn,
    NodeBack,
    NodeGone,
    NodeSilent,
    Report,
)
from tests.faults import lies, weights
from tests.faults.misfortune import HeadKilledError
from tests.faults.nodes import LEASE_S, Copy, SimulatedNode

if TYPE_CHECKING:
    from tests.faults.world import World

_SILENT_S, _GONE_S = 4.0, 13.0  # after a cut: nobody waits for the node, it is given up
_LATE_S = 150.0  # past its deadline a copy that was never heard of is given up
_MOST_WAITS = 20_000


class FaultyExecutor:
    """One head's. What it reports is what ``NodeExecutor`` would, and worse."""

    tick_s = 2.0
    prolongs = False

    def __init__(self, world: World, epoch: int, starts_at: float) -> None:
        self._world, self._epoch = world, epoch
        self._clock, self._misfortune = world.clock, world.misfortune
        self._zero = world.clock.now - starts_at
        self._held: dict[str, CopyOrder] = {}  # what the head waits for
        self._inbox: deque[Report] = deque()
        self._gone: set[SimulatedNode] = set()
        self.refused: set[SimulatedNode] = set()
        self._delayed: dict[SimulatedNode, list[CopyOrder]] = {}
        self.is_dead = False
        self._waits = 0

    def now(self) -> float:
        return self._clock.now - self._zero

    # -- the port ----------------------------------------------------------------------------

    def adopt(self, orders: Sequence[CopyOrder]) -> None:
        self._die_sometimes()
        for order in orders:
            self._hold(order)
        for node in self._world.nodes:
            if node.is_cut:
                self._give_up(node)
            else:
                self._open(node)

    def start(self, order: CopyOrder) -> None:
        self._die_sometimes()
        self._world.check_device_is_free(order, self._held.values())
        self._hold(order)
        node = self._world.node_of[order.device]
        if node in self._gone:
            self._fail(order.attempt, "its node is gone")
        elif node.is_cut:
            self._delayed.setdefault(node, []).append(order)
        else:
            self._send(node, order)
        self._die_sometimes()

    def wait(self, until: float) -> list[Report]:
        self._die_sometimes()
        self._waits += 1
        if self._waits > _MOST_WAITS:
            raise AssertionError("livelock: the loop looks and looks, and nothing moves")
        self._strike_something()
        ends = self._clock.now + max(0.0, until - self.now())
        while not self._inbox and self._clock.step(ends):
            pass
        if self._misfortune.dice.random() < 0.3:  # others may arrive before the head looks
            self._clock.pass_to(self._clock.now + self._misfortune.dice.uniform(0, 0.5))
        reports = list(self._inbox)
        self._inbox.clear()
        for report in reports:
            if isinstance(report, HandedIn | Failed):
                self._held.pop(report.attempt, None)
        return reports

    def recall(self, attempts: Sequence[str] | None = None) -> None:
        self._die_sometimes()
        for attempt in list(self._held) if attempts is None else attempts:
            if order := self._held.get(attempt):
                node = self._world.node_of[order.device]
                if not node.is_cut:
                    node.release(attempt)

    def stop(self, grace_s: float) -> None:
        if not self.is_dead:
            for node in self._world.nodes:
                if not node.is_cut:
                    node.stop()

    # -- orders ------------------------------------------------------------------------------

    def _hold(self, order: CopyOrder) -> None:
        self._held[order.attempt] = order
        late_at = self._clock.now + order.seconds + _LATE_S
        self._clock.at(late_at, lambda: self._fail(order.attempt, "nothing was heard of it", False))

    def _open(self, node: SimulatedNode) -> None:
        mine = [a for a, order in self._held.items() if order.device in node.devices]
        known = node.open(self._epoch, mine, self)
        waiting = self._delayed.pop(node, [])
        for attempt in set(mine) - known - {order.attempt for order in waiting}:
            self._fail(attempt, "its node knows nothing of it")
        for order in waiting:
            if order.attempt in self._held:
                self._send(node, order)

    def _send(self, node: SimulatedNode, order: CopyOrder) -> None:
        path = self._world.store.object_path(order.weights) if order.weights else None
        node.take(order, weights.load(path) if path else None)

    def _fail(self, attempt: str, why: str, node_fault: bool = True) -> None:
        if self._held.get(attempt) and not self.is_dead:
            self._inbox.append(Failed(attempt, why, node_fault=node_fault))

    # -- reports -----------------------------------------------------------------------------

    def ended(self, node: SimulatedNode, copy: Copy) -> None:
        """A copy's end, as its node tells it; it waits there while the line is cut."""
        attempt, strikes = copy.order.attempt, self._misfortune.strikes
        if self.is_dead or node.is_cut or (attempt not in self._held and not copy.trained):
            return
        if strikes("report dropped"):
            node.forget(attempt)
            return
        delay_s = self._misfortune.dice.uniform(0, 60) if strikes("report delayed") else 0.0
        times = 2 if strikes("report repeated") else 1
        for _ in range(times):
            self._clock.at(self._clock.now + delay_s, lambda: self._collect(node, copy))
            delay_s += self._misfortune.dice.uniform(0, 20)

    def _collect(self, node: SimulatedNode, copy: Copy) -> None:
        attempt = copy.order.attempt
        if self.is_dead or node.is_cut:
            return
        node.forget(attempt)
        if copy.crashed or not copy.trained:
            if attempt in self._held:
                self._inbox.append(Failed(attempt, "it exited with code 1"))
            return
        self._deliver(copy)

    def _deliver(self, copy: Copy) -> None:
        self._inbox.append(self._report_of(copy))
        if self._misfortune.strikes("stranger's report"):
            result = CopyResult(3, ((0, 3),), 0.1, 1.0, 0.1, "steps")
            self._inbox.append(HandedIn("e9-r9-c9-999", result, "0" * 64))

    def _report_of(self, copy: Copy) -> HandedIn:
        order, trained, dice = copy.order, copy.trained, self._misfortune.dice
        assert trained, "only what ended is delivered"
        quality = {"loss": float(trained.base.sum())} if order.evaluate else None
        stopped = "steps" if len(copy.steps) == len(order.steps) else "deadline"
        train_s = len(copy.steps) / copy.rate
        true = CopyResult(
            len(copy.steps), copy.steps.ranges, copy.start_s, train_s, 0.1, stopped, 0.5, quality
        )
        lie = self._misfortune.struck(lies.LIES)
        result = lies.tell(lie, order, true, dice) if lie else true
        digest = None
        if result.steps and order.hand_in and lie != "lie: no weights":
            digest = self._pull(order, trained)
        return HandedIn(order.attempt, result, digest, copy.start_s == 0.0, stays=True)

    def _pull(self, order: CopyOrder, trained: weights.Trained) -> str:
        vector, base, cut_to = trained.made, trained.base, None
        base_name = order.weights if order.rounded else None
        self._world.trained[order.attempt] = weights.rounded(trained) if base_name else trained
        is_first = not order.weights and not order.follows  # any shape would be right
        match self._misfortune.struck(lies.BAD_WEIGHTS[is_first:]):
            case "weights not finite":
                vector = np.full_like(vector, np.nan)
            case "weights of another shape":
                vector = np.ones(weights.SIZE + 1)
            case "weights unreadable":
                cut_to = 20
            case "update of other weights":
                base, base_name = weights.untrained(order.job.id + 100), "0" * 64
        content = weights.update(vector, base, base_name) if base_name else weights.whole(vector)
        return weights.hand_in(self._world.store, order.attempt, content[:cut_to])

    # -- what goes wrong ---------------------------------------------------------------------

    def _die_sometimes(self) -> None:
        if self.is_dead or self._misfortune.strikes("head killed"):
            raise HeadKilledError("killed")

    def _strike_something(self) -> None:
        strikes, dice = self._misfortune.strikes, self._misfortune.dice
        node = dice.choice(self._world.nodes)
        if strikes("interrupted"):
            signal.raise_signal(signal.SIGINT)
        if strikes("interrupted twice"):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        if strikes("second head"):
            self._world.check_second_head_is_refused()
        if node.is_cut or node in self._gone:
            return
        if strikes("node rebooted"):
            node.lose_processes()
        elif strikes("link cut shortly"):
            self._cut(node, dice.uniform(0.1, _GONE_S - 1))
        elif strikes("link cut for long"):
            self._cut(node, dice.uniform(_GONE_S + 1, 200))
        elif len(self._world.nodes) > 1 and not self.refused and strikes("node refused"):
            self.refused.add(node)
            node.is_cut = True
            self._give_up(node, refused=True)

    def _cut(self, node: SimulatedNode, seconds: float) -> None:
        node.is_cut = True
        node.let_lease_run_out(LEASE_S + self._misfortune.dice.uniform(0, 5))
        ends = self._clock.now + seconds
        if seconds > _SILENT_S:
            self._clock.at(self._clock.now + _SILENT_S, lambda: self._tell_silence(node))
        if seconds > _GONE_S:
            self._clock.at(self._clock.now + _GONE_S, lambda: self._give_up(node))
        self._clock.at(ends, lambda: self._world.mend(node))

    def _tell_silence(self, node: SimulatedNode, is_over: bool = False) -> None:
        if not self.is_dead and node not in self._gone:
            self._inbox.append(NodeSilent(node.devices, is_over))

    def _give_up(self, node: SimulatedNode, refused: bool = False) -> None:
        if self.is_dead:
            return
        self._gone.add(node)
        self._delayed.pop(node, None)
        for attempt, order in list(self._held.items()):
            if order.device in node.devices:
                self._haunt(node, attempt)
                self._fail(attempt, "its node is gone")
        self._inbox.append(NodeGone(node.devices, "no route to host", refused))

    def _haunt(self, node: SimulatedNode, attempt: str) -> None:
        """The copy that is given up now has lived on all the same."""
        ghost = node.copies.get(attempt)
        is_whole = ghost and (ghost.trained or node.trains(ghost))
        if ghost and is_whole and self._misfortune.strikes("result after loss"):
            if not ghost.trained:
                node.finish(ghost)
            when = self._clock.now + self._misfortune.dice.uniform(0, 60)
            self._clock.at(when, lambda: None if self.is_dead else self._deliver(ghost))

    def reach_again(self, node: SimulatedNode) -> None:
        if self.is_dead:
            return
        if node in self._gone:
            self._gone.discard(node)
            self._inbox.append(NodeBack(node.devices))
        self._tell_silence(node, is_over=True)
        self._open(node)
