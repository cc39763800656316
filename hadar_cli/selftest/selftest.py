"""The self-test as a whole: from what visits tell to a run that is killed and resumed."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hadar_cli import __version__
from hadar_cli.core.model import Mix, Node
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.selftest.findings import ALL, Finding
from hadar_cli.selftest.machines import hold_memory, judge, send_files
from hadar_cli.selftest.training import kill_and_resume, remove, train
from hadar_cli.visits.inspection import Inspection, inspect


def try_all(
    nodes: Sequence[Node], timeout_s: float, tell: Callable[[str], None]
) -> tuple[list[Inspection], list[Finding]]:
    """Tries everything; ``tell`` hears what is under way. No run stays, here or on the nodes."""
    with tempfile.TemporaryDirectory(prefix="hadar-selftest-") as directory:
        runs = Path(directory)
        tell("looking at every machine")
        seen, complete = inspect(nodes, runs, timeout_s)
        list(complete)
        findings = [finding for one in seen for finding in judge(one)]
        findings += _try_usable([one for one in seen if one.is_usable], runs, tell)
    return seen, findings


def _try_usable(
    seen: Sequence[Inspection], runs: Path, tell: Callable[[str], None]
) -> Iterator[Finding]:
    tell("filling the memory of every card")
    yield from hold_memory(seen, runs)
    tell("sending 64 MB to every machine and back")
    yield from _try_files([one.node for one in seen], runs)
    devices = [d.name for one in seen for d in one.node.devices if d.name not in one.left_alone]
    nodes = [one.node for one in seen if len(one.left_alone) < len(one.node.devices)]
    if not devices:
        yield Finding(ALL, "training", None, "not tried: no device is free")
        return
    tell("training a few steps on every device")
    trained, steps_per_s = train(nodes, devices)
    yield from trained
    if not steps_per_s:
        yield Finding(ALL, "kill and resume", None, "not tried: no device trains")
        return
    yield from kill_and_resume(nodes, runs, steps_per_s, tell)


def _try_files(nodes: Sequence[Node], runs: Path) -> Iterator[Finding]:
    name = f"selftest-{secrets.token_hex(4)}"
    store = RunStore.create(runs, RunFacts(name, Mix(name, ()), tuple(nodes), "", __version__))
    try:
        yield from send_files(nodes, store)
    finally:
        remove(nodes, store)
