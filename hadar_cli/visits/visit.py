"""A short visit to a node, outside any run: to look around, to tidy up, to read logs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hadar_cli.core.model import Node
from hadar_cli.errors import RunLockedError
from hadar_cli.nodes.local import LOCAL_SHARED
from hadar_cli.nodes.remote import DEFAULT_WORKDIR
from hadar_cli.nodes.wire import Message, Wire, read_as, said
from hadar_cli.runs.store import RunStore
from hadar_cli.transports import GivenBack, access_to, give_back

DEADLINE_S = 15.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What runs have left on a node; what was sent there for several counts as well."""

    bytes: int
    processes: int
    code_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Tidied:
    before: Leftovers
    after: Leftovers
    note: str = ""

    def beside(self, lent: GivenBack) -> Tidied:
        """An allocation counts as a process: it keeps one."""
        before, after = self.before.processes + lent.before, self.after.processes + lent.after
        ended = f"ended {', '.join(lent.names)}" if lent.names else ""
        return Tidied(
            replace(self.before, processes=before), replace(self.after, processes=after), ended
        )


class Visit:
    """At one node, which answers one question after the other."""

    def __init__(self, node: Node, wire: Wire, runs: Path) -> None:
        self.node, self._wire = node, wire
        self._place = _place(node, runs)

    def ask(self, do: str, **fields: Any) -> Message:
        """Sends a request that may say where the node keeps its runs, and returns the answer."""
        self._wire.send({"do": do, **self._place, **fields})
        return self._wire.answer()

    def leftovers(self, run: str | None = None) -> Leftovers:
        """What the run, or all runs, left there."""
        return read_as(self.ask("leftovers", run=run), Leftovers)

    def tidy(self, action: str, run: str | None, held: Sequence[str]) -> Tidied:
        """Stops (``stop``) or removes (``remove``) what the run, or all runs, left there.

        Refused while a head is at work on one of them, but for those whose lock we hold: ``held``
        are their tokens.
        """
        answer = self.ask(action, run=run, held=list(held))
        if driven := answer.get("driven"):
            run = driven[0] if isinstance(driven, list) else driven
            raise RunLockedError(
                f"another hadar uses this node, for run {said(run)}",
                "wait for it to end, or cancel it on its own computer",
            )
        return read_as(answer, Tidied)

    def echo_s(self) -> float:
        began = time.perf_counter()
        self.ask("echo")
        return time.perf_counter() - began

    def send_s(self, count: int) -> float:
        """How long ``count`` bytes take to the node."""
        began = time.perf_counter()
        self._wire.send({"do": "take", "bytes": count})
        self._wire.send_bytes(bytes(count))
        self._wire.answer()
        return time.perf_counter() - began

    def fetch_s(self, count: int) -> float:
        """How long ``count`` bytes take from the node."""
        began = time.perf_counter()
        self._wire.send({"do": "give", "bytes": count})
        self._wire.answer()
        for _ in self._wire.receive_bytes(count):
            pass
        return time.perf_counter() - began


def _place(node: Node, runs: Path) -> Message:
    """Where the node keeps its runs, as ``node.leftovers.Place`` reads it."""
    if node.is_local:
        base = str(runs.resolve())
        return {
            "workdir": base,
            "base": base,
            "tail": f"nodes/{node.name}",
            "shared": f"{base}/{LOCAL_SHARED}",
        }
    workdir = node.workdir or DEFAULT_WORKDIR
    return {
        "workdir": workdir,
        "base": f"{workdir}/runs",
        "tail": node.name,
        "shared": workdir,
    }


@contextmanager
def visiting(
    node: Node, runs: Path, patience_s: float = DEADLINE_S, run: str = ""
) -> Iterator[Visit]:
    """Goes to the node; raises a HadarError with its fix where that fails.

    A machine that is rented can be visited on behalf of its ``run`` only; none is for a visit.
    """
    of_run = RunStore(runs / run) if run and node.aws else None
    with closing(access_to(node, of_run, may_start=False)) as access:
        yield Visit(node, access.open("visits", patience_s), runs)


def on_all(
    nodes: Sequence[Node], call: Callable[[Node], T], deadline_s: float
) -> Iterator[tuple[Node, T | Exception]]:
    """Calls for each node at once and gives its result or error, in the order they arrive.

    A node that hangs holds up nobody: past the deadline its result is a TimeoutError that tells
    how long it was waited for, and its thread, a daemon, is left to itself.
    """
    results: queue.Queue[tuple[Node, T | Exception]] = queue.Queue()

    def run(node: Node) -> None:
        try:
            results.put((node, call(node)))
        except Exception as error:  # whatever happens there costs this node only
            results.put((node, error))

    left = {node.name: node for node in nodes}
    deadline = time.monotonic() + deadline_s
    for node in nodes:
        threading.Thread(target=run, args=(node,), daemon=True).start()
    while left:
        try:
            node, result = results.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        del left[node.name]
        yield node, result
    for node in left.values():
        yield node, TimeoutError(f"{deadline_s:g} s")


def tidy(
    nodes: Sequence[Node],
    runs: Path,
    action: str,
    run: str | None,
    held: Sequence[str],
    deadline_s: float,
) -> Iterator[tuple[Node, Tidied | Exception]]:
    """``Visit.tidy`` on all nodes at once; ``held`` are the runs here whose lock we hold."""
    stores = [RunStore(runs / name) for name in ([run] if run else held)]
    tokens = [store.facts.token for store in stores]

    def call(node: Node) -> Tidied:
        lent = give_back(node, stores)
        if node.aws:  # its files are gone with it, or lie on the disk of one that is stopped
            nothing = Leftovers(0, 0)
            return Tidied(nothing, nothing).beside(lent)
        with visiting(node, runs, deadline_s) as visit:
            return visit.tidy(action, run, tokens).beside(lent)

    return on_all(nodes, call, deadline_s)
