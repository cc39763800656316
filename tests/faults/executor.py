"""The executor port over simulated nodes: real sessions, through a network that fails."""

from __future__ import annotations

import hashlib
import signal
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hadar_cli.core.reasons import Loss
from hadar_cli.engine.ports import CopyOrder, CopyResult, Failed, HandedIn, Merged, Report
from hadar_cli.errors import RefusedError
from hadar_cli.node.agent_events import Finished
from hadar_cli.nodes.gangs import Abandon, FindPort, Gangs, Start, TellHead
from hadar_cli.nodes.orders import read_result
from hadar_cli.nodes.session.decisions import LEASE_S, NodeSession
from hadar_cli.nodes.session.state import Phase
from hadar_cli.nodes.wire import LinkLostError
from tests.faults import lies, weights
from tests.faults.checker import demand
from tests.faults.gangs import OrphanWatch
from tests.faults.misfortune import HeadKilledError
from tests.faults.nodes import Copy, SimulatedNode
from tests.faults.sessions import SimulatedLink

if TYPE_CHECKING:
    from tests.faults.world import World

_GONE_S = 13.0  # after a cut, the node is given up
_MOST_WAITS = 20_000


class FaultyExecutor:
    """One head's. Its sessions are real ones; what they report, and worse, arrives."""

    tick_s = 2.0
    prolongs = False

    def __init__(self, world: World, epoch: int, starts_at: float) -> None:
        self._world = world
        self.clock, self.misfortune, self.store = world.clock, world.misfortune, world.store
        self._zero = world.clock.now - starts_at
        self._held: dict[str, CopyOrder] = {}  # what the head waits for
        self._inbox: deque[Report] = deque()
        self.refused: set[SimulatedNode] = set()
        self.is_dead = self.has_left = False
        self._waits = 0
        enabled = {node.name for node in world.store.facts.nodes if node.enabled}
        self.nodes = [node for node in world.nodes if node.facts.name in enabled]
        self.links = {node: SimulatedLink(self, node, epoch) for node in self.nodes}
        facts = [node.facts for node in world.nodes]
        self._gangs = Gangs(facts, {node.name: f"/{node.name}" for node in facts})
        self._orphans = OrphanWatch(self.now)

    def now(self) -> float:
        return self.clock.now - self._zero

    # -- the port ----------------------------------------------------------------------------

    def adopt(self, orders: Sequence[CopyOrder]) -> None:
        self._die_sometimes()
        for order in orders:
            self._held[order.attempt] = order
        members = self._gangs.adopt(orders)
        for node, link in self.links.items():
            mine = [order for order in members if order.device in node.devices]
            link.decide(NodeSession.begin, mine)

    def start(self, order: CopyOrder) -> None:
        self._die_sometimes()
        self._world.check_device_is_free(order, self._held.values())
        self._world.check_pair_is_not_avoided(order)
        self._held[order.attempt] = order
        self._gangs.start(order)
        self._act()
        self._die_sometimes()

    def wait(self, until: float) -> list[Report]:
        if self.has_left:
            return self._taken()
        self._die_sometimes()
        self._waits += 1
        if self._waits > _MOST_WAITS:
            raise AssertionError("livelock: the loop looks and looks, and nothing moves")
        self._strike_something()
        ends = self.clock.now + max(0.0, until - self.now())
        while not self._inbox and self.clock.step(ends):
            pass
        if self.misfortune.dice.random() < 0.3:  # others may arrive before the head looks
            self.clock.pass_to(self.clock.now + self.misfortune.dice.uniform(0, 0.5))
        self._look_after_gangs()
        return self._taken()

    def _taken(self) -> list[Report]:
        reports = list(self._inbox)
        self._inbox.clear()
        for report in reports:
            if isinstance(report, HandedIn | Failed):
                self._held.pop(report.attempt, None)
        return reports

    def aside(self, work: Callable[[], Merged]) -> Merged | None:
        """At once, or while other things happen; heads die meanwhile, too."""
        if self.has_left:
            return work()
        self._die_sometimes()
        if self.misfortune.aside.random() < 0.5:
            return work()

        def merge() -> None:
            if not self.is_dead:
                self._inbox.append(work())

        self.clock.at(self.clock.now + self.misfortune.aside.uniform(0, 4), merge)
        return None

    def recall(self, attempts: Sequence[str] | None = None) -> None:
        if self.has_left:
            return
        self._die_sometimes()
        members = None if attempts is None else self._gangs.members_of(attempts)
        for link in self.links.values():
            link.decide(NodeSession.recall, members)

    def stop(self, grace_s: float) -> None:
        if not self.is_dead:
            self.stop_nodes(self.nodes)
        if self.has_left:
            forgotten = [r for r in self._inbox if isinstance(r, HandedIn)]
            demand(not forgotten, f"left: {forgotten} had arrived, and nobody heard of it")

    def leave(self, kept: Collection[str]) -> None:
        """The next head adopts what is under way on these nodes."""
        self._die_sometimes()
        self.clock.pass_to(self.clock.now + self.misfortune.aside.uniform(0, 1))  # others hand in
        self.stop_nodes(node for node in self.nodes if node.facts.name not in kept)
        self.is_dead = self.has_left = True
        for node in self.nodes:
            self.links[node].session.close()
            node.listener = None

    def stop_nodes(self, nodes: Iterable[SimulatedNode]) -> None:
        for node in nodes:
            self.links[node].session.close()
            if not node.is_cut:
                node.stop()

    def _look_after_gangs(self) -> None:
        self._gangs.look(self.now())
        self._act()
        for node, link in self.links.items():
            is_open = link.session.phase is Phase.OPEN and not node.is_cut
            self._orphans.look(node, set(link.session.held), is_open)

    def _act(self) -> None:
        """As ``NodeExecutor`` does it."""
        self._gangs.validate()
        for action in self._gangs.take():
            match action:
                case TellHead(report):
                    self._inbox.append(report)
                case Start(order):
                    self.links[self._world.node_of[order.device]].decide(NodeSession.start, order)
                case Abandon(attempts):
                    for link in self.links.values():
                        link.decide(NodeSession.abandon, attempts)
                case FindPort(attempt, device):
                    node = self._world.node_of[device]
                    self._later(2.0, partial(self._answer_port, attempt, node))

    def _answer_port(self, attempt: str, node: SimulatedNode) -> None:
        if node.is_cut or self.misfortune.strikes("order refused"):
            self._gangs.no_port(attempt, "nobody answered", is_gone=node.is_cut)
        else:
            self._gangs.port_found(attempt, 4242)
        self._act()

    def _hear(self, report: Report) -> None:
        self._gangs.hear(report, self.now())
        self._act()

    # -- what copies say ---------------------------------------------------------------------

    def says(self, copy: Copy) -> Finished:
        """What a copy leaves as its result; the same whenever it is asked."""
        order, trained, dice = copy.order, copy.trained, self.misfortune.dice
        assert trained, "only what ended has a result"
        if copy.told:
            return copy.told
        quality = {"loss": float(trained.base.sum())} if order.evaluate else None
        stopped = "steps" if len(copy.steps) == len(order.steps) else "deadline"
        train_s = len(copy.steps) / copy.rate
        true = CopyResult(
            len(copy.steps), copy.steps.ranges, copy.start_s, train_s, 0.1, stopped, 0.5, quality
        )
        lie = self.misfortune.struck(lies.LIES)
        result = lies.tell(lie, order, true, dice) if lie else true
        has_weights = order.returns_weights and lie != "lie: no weights"
        stays = copy.assigned.worker in self._world.node_of[order.device].processes
        written = {
            "steps": result.steps,
            "slices": result.slices,
            "seconds": {"start": result.start_s, "train": result.train_s, "save": result.save_s},
            "metrics": {"loss": result.loss},
            "evaluation": result.quality,
            "stopped": result.stopped,
            "waiting": stays,
            "members": [
                {"rank": rank, "share": share, "step_s": 0.1}
                for rank, share in enumerate(order.shares if copy.order.returns_weights else ())
            ],
        }
        copy.told = Finished(written, "weights" if has_weights else None, 9)
        return copy.told

    def pull(self, copy: Copy) -> str:
        order, trained, cut_to = copy.order, copy.trained, None
        assert trained
        base = order.weights if copy.coded else None
        tensors = copy.coded.tensors if copy.coded else weights.whole(trained.made)
        frozen = weights.frozen_hash(order.job.id)
        self._world.trained[order.attempt] = trained
        is_first = not order.weights and not order.follows  # any shape or base would be right
        struck = self.misfortune.struck(lies.BAD_WEIGHTS[2 * is_first :])
        self._world.spoiled |= {order.attempt} if struck else set()
        match struck:
            case "weights not finite":
                tensors, base = weights.whole(np.full(weights.SIZE, np.nan)), None
            case "weights of another shape":
                tensors, base = weights.whole(np.ones(weights.SIZE + 1)), None
            case "another frozen part" if frozen:
                frozen = hashlib.sha256(order.attempt.encode()).hexdigest()
                self._world.unfit.add(order.attempt)
            case "weights unreadable":
                cut_to = 20
            case "update of other weights":
                other = weights.untrained(order.job.id + 100)
                kind = order.hand_in if order.hand_in != "full" else "bf16"
                tensors = weights.code(trained.made, other, kind, weights.NONE).tensors
                base = "0" * 64
        state = trained.state if trained.sends_state else None
        content = weights.checkpoint(tensors, state, frozen, base)
        return weights.hand_in(self.store, order.attempt, content[:cut_to])

    # -- what arrives ------------------------------------------------------------------------

    def tell(self, node: SimulatedNode, report: Report) -> None:
        """A session's report."""
        self._hear(report)
        if isinstance(report, HandedIn):
            if self.misfortune.strikes("report repeated"):
                self._later(20, lambda: self._hear(report))
            if self.misfortune.strikes("stranger's report"):
                result = CopyResult(3, ((0, 3),), 0.1, 1.0, 0.1, "steps")
                self._inbox.append(HandedIn("e9-r9-c9-999", result, "0" * 64))
        elif isinstance(report, Failed) and report.reason is Loss.NODE_GONE:
            self._haunt(node, report.attempt)

    def _haunt(self, node: SimulatedNode, attempt: str) -> None:
        """The copy that is given up now has lived on all the same."""
        ghost = node.copies.get(attempt)
        is_whole = ghost and (ghost.trained or node.trains(ghost))
        if ghost and is_whole and self.misfortune.strikes("result after loss"):
            if not ghost.trained:
                node.finish(ghost)
            self._later(60, lambda: self._deliver(ghost))

    def _deliver(self, copy: Copy) -> None:
        finished, order = self.says(copy), copy.order
        assert copy.trained
        result, stays = read_result(finished.result, order)
        has_weights = result.steps and finished.checkpoint
        digest = self.pull(copy) if has_weights else None
        self._hear(HandedIn(order.attempt, result, digest, copy.assigned.is_warm, stays))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        when = self.clock.now + self.misfortune.dice.uniform(0, seconds)
        self.clock.at(when, lambda: None if self.is_dead else action())

    # -- what goes wrong ---------------------------------------------------------------------

    def _die_sometimes(self) -> None:
        if self.is_dead or self.misfortune.strikes("head killed"):
            raise HeadKilledError("killed")

    def _strike_something(self) -> None:
        strikes, dice = self.misfortune.strikes, self.misfortune.dice
        node = dice.choice(self.nodes)
        if strikes("interrupted"):
            signal.raise_signal(signal.SIGINT)
        if strikes("interrupted twice"):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        if strikes("second head"):
            self._world.check_second_head_is_refused()
        link = self.links[node]
        if node.is_cut or link.session.phase is not Phase.OPEN:
            return
        if strikes("node rebooted"):
            node.listener = None
            node.lose_processes()
            link.lose(LinkLostError("the connection ended"))
        elif strikes("link cut shortly"):
            self._cut(node, dice.uniform(0.1, _GONE_S - 1))
        elif strikes("link cut for long"):
            self._cut(node, dice.uniform(_GONE_S + 1, 200))
        elif len(self.nodes) > 1 and not self.refused and strikes("node refused"):
            self.refused.add(node)
            node.is_cut = True
            link.lose(RefusedError("its host key has changed"))

    def _cut(self, node: SimulatedNode, seconds: float) -> None:
        node.is_cut = True
        node.let_lease_run_out(LEASE_S + self.misfortune.dice.uniform(0, 5))
        if self.misfortune.dice.random() < 0.3:  # and both ends know it at once
            self.links[node].lose(LinkLostError("the connection was reset"))
        self.clock.at(self.clock.now + seconds, lambda: self._world.mend(node))
