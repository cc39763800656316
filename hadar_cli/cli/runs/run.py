"""``hadar run MIX``: checks everything, then trains to the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.options import (
    DEFAULT_NODES,
    DEFAULT_RUNS,
    AsJson,
    NodesFile,
    NoLive,
    Notify,
    Observe,
    RunsDir,
    channels,
    flag,
    observers,
    preset_note,
    read_inventory,
    require_file,
    stderr,
)

if TYPE_CHECKING:
    from hadar_cli.cli.uploads import Upload
    from hadar_cli.core.model import Device, Mix, Node
    from hadar_cli.runs.store import RunFacts


_Policy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:field=value,...]",
        help="Use this policy, not the mix's.",
        autocompletion=completion.policies,
    ),
]
_Slot = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0.1, help="How long a round lasts.")
]
_Seed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Seed of the order of the data.")
]
_DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the paper's data sets are.")
]
_Waits = Annotated[
    bool, flag("--wait-for-work", "Stay when all is done, for more: hadar add, hadar close.")
]


def run(
    mix: Annotated[Path, typer.Argument(metavar="MIX", help="The batch of jobs, a YAML file.")],
    nodes: NodesFile = DEFAULT_NODES,
    runs_dir: RunsDir = DEFAULT_RUNS,
    policy: _Policy = None,
    slot: _Slot = None,
    seed: _Seed = None,
    data_dir: _DataDir = None,
    name: Annotated[str | None, typer.Option(metavar="RUN", help="What to call the run.")] = None,
    wait_for_work: _Waits = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Show what would run where, and start nothing.")
    ] = False,
    observe: Observe = None,
    notify: Notify = None,
    as_json: AsJson = False,
    no_live: NoLive = False,
) -> None:
    """Train a mix of jobs on the machines of the inventory.

    Ctrl-C stops the run: copies hand in what they have, and `hadar resume` goes on from there.
    """
    from hadar_cli.api import facts_of
    from hadar_cli.assembly import check_nodes, priced
    from hadar_cli.cli.foreground import run_in_foreground
    from hadar_cli.cli.uploads import uploads
    from hadar_cli.core.model import devices_of
    from hadar_cli.runs.store import RunStore
    from hadar_cli.simulation.fitting import slot_for
    from hadar_cli.simulation.forecast import gather

    watched, told = observers(observe), channels(notify)
    inventory = priced(read_inventory(nodes), stderr().print)
    batch = _read_mix(mix, devices_of(inventory), data_dir, policy, slot, seed)
    if batch.chooses_slot and not slot:
        batch = replace(batch, slot_s=slot_for(gather(batch, inventory, runs_dir).costs))
    if dry_run:
        from hadar_cli.cli.dry_run import show

        show(batch, inventory, runs_dir, as_json)
        return
    check_nodes(inventory)
    inventory = _reaching(batch, inventory, mix, runs_dir)
    sent = uploads(batch)
    facts = replace(facts_of(batch, inventory, runs_dir, name), waits_for_work=wait_for_work)
    _announce(facts, sent)
    run_in_foreground(RunStore.create(runs_dir, facts), as_json, no_live, watched, told)


def _read_mix(
    path: Path,
    devices: list[Device],
    data_dir: Path | None,
    policy: str | None,
    slot_s: float | None,
    seed: int | None,
) -> Mix:
    """The mix as the options change it, its policy checked."""
    from hadar_cli import policies
    from hadar_cli.cli.policy_options import parse_policy
    from hadar_cli.config.mixes import read_mix
    from hadar_cli.core.estimates.suitability import require_room
    from hadar_cli.core.model import are_accelerators

    require_file(path)
    mix = read_mix(path, accelerators=are_accelerators(devices), data_dir=data_dir)
    changes: dict[str, Any] = {"slot_s": slot_s, "seed": seed}
    if policy:
        changes["policy"] = parse_policy(policy)
    mix = replace(mix, **{key: value for key, value in changes.items() if value is not None})
    chosen = policies.create(mix.policy, file=None if policy else str(path))
    require_room(mix.jobs, devices, str(path), gangs=not chosen.forks)
    return mix


def _reaching(batch: Mix, inventory: tuple[Node, ...], path: Path, runs: Path) -> tuple[Node, ...]:
    """The nodes, with those of a network parted that do not reach each other, whatever it says.

    A gang too large for what is left is refused here, and not lost on the way.
    """
    from hadar_cli import policies
    from hadar_cli.core.estimates.suitability import require_room
    from hadar_cli.core.model import devices_of
    from hadar_cli.report.format import plain
    from hadar_cli.visits.links import FIX, measure_links, part_networks

    links = measure_links(inventory, runs)
    broken = [link for link in links if link.problem]
    if not broken:
        return inventory
    for link in broken:
        stderr().print(f"no gang will span them: {plain(link.why, 300)}", style="yellow")
    stderr().print(f"fix: {FIX}")
    parted = tuple(part_networks(inventory, links))
    forks = policies.create(batch.policy).forks
    require_room(batch.jobs, devices_of(parted), str(path), gangs=not forks)
    return parted


def _announce(facts: RunFacts, sent: list[Upload]) -> None:
    from hadar_cli.cli.uploads import lines
    from hadar_cli.core.model import devices_of
    from hadar_cli.report.format import count, duration
    from hadar_cli.report.terminal.sweep import sweep_plans

    console, mix, devices = stderr(), facts.mix, devices_of(facts.nodes)
    jobs, steps = len(mix.jobs), sum(job.target_steps for job in mix.jobs)
    size = [count(jobs, "job"), count(steps, "step"), count(len(devices), "device")]
    console.print(f"run {facts.id}: {', '.join(size)}")
    if note := preset_note(mix, devices):
        console.print(note)
    if mix.chooses_slot:
        console.print(f"slot_s auto: rounds of {mix.slot_s:g} s")
    for line in lines(mix, sent):
        console.print(line)
    for told in sweep_plans(mix.jobs):
        console.print(told)
    if facts.forecast:
        expected = facts.forecast
        console.print(f"forecast: {duration(expected.ttd_s)}, {expected.caution}")
