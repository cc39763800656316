"""``hadar simulate``: what each policy would do with these jobs on these machines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hadar_cli.cli.options import (
    DEFAULT_NODES,
    DEFAULT_RUNS,
    AsJson,
    RunsDir,
    finite,
    print_json,
    read_inventory,
    require_file,
    stderr,
    stdout,
)
from hadar_cli.errors import InputError, unknown

if TYPE_CHECKING:
    from hadar_cli.core.measures.forecast import Forecast
    from hadar_cli.core.model import Device, Mix, Node, PolicyChoice
    from hadar_cli.simulation.scenario import PolicyResult, Scenario
    from hadar_cli.simulation.traces import Throughputs, Trace

_PROBLEMS = 20  # bad lines shown; the JSON has all of them
_PAINT_EVERY_S = 0.2


Jobs = Annotated[
    Path | None,
    typer.Argument(
        metavar="TRACE|MIX", help="The jobs: a mix, Gavel's or Shockwave's trace, or a CSV."
    ),
]
Table = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Measured steps/s: Gavel's JSON, a CSV, or Sia's folder."),
]
Cluster = Annotated[
    str | None, typer.Option(metavar="KIND:COUNT,...", help="A cluster, e.g. v100:20,k80:20.")
]
PerNode = Annotated[
    int, typer.Option(metavar="N", min=1, help="How many GPUs share a node of --cluster.")
]
Nodes = Annotated[
    Path | None,
    typer.Option("--nodes", "-n", metavar="FILE", help="An inventory, whose speeds are estimated."),
]
Policies = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:field=value],...|all",
        help="Policies to compare. By default the mix's, or hadar.",
    ),
]
Slot = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        callback=finite,
        help="How long a round lasts; by default as in the mix, or 360.",
    ),
]
Restart = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        callback=finite,
        help="What a start on new devices costs; by default 10, on stand-ins for GPUs 2.",
    ),
]
Sync = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        callback=finite,
        help="What a hand-in of a forked copy costs; by default 10, on stand-ins for GPUs 0.2.",
    ),
]
Noise = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=0,
        max=0.99,
        callback=finite,
        help="Lengths told to the scheduler are off by up to this share, e.g. 0.5.",
    ),
]
Blind = Annotated[
    bool, typer.Option("--blind", help="The scheduler is not told how long jobs are.")
]
FreeSizes = Annotated[
    bool,
    typer.Option("--free-sizes", help="Sia's jobs may have any number of GPUs, and any batch."),
]


def simulate(
    jobs: Jobs = None,
    throughputs: Table = None,
    cluster: Cluster = None,
    gpus_per_node: PerNode = 4,
    nodes: Nodes = None,
    policy: Policies = None,
    slot: Slot = None,
    restart_s: Restart = None,
    sync_s: Sync = None,
    noise: Noise = None,
    blind: Blind = False,
    free_sizes: FreeSizes = False,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Simulate policies: how long would these jobs take on these machines?"""
    from hadar_cli.cli.policy_options import choose_policies
    from hadar_cli.simulation.forecast import forecast as forecast_of

    batch = _read(jobs, throughputs, cluster, gpus_per_node, nodes, free_sizes)
    batch = batch.with_options(slot, restart_s, sync_s).told(noise, blind)
    _show_problems(batch.problems)
    choices = choose_policies(policy, batch.scenario.mix)
    _require_misleadable(batch.scenario, choices)
    results = _run_all(batch.scenario, choices)
    # The comparison rests on the formula; the forecast on all that earlier runs have told.
    forecast = forecast_of(batch.scenario.mix, batch.nodes, runs_dir) if batch.nodes else None
    if as_json:
        print_json(_as_json(batch, results, forecast))
        return
    from hadar_cli.report.format import duration
    from hadar_cli.report.terminal.policies import show

    show(results, len(batch.scenario.devices), stdout())
    if forecast is not None:
        label, expected = batch.scenario.mix.policy.name, duration(forecast.ttd_s)
        stdout().print(f"A run here under {label} is expected to take {expected}.", highlight=False)
        stdout().print(f"  {forecast.caution}", highlight=False)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What was read: the scenario, and the lines left out."""

    scenario: Scenario
    problems: tuple[InputError, ...] = ()
    nodes: tuple[Node, ...] = ()  # of an inventory, on which a mix could be run as it is

    def with_options(
        self, slot_s: float | None, restart_s: float | None, sync_s: float | None
    ) -> _Batch:
        from hadar_cli.simulation.fitting import slot_for

        given = {"start_s": restart_s, "sync_s": sync_s}
        costs = {name: value for name, value in given.items() if value is not None}
        scenario = replace(self.scenario, costs=replace(self.scenario.costs, **costs))
        if slot_s is None and scenario.mix.chooses_slot:
            slot_s = slot_for(scenario.costs)
        mix = replace(scenario.mix, slot_s=slot_s or scenario.mix.slot_s)
        return replace(self, scenario=replace(scenario, mix=mix))

    def told(self, noise: float | None, blind: bool) -> _Batch:
        """With lengths that are wrong, or that nobody knows."""
        from hadar_cli.simulation.scenario import wrong_lengths

        if blind and noise is not None:
            raise InputError("--blind cannot stand beside --noise", fix="keep one of the two")
        if not blind and noise is None:
            return self
        mix = self.scenario.mix
        told = {} if blind else wrong_lengths(mix.jobs, noise or 0.0, mix.seed)
        return replace(self, scenario=replace(self.scenario, told=told))


def _require_misleadable(scenario: Scenario, choices: list[tuple[str, PolicyChoice]]) -> None:
    """Policies that fork hand out the steps themselves, so they have to know them."""
    from hadar_cli import policies

    if scenario.told is None:
        return
    for label, choice in choices:
        if policies.create(choice).forks:
            raise InputError(
                f"{label} forks jobs, so it always knows their length",
                field="--policy",
                fix="leave out --noise and --blind, or name policies of gangs: --policy hadar",
            )


# -- what is simulated -----------------------------------------------------------------------


def _read(
    path: Path | None,
    throughputs: Path | None,
    cluster: str | None,
    gpus_per_node: int,
    nodes: Path | None,
    free_sizes: bool = False,
) -> _Batch:
    from hadar_cli.config.mixes import read_mix
    from hadar_cli.core.model import Mix, are_accelerators, devices_of
    from hadar_cli.simulation.shockwave import is_workload, read_workload
    from hadar_cli.simulation.speeds import parse_cluster, require_known_gpus
    from hadar_cli.simulation.traces import read_throughputs, read_trace

    if path is None:
        raise InputError("name a trace or a mix", fix="hadar simulate mixes/m5.yaml --policy all")
    if nodes:
        _require_alone(cluster, throughputs)
    require_file(path)
    if throughputs and throughputs.is_dir():
        return _read_sia(path, throughputs, cluster, gpus_per_node, free_sizes)
    if free_sizes:
        raise InputError(
            "--free-sizes needs Sia's profiles",
            fix="--throughputs sia-simulator/traces; in a CSV, num_gpus may be a range: 1..8",
        )
    inventory: tuple[Node, ...] = ()
    is_mix = path.suffix in (".yaml", ".yml")
    trace = None if is_mix else read_trace(path)
    table = trace.rates if trace else None
    if throughputs:
        require_file(throughputs)
        table = read_throughputs(throughputs)
        if trace and is_workload(path):
            trace = read_workload(path, table)
            table = trace.rates
    if cluster:
        devices = parse_cluster(cluster, gpus_per_node)
        if table is None:
            require_known_gpus(devices)
    elif table and not nodes:
        raise InputError("the table needs a cluster", fix="add e.g. --cluster v100:20,k80:20")
    else:
        inventory = read_inventory(nodes or DEFAULT_NODES)
        devices, table = tuple(devices_of(inventory)), None
    if trace:
        mix = Mix(path.stem, trace.jobs, source=str(path))
    else:
        mix = read_mix(path, accelerators=are_accelerators(devices))
    return replace(_fitting(mix, trace, table, devices), nodes=inventory if is_mix else ())


def _require_alone(cluster: str | None, throughputs: Path | None) -> None:
    """An inventory says which devices there are; their speeds are estimated."""
    if cluster:
        raise InputError("--cluster cannot stand beside --nodes", fix="keep one of the two")
    if throughputs:
        raise InputError(
            "--throughputs cannot stand beside --nodes, whose speeds are estimated",
            fix="name the kinds of the table: --cluster v100:20,k80:20",
        )


def _read_sia(
    path: Path, folder: Path, cluster: str | None, gpus_per_node: int, free_sizes: bool
) -> _Batch:
    from hadar_cli.core.model import Mix
    from hadar_cli.simulation.sia import Profiles, read_workload
    from hadar_cli.simulation.speeds import parse_cluster

    if cluster is None:
        raise InputError("the profiles need a cluster", fix="--cluster aws:24,dgx-ext:16,rtx:24")
    devices, profiles = parse_cluster(cluster, gpus_per_node), Profiles(folder)
    counts = Counter(device.kind for device in devices)
    for kind in counts:
        if kind not in profiles.kinds:
            raise unknown(f"the profiles have no {kind!r}", kind, profiles.kinds, field="--cluster")
    trace = read_workload(path, profiles, counts, free_sizes)
    mix = Mix(path.stem, trace.jobs, source=str(path))
    return _fitting(mix, trace, trace.rates, devices)


def _fitting(
    mix: Mix, trace: Trace | None, table: Throughputs | None, devices: tuple[Device, ...]
) -> _Batch:
    """The scenario without the jobs that cannot run, and why they cannot."""
    from hadar_cli.core.model import are_accelerators
    from hadar_cli.simulation.fitting import assumed_costs
    from hadar_cli.simulation.scenario import Scenario
    from hadar_cli.simulation.speeds import ModelledSpeeds, TableSpeeds
    from hadar_cli.simulation.traces import why_not

    lines = trace.lines if trace else {}
    problems = list(trace.problems) if trace else []
    if table:
        _check_kinds(table, devices)
    kinds = list(dict.fromkeys(device.kind for device in devices))
    good = []
    for job in mix.jobs:
        why = why_not(job, table, kinds, len(devices))
        if why is None:
            good.append(job)
        else:
            problems.append(InputError(why, file=mix.source, line=lines.get(job.id)))
    problems.sort(key=lambda problem: problem.line or 0)
    mix = replace(mix, jobs=tuple(good))
    if not mix.jobs:
        first = problems[0]
        raise InputError(f"no job can be simulated; the first problem: {first}", fix=first.fix)

    def speeds(consolidated: bool) -> Any:
        if table:
            return TableSpeeds(table, mix.jobs, devices, loses=not consolidated)
        return ModelledSpeeds(mix.jobs, devices)

    is_real = table is not None or are_accelerators(devices)
    return _Batch(Scenario(mix, devices, assumed_costs(is_real), speeds), tuple(problems))


def _check_kinds(table: Throughputs, devices: Sequence[Device]) -> None:
    for kind in dict.fromkeys(device.kind for device in devices):
        if kind not in table.kinds:
            raise unknown(f"the table has no {kind!r}", kind, table.kinds, field="--cluster")


def _run_all(scenario: Scenario, choices: list[tuple[str, PolicyChoice]]) -> list[PolicyResult]:
    from hadar_cli.simulation.scenario import simulate as simulate_one

    results = []
    for label, choice in choices:
        with _progress(label, len(scenario.mix.jobs)) as watch:
            results.append(simulate_one(scenario, choice, label, watch))
    return results


@contextmanager
def _progress(label: str, jobs: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that is gone when the policy is through; nothing where nobody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = stderr()
    with Progress(
        *columns,
        TextColumn("jobs"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(label, total=jobs)
        painted = 0.0

        def watch(done: int) -> None:
            nonlocal painted
            now = time.monotonic()
            if now - painted > _PAINT_EVERY_S:
                painted = now
                progress.update(task, completed=done)

        yield watch


# -- what is shown ---------------------------------------------------------------------------


def _show_problems(problems: Sequence[InputError]) -> None:
    console = stderr()
    for problem in problems[:_PROBLEMS]:
        console.print(f"left out: {problem}" + (f" ({problem.fix})" if problem.fix else ""))
    if len(problems) > _PROBLEMS:
        console.print(f"left out: {len(problems) - _PROBLEMS} more")


def _as_json(
    batch: _Batch, results: Sequence[PolicyResult], forecast: Forecast | None
) -> dict[str, Any]:
    scenario = batch.scenario
    content: dict[str, Any] = {
        "jobs": len(scenario.mix.jobs),
        "devices": len(scenario.devices),
        "slot_s": scenario.mix.slot_s,
        "restart_s": scenario.costs.start_s,
        "sync_s": scenario.costs.sync_s,
        "left_out": [
            {"file": p.file, "line": p.line, "field": p.field, "problem": p.message}
            for p in batch.problems
        ],
        "policies": [result.facts() for result in results],
    }
    if forecast is not None:
        content["forecast"] = {"ttd_s": forecast.ttd_s, "basis": forecast.basis}
    return content
