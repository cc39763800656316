"""``hadar profile nodes``: what the machines are, and how fast they train."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.options import (
    DEFAULT_NODES,
    DEFAULT_RUNS,
    AsJson,
    NodesFile,
    Timeout,
    cached_profile,
    flag,
    print_json,
    read_enabled,
    stderr,
    stdout,
)
from hadar_cli.errors import unknown

if TYPE_CHECKING:
    from pathlib import Path

    from hadar_cli.cli.records import NodeProblem, Profile
    from hadar_cli.core.estimates.throughput import RateModel
    from hadar_cli.core.model import Device, Job, Node
    from hadar_cli.trial.speeds import Measured
    from hadar_cli.visits.discovery import Discovery

app = typer.Typer(no_args_is_help=True, help="Show how fast the machines train.")

_MANY_STEPS = 10**6  # more than any device does in the seconds that measuring takes
_LONGEST = 600  # of a machine's own words
_HOW = "Measured with all devices training at once, as a run loads them, after a warm-up."


@app.callback()
def _group() -> None:
    """How fast the machines train: `hadar profile nodes`."""


@app.command("nodes")
def profile_nodes(
    nodes: NodesFile = DEFAULT_NODES,
    measure: Annotated[
        bool, flag("--measure", "Train each workload for a few seconds and compare.")
    ] = False,
    workload: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this workload; may be repeated.")
    ] = None,
    timeout_s: Timeout = 15.0,
    as_json: AsJson = False,
) -> None:
    """Show the devices and their estimated or measured steps per second.

    Machines whose `gpus` the inventory does not list are asked for them. What they answer is kept
    in a file beside the inventory, for all other commands.
    """
    from hadar_cli.core.estimates.throughput import RateModel
    from hadar_cli.core.model import are_accelerators, devices_of

    inventory, strange = _discover(nodes, timeout_s)
    devices = devices_of(inventory)
    jobs = _jobs(workload or [], "paper" if are_accelerators(devices) else "tiny")
    rates = RateModel(jobs, devices)
    measured = _measure(inventory, jobs) if measure else []
    if as_json:
        print_json(dataclasses.asdict(_profile(devices, jobs, rates, measured, strange)))
        return
    _print(devices, jobs, rates, measured)
    for problem in _problems(strange):
        words = f"\n✗ {problem.node}: {problem.what}\n  fix: {problem.fix}"
        stdout().print(words, soft_wrap=True)  # the fix may be a line to copy


def _discover(path: Path, timeout_s: float) -> tuple[tuple[Node, ...], list[Discovery]]:
    """The inventory with the GPUs that its machines have, and those that could not tell."""
    from hadar_cli.visits.discovery import discover
    from hadar_cli.visits.inspection import is_open
    from hadar_cli.visits.profile_cache import fill, store

    listed, cached = read_enabled(path), cached_profile(path)
    asked = [node for node in listed if is_open(node)]
    if asked:
        print(f"asking for GPUs: {', '.join(node.name for node in asked)}", file=sys.stderr)
    found = list(discover(asked, DEFAULT_RUNS, timeout_s))
    cached = store(path, cached, found)
    return fill(listed, cached), [one for one in found if one.problem]


def _problems(strange: list[Discovery]) -> list[NodeProblem]:
    """Why machines did not tell their GPUs, with nothing in it that a terminal obeys."""
    from hadar_cli.cli.records import NodeProblem
    from hadar_cli.report.format import plain

    return [
        NodeProblem(
            one.node.name,
            what=plain(one.problem.what, _LONGEST),
            fix=plain(one.problem.fix, _LONGEST),
        )
        for one in strange
        if one.problem
    ]


def _jobs(names: list[str], preset: str) -> list[Job]:
    """One endless job for each workload asked for."""
    from hadar_cli.core.model import Job, Launch
    from hadar_cli.workloads import CATALOG, lookup

    for name in names:
        if name not in CATALOG and name not in {w.short for w in CATALOG.values()}:
            raise unknown(f"there is no workload {name!r}", name, CATALOG, field="--workload")
    return [
        Job(
            id=number,
            name=chosen.name,
            target_steps=_MANY_STEPS,
            batch_size=chosen.batch_size[preset],
            model_size=chosen.model_size[preset],
            dataset_size=chosen.dataset_size,
            workload=chosen.name,
            launch=Launch(workload=chosen.name, preset=preset),
        )
        for number, chosen in enumerate(map(lookup, dict.fromkeys(names or CATALOG)))
    ]


def _measure(nodes: tuple[Node, ...], jobs: list[Job]) -> list[Measured]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from hadar_cli.assembly import check_nodes
    from hadar_cli.core.model import devices_of
    from hadar_cli.trial.speeds import measure, measuring

    check_nodes(nodes)
    devices = [device.name for device in devices_of(nodes)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    found: list[Measured] = []
    with (
        Progress(*columns, console=stderr(), transient=True, auto_refresh=False) as bar,
        measuring(nodes, jobs) as executor,
    ):
        task = bar.add_task("", total=len(jobs))
        for job in jobs:
            bar.update(task, description=f"measuring {job.name}", refresh=True)
            if not sys.stderr.isatty():
                print(f"measuring {job.name}", file=sys.stderr)
            found += measure(executor, job, devices, bar.refresh)
            bar.advance(task)
    return found


def _print(
    devices: list[Device], jobs: list[Job], rates: RateModel, measured: list[Measured]
) -> None:
    from hadar_cli.cli.devices import device_table, rate_table

    console = stdout()
    console.print(device_table(devices))
    preset = jobs[0].launch.preset
    console.print(f"\nEstimated steps/s of the workloads, preset {preset}", style="bold")
    console.print(rate_table([(job.name, job.id) for job in jobs], devices, rates))
    if not measured:
        console.print("\nThese are the formula's. hadar profile nodes --measure trains to see.")
        return
    console.print("\nMeasured steps/s, and by what factor the estimate is off", style="bold")
    _print_measured(jobs, devices, rates, measured)


def _print_measured(
    jobs: list[Job], devices: list[Device], rates: RateModel, measured: list[Measured]
) -> None:
    from statistics import median

    from hadar_cli.report.format import figures, plain
    from hadar_cli.report.terminal.tables import table

    console = stdout()
    cell = {(m.job, m.device): m for m in measured}
    rows = table("JOB", *(f">{device.name}" for device in devices))
    for job in jobs:
        row = []
        for device in devices:
            found = cell[job.id, device.name]
            factor = error_factor(rates.estimated(job.id, device.name), found.steps_per_s)
            row.append(f"{figures(found.steps_per_s)} ×{factor:.1f}" if factor else "failed")
        rows.add_row(job.name, *row)
    console.print(rows)
    names = {job.id: job.name for job in jobs}
    for found in measured:
        if found.problem:
            console.print(f"{names[found.job]} on {found.device}: {plain(found.problem, 300)}")
    if factors := _factors(rates, measured):
        console.print(f"\nThe estimates are off by a factor of {median(factors):.2f} (median).")
    console.print(_HOW)


def error_factor(estimated: float, measured: float | None) -> float | None:
    """How many times too high or too low the estimate is: 1 is exact."""
    return max(measured / estimated, estimated / measured) if measured else None


def _factors(rates: RateModel, measured: list[Measured]) -> list[float]:
    factors = [error_factor(rates.estimated(m.job, m.device), m.steps_per_s) for m in measured]
    return [factor for factor in factors if factor]


def _profile(
    devices: list[Device],
    jobs: list[Job],
    rates: RateModel,
    measured: list[Measured],
    strange: list[Discovery],
) -> Profile:
    from hadar_cli.cli.devices import device_record
    from hadar_cli.cli.records import Profile, ProfiledPair

    found = {(m.job, m.device): m for m in measured}
    pairs = []
    for job in jobs:
        for device in devices:
            estimated = rates.estimated(job.id, device.name)
            pair = ProfiledPair(job.name, device.name, estimated)
            if m := found.get((job.id, device.name)):
                factor = error_factor(estimated, m.steps_per_s)
                pair = ProfiledPair(
                    job.name, device.name, estimated, m.steps_per_s, factor, m.problem or None
                )
            pairs.append(pair)
    return Profile(
        jobs[0].launch.preset,
        tuple(device_record(device) for device in devices),
        tuple(pairs),
        tuple(_problems(strange)),
    )
