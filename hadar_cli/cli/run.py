"""``hadar run MIX``: checks everything, then trains to the end."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hadar_cli import __version__
from hadar_cli.cli import completion
from hadar_cli.cli.options import (
    DEFAULT_NODES,
    DEFAULT_RUNS,
    AsJson,
    NodesFile,
    NoLive,
    RunsDir,
    all_devices,
    are_accelerators,
    flag,
    read_inventory,
    require_file,
    stderr,
)
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from hadar_cli.app.forecast import Forecast
    from hadar_cli.core.model import Device, Mix, Node, PolicyChoice

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def run(
    mix: Annotated[Path, typer.Argument(metavar="MIX", help="The batch of jobs, a YAML file.")],
    nodes: NodesFile = DEFAULT_NODES,
    runs_dir: RunsDir = DEFAULT_RUNS,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:field=value,...]",
            help="Use this policy, not the mix's.",
            autocompletion=completion.policies,
        ),
    ] = None,
    slot: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="How long a round lasts.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="Orders the data.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the paper's data sets are.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="RUN", help="What to call the run.")] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Show what would run where, and start nothing.")
    ] = False,
    as_json: AsJson = False,
    no_live: NoLive = False,
) -> None:
    """Train a mix of jobs on the machines of the inventory."""
    from hadar_cli.adapters.head import check_nodes
    from hadar_cli.adapters.store import RunFacts, RunStore

    inventory = read_inventory(nodes)
    devices = all_devices(inventory)
    batch = _read_mix(mix, devices, data_dir, policy, slot, seed)
    if batch.chooses_slot and not slot:
        from hadar_cli.adapters.fitting import slot_for
        from hadar_cli.adapters.forecast import gather

        known = gather(batch, inventory, runs_dir, are_accelerators(devices))
        batch = replace(batch, slot_s=slot_for(known.costs))
    if dry_run:
        from hadar_cli.cli.dry_run import show

        show(batch, inventory, runs_dir, as_json)
        return
    check_nodes(inventory)
    now = datetime.now().astimezone()
    run_id = _run_id(runs_dir, name, f"{batch.name}-{now:%m%d-%H%M}")
    facts = RunFacts(
        id=run_id,
        mix=batch,
        nodes=inventory,
        started_at=now.isoformat(timespec="seconds"),
        hadar_version=__version__,
        forecast=rehearse(batch, inventory, runs_dir),
        token=secrets.token_hex(8),
    )
    _announce(batch, devices, run_id)
    if facts.forecast:
        from hadar_cli.report.format import duration

        forecast = facts.forecast
        stderr().print(f"forecast: {duration(forecast.ttd_s)}, {forecast.caution}")
    from hadar_cli.cli.conduct import conduct

    conduct(RunStore.create(runs_dir, facts), as_json, no_live)


def _read_mix(
    path: Path,
    devices: list[Device],
    data_dir: Path | None,
    policy: str | None,
    slot_s: float | None,
    seed: int | None,
) -> Mix:
    """The mix as the options change it, its policy checked."""
    from hadar_cli.adapters.config import read_mix
    from hadar_cli.core.policies import registry

    require_file(path)
    mix = read_mix(path, accelerators=are_accelerators(devices), data_dir=data_dir)
    changes: dict[str, Any] = {"slot_s": slot_s, "seed": seed}
    if policy:
        changes["policy"] = parse_policy(policy)
    mix = replace(mix, **{key: value for key, value in changes.items() if value is not None})
    chosen = registry.create(mix.policy, file=None if policy else str(path))
    wide = next((job for job in mix.jobs if job.gpus > 1), None)
    if wide and not chosen.forks:
        raise InputError(
            f"{chosen.name!r} would give job {wide.name!r} {wide.gpus} devices at once, "
            "and gangs can only be simulated yet",
            file=str(path),
            field="gpus",
            fix="leave out 'gpus', use policy 'hadare', which forks jobs, or: hadar simulate",
        )
    return mix


def parse_policy(text: str) -> PolicyChoice:
    """``hadare:stickiness=0.1,crumb_s=2`` as a choice; the registry checks names and types."""
    from hadar_cli.core.model import PolicyChoice

    name, _, rest = text.partition(":")
    fields: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        field, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} is not field=value", field="--policy")
        fields[field.strip()] = _scalar(value.strip())
    return PolicyChoice(name.strip(), fields)


def _scalar(word: str) -> bool | int | float | str:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _run_id(runs: Path, name: str | None, stem: str) -> str:
    """The name asked for, or the stem with a number where it is taken."""
    if name is None:
        count, run_id = 1, stem
        while (runs / run_id).exists():
            count += 1
            run_id = f"{stem}-{count}"
        return run_id
    if not _RUN_NAME.fullmatch(name):
        fix = "use letters, digits, dots, dashes and underscores"
        raise InputError(f"{name!r} cannot name a run", field="--name", fix=fix)
    from hadar_cli.adapters.store import is_taken

    if is_taken(runs / name):
        raise InputError(
            f"there is already a run {name!r} in {runs}/",
            field="--name",
            fix=f"choose another name, or go on with it: hadar resume {name}",
        )
    return name


def rehearse(mix: Mix, nodes: tuple[Node, ...], runs_dir: Path) -> Forecast | None:
    """The run rehearsed on paper, to be held against what happens."""
    from hadar_cli.adapters.forecast import foresee, gather

    knowledge = gather(mix, nodes, runs_dir, are_accelerators(all_devices(nodes)))
    outlook = foresee(mix, nodes, knowledge, worths=False)
    return outlook.forecast if outlook else None


def _announce(mix: Mix, devices: list[Device], run_id: str) -> None:
    from hadar_cli.report.format import count

    console = stderr()
    jobs, steps = len(mix.jobs), sum(job.target_steps for job in mix.jobs)
    facts = [count(jobs, "job"), count(steps, "step"), count(len(devices), "device")]
    console.print(f"run {run_id}: {', '.join(facts)}")
    if note := preset_note(mix, devices):
        console.print(note)
    if mix.chooses_slot:
        console.print(f"slot_s auto: rounds of {mix.slot_s:g} s")


def preset_note(mix: Mix, devices: list[Device]) -> str | None:
    """What ``preset: auto`` came to, if a job of the mix may have used it."""
    real = are_accelerators(devices)
    taken = "paper" if real else "tiny"
    if not any(job.launch.workload and job.launch.preset == taken for job in mix.jobs):
        return None
    if real:
        return "preset auto: the paper's models, as every device is a GPU"
    return "preset auto: tiny models on synthetic data, as not every device is a GPU"
