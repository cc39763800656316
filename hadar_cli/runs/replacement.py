"""Other machines for a run that was stopped: the inventory is replaced, and the journal says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hadar_cli.core.events import NodesReplaced
from hadar_cli.core.model import Device, Node
from hadar_cli.core.state import RunState
from hadar_cli.runs.store import FileJournal, RunStore, contradictions_of, mend_journal


def replace_nodes(store: RunStore, nodes: Sequence[Node]) -> NodesReplaced | None:
    """Gives the run these nodes; None if it has them already. No head may drive it meanwhile."""
    with store.locked():
        facts = store.facts
        if facts.nodes == tuple(nodes):
            return None
        state = RunState(facts.mix.jobs)
        with contradictions_of(store):
            for event in mend_journal(store.journal_path):
                state.apply(event)
        replaced = difference(facts.nodes, nodes, state.now)
        state.check(replaced)
        # The journal first: where only that was written, the next try finds the same difference.
        journal = FileJournal(store.journal_path)
        journal.append(replaced)
        journal.close()
        store.write_facts(replace(facts, nodes=tuple(nodes)))
    return replaced


def difference(before: Sequence[Node], after: Sequence[Node], now_s: float) -> NodesReplaced:
    """What changes for a run whose inventory becomes another."""
    old, new = _places(before), _places(after)
    return NodesReplaced(
        now_s,
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and new[name] != old[name]),
    )


def _places(nodes: Sequence[Node]) -> dict[str, tuple[Device, Node]]:
    """Every device and the machine it is in, without what may change and leave it the same."""
    found: dict[str, tuple[Device, Node]] = {}
    for node in nodes:
        if node.enabled:
            machine = replace(
                node,
                gpus=(),
                identity_file=None,
                proxy_jump=None,
                host_key=None,
                known_hosts=None,
                max_gpu_mem=None,
                hours=None,
                turn_s=0.0,
                price_per_hour=None,
                aws=replace(node.aws, budget=None) if node.aws else None,
            )
            found |= {device.name: (device, machine) for device in node.devices}
    return found
