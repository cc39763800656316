"""``hadar simulate``: what each policy would do with these jobs on these machines."""

from __future__ import annotations

import time
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
    all_devices,
    are_accelerators,
    print_json,
    read_inventory,
    require_file,
    stderr,
    stdout,
)
from hadar_cli.cli.run import parse_policy, rehearse
from hadar_cli.core.events import HeadStarted, RoundPlanned
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from hadar_cli.adapters.simulation import PolicyResult, RealRun, Scenario
    from hadar_cli.adapters.traces import Throughputs, Trace
    from hadar_cli.app.forecast import Forecast
    from hadar_cli.core.events import Event
    from hadar_cli.core.model import Device, Mix, Node, PolicyChoice

_PROBLEMS = 20  # bad lines shown; the JSON has all of them
_PAINT_EVERY_S = 0.2


Jobs = Annotated[
    Path | None,
    typer.Argument(metavar="TRACE|MIX", help="Jobs: a mix, a Gavel trace, or a plain CSV."),
]
Table = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Measured steps/s: Gavel's JSON, or a CSV."),
]
Cluster = Annotated[
    str | None, typer.Option(metavar="KIND:COUNT,...", help="A cluster, e.g. v100:20,k80:20.")
]
PerNode = Annotated[
    int, typer.Option(metavar="N", min=1, help="How many GPUs share a node of --cluster.")
]
Nodes = Annotated[
    Path | None,
    typer.Option("--nodes", "-n", metavar="FILE", help="An inventory; its speeds are estimated."),
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
    typer.Option(metavar="SECONDS", min=0.1, help="A round; by default the mix's, or 360."),
]
Restart = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Cost of a start on new devices: 10, or 2 on stand-ins for GPUs.",
    ),
]
Sync = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Cost of each hand-in of forked copies: 10, or 0.2 on stand-ins for GPUs.",
    ),
]
Like = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Fit costs and speeds to a real run, and compare."),
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
    like: Like = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Simulate policies: how long would these jobs take on these machines?

    Example: hadar simulate mixes/m5.yaml --policy all
    """
    if like is not None:
        _refuse_beside_like(jobs=jobs, throughputs=throughputs, cluster=cluster, nodes=nodes)
        batch = _like(like, runs_dir)
    else:
        batch = _read(jobs, throughputs, cluster, gpus_per_node, nodes)
    batch = batch.with_options(slot, restart_s, sync_s)
    _show_problems(batch.problems)
    results = _run_all(batch.scenario, choose_policies(policy, batch.scenario.mix))
    # The comparison rests on the formula; the forecast on all that earlier runs have told.
    forecast = rehearse(batch.scenario.mix, batch.nodes, runs_dir) if batch.nodes else None
    if as_json:
        print_json(_as_json(batch, results, forecast))
        return
    from hadar_cli.report.comparison import show, show_gap
    from hadar_cli.report.format import duration

    show(results, len(batch.scenario.devices), stdout())
    if batch.real is not None:
        show_gap(batch.real, batch.scenario.costs, results, stdout())
    if forecast is not None:
        label, expected = batch.scenario.mix.policy.name, duration(forecast.ttd_s)
        stdout().print(f"A run here under {label} is expected to take {expected}.", highlight=False)
        stdout().print(f"  {forecast.caution}", highlight=False)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What was read: the scenario, the lines left out, and the real run it is like."""

    scenario: Scenario
    problems: tuple[InputError, ...] = ()
    real: RealRun | None = None
    nodes: tuple[Node, ...] = ()  # of an inventory, on which a mix could be run as it is

    def with_options(
        self, slot_s: float | None, restart_s: float | None, sync_s: float | None
    ) -> _Batch:
        from hadar_cli.adapters.fitting import slot_for

        given = {"start_s": restart_s, "sync_s": sync_s}
        costs = {name: value for name, value in given.items() if value is not None}
        scenario = replace(self.scenario, costs=replace(self.scenario.costs, **costs))
        if slot_s is None and scenario.mix.chooses_slot:
            slot_s = slot_for(scenario.costs)
        mix = replace(scenario.mix, slot_s=slot_s or scenario.mix.slot_s)
        return replace(self, scenario=replace(scenario, mix=mix))


# -- what is simulated -----------------------------------------------------------------------


def _read(
    path: Path | None,
    throughputs: Path | None,
    cluster: str | None,
    gpus_per_node: int,
    nodes: Path | None,
) -> _Batch:
    from hadar_cli.adapters.config import read_mix
    from hadar_cli.adapters.simulation import parse_cluster, require_known_gpus
    from hadar_cli.adapters.traces import read_throughputs, read_trace
    from hadar_cli.core.model import Mix

    if path is None:
        raise InputError("name a trace or a mix", fix="hadar simulate mixes/m5.yaml --policy all")
    if cluster and nodes:
        raise InputError("--cluster cannot stand beside --nodes", fix="keep one of the two")
    if nodes and throughputs:
        raise InputError(
            "--throughputs cannot stand beside --nodes, whose speeds are estimated",
            fix="name the kinds of the table: --cluster v100:20,k80:20",
        )
    require_file(path)
    inventory: tuple[Node, ...] = ()
    is_mix = path.suffix in (".yaml", ".yml")
    trace = None if is_mix else read_trace(path)
    table = trace.rates if trace else None
    if throughputs:
        require_file(throughputs)
        table = read_throughputs(throughputs)
    if cluster:
        devices = parse_cluster(cluster, gpus_per_node)
        if table is None:
            require_known_gpus(devices)
    elif table and not nodes:
        raise InputError("the table needs a cluster", fix="add e.g. --cluster v100:20,k80:20")
    else:
        inventory = read_inventory(nodes or DEFAULT_NODES)
        devices, table = tuple(all_devices(inventory)), None
    if trace:
        mix = Mix(path.stem, trace.jobs, source=str(path))
    else:
        mix = read_mix(path, accelerators=are_accelerators(list(devices)))
    return replace(_fitting(mix, trace, table, devices), nodes=inventory if is_mix else ())


def _fitting(
    mix: Mix, trace: Trace | None, table: Throughputs | None, devices: tuple[Device, ...]
) -> _Batch:
    """The scenario without the jobs that cannot run, and why they cannot."""
    from hadar_cli.adapters.fitting import assumed_costs
    from hadar_cli.adapters.simulation import ModelledSpeeds, Scenario, TableSpeeds
    from hadar_cli.adapters.traces import why_not

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

    is_real = table is not None or are_accelerators(list(devices))
    return _Batch(Scenario(mix, devices, assumed_costs(is_real), speeds), tuple(problems))


def _check_kinds(table: Throughputs, devices: Sequence[Device]) -> None:
    from hadar_cli.errors import nearest

    for kind in dict.fromkeys(device.kind for device in devices):
        if kind not in table.kinds:
            hint = nearest(kind, table.kinds)
            raise InputError(
                f"the table has no {kind!r}" + (f"; did you mean {hint!r}?" if hint else ""),
                field="--cluster",
                fix=f"its kinds are: {', '.join(table.kinds)}",
            )


def _refuse_beside_like(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            what = "a trace or mix" if name == "jobs" else f"--{name}"
            raise InputError(
                f"{what} cannot stand beside --like: jobs and machines are the run's", fix="drop it"
            )


def _like(name: str, runs_dir: Path) -> _Batch:
    from hadar_cli.adapters.fitting import scenario_like
    from hadar_cli.adapters.simulation import RealRun
    from hadar_cli.adapters.store import find_run, read_journal

    store = find_run(runs_dir, name)
    facts = store.facts
    happened = read_journal(store.journal_path)
    scenario, fitted = scenario_like(facts, happened)
    if not fitted.sync_s:
        raise InputError(f"run {facts.id} has trained nothing to be fitted to", field="--like")
    return _Batch(scenario, real=RealRun(facts.id, fitted.ttd_s, _connect_s(happened)))


def _connect_s(happened: Sequence[Event]) -> float:
    """Time between each head's start and its first round."""
    seconds, began = 0.0, None
    for event in happened:
        if isinstance(event, HeadStarted):
            began = event.t
        elif isinstance(event, RoundPlanned) and began is not None:
            seconds, began = seconds + event.t - began, None
    return seconds


# -- policies --------------------------------------------------------------------------------


def choose_policies(text: str | None, mix: Mix) -> list[tuple[str, PolicyChoice]]:
    """The policies asked for, checked, with the labels they go by."""
    from hadar_cli.core.model import PolicyChoice
    from hadar_cli.core.policies import registry

    if text is None:
        is_trace = mix.source is not None and not mix.source.endswith((".yaml", ".yml"))
        chosen = [("hadar", PolicyChoice("hadar"))]
        if not is_trace:
            chosen = [(mix.policy.name, mix.policy)]
    elif text.strip() == "all":
        chosen = [(name, PolicyChoice(name)) for name in registry.names()]
    else:
        chosen = [(one, parse_policy(one)) for one in split_policies(text)]
    for _, choice in chosen:
        registry.create(choice)
    return chosen


def split_policies(text: str) -> list[str]:
    """``hadar:theta=1,wide=2,gavel`` is ``hadar:theta=1,wide=2`` and ``gavel``."""
    policies: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, _ = part.partition("=")
        if equals and ":" not in name and policies:
            policies[-1] += f",{part}"
        else:
            policies.append(part)
    return policies


def _run_all(scenario: Scenario, choices: list[tuple[str, PolicyChoice]]) -> list[PolicyResult]:
    from hadar_cli.adapters.simulation import simulate as simulate_one

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
    if batch.real is not None:
        real = batch.real
        content["like"] = {"run": real.name, "ttd_s": real.ttd_s, "connect_s": real.connect_s}
    return content
