"""What ``hadar run --dry-run`` prints: who would train what where, and how long that may take."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hadar_cli.cli import records
from hadar_cli.cli.devices import device_record, device_table, rate_table
from hadar_cli.cli.options import preset_note, print_json, stdout
from hadar_cli.cli.uploads import Upload, as_records, lines, uploads
from hadar_cli.core.estimates.fluid import forked_optimum
from hadar_cli.core.estimates.suitability import is_large_enough
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.model import Device, Mix, Node, devices_of
from hadar_cli.report.format import NOTHING, bytes, duration, listed, money, plain
from hadar_cli.report.terminal.sweep import sweep_plans
from hadar_cli.report.terminal.tables import table
from hadar_cli.report.ways import way_words, why_words
from hadar_cli.simulation.forecast import (
    MOST_JOBS,
    MOST_ROUNDS,
    EarlierRuns,
    RunForecast,
    Stay,
    forecast_run,
    gather,
)

_CODE_WARNING = "A mix runs code on the nodes, as the user that owns them: read it before you run."
_STAYS = 5  # shown of each device
_ROUNDS = 3  # of those planned, as JSON


def show(mix: Mix, nodes: tuple[Node, ...], runs: Path, as_json: bool) -> None:
    """Prints the plan; starts and writes nothing."""
    devices, sent = devices_of(nodes), uploads(mix)
    knowledge = gather(mix, nodes, runs)
    expected = forecast_run(mix, nodes, knowledge)
    bound_s = expected.forecast.lower_bound_s if expected else _bound_s(mix, devices, knowledge)
    if as_json:
        print_json(dataclasses.asdict(_as_record(mix, devices, sent, expected, bound_s)))
        return
    console = stdout()
    for told in sweep_plans(mix.jobs):
        console.print(told)
    _print_plan(console, mix, devices, knowledge)
    if expected:
        _print_forecast(console, mix, nodes, expected)
    else:
        console.print(f"\nAll jobs take at least {duration(bound_s)} by these speeds.")
        console.print(f"Not simulated: over {MOST_JOBS} jobs, {MOST_ROUNDS} rounds, or none fits.")
    console.print()
    for line in lines(mix, sent):
        console.print(line)
    _print_warning(console, mix)


def _bound_s(mix: Mix, devices: list[Device], knowledge: EarlierRuns) -> float:
    rates = knowledge.fit.rates(mix.jobs, devices)
    work = [job.target_steps for job in mix.jobs]
    return forked_optimum(work, rates.matrix([job.id for job in mix.jobs])).makespan_s


# -- on the terminal -------------------------------------------------------------------------


def _print_plan(console: Console, mix: Mix, devices: list[Device], knowledge: EarlierRuns) -> None:
    console.print(device_table(devices))
    console.print()
    console.print(_job_table(mix))
    if note := preset_note(mix, devices):
        console.print(note)
    jobs = [(job.name, job.id) for job in mix.jobs]
    for line in _too_small(mix, devices):
        console.print(line)
    console.print("\nEstimated steps/s, until they are measured", style="bold")
    console.print(rate_table(jobs, devices, RateModel(mix.jobs, devices)))
    if knowledge.fit.trained:
        console.print("\nSteps/s by earlier runs, which the forecast takes", style="bold")
        console.print(rate_table(jobs, devices, knowledge.fit.rates(mix.jobs, devices), best=True))


def _too_small(mix: Mix, devices: list[Device]) -> Iterator[str]:
    """Which devices a job is kept from, for want of memory."""
    for job in mix.jobs:
        if small := [d.name for d in devices if not is_large_enough(d, job)]:
            yield f"{job.name} is not given to {listed(small)}: under {job.min_vram_gb:g} GB."


def _print_forecast(
    console: Console, mix: Mix, nodes: Sequence[Node], expected: RunForecast
) -> None:
    rounds = f"{len(expected.rounds)} rounds of {mix.slot_s:g} s"
    console.print(f"\nThe plan of {mix.policy.name}, {rounds}", style="bold")
    console.print(_plan_table(devices_of(nodes), expected.stays))
    for job, ways in expected.ways.items():
        console.print(f"{job}: {way_words(ways)}; {why_words(ways)}.")
    console.print("\nForecast", style="bold")
    console.print(_forecast_table(expected))
    for line in _remarks(expected, nodes):
        console.print(line)


def _forecast_table(expected: RunForecast) -> Table:
    forecast, bound_s = expected.forecast, expected.forecast.lower_bound_s
    rows = table("", ">DONE AFTER", "")
    for name, jct_s in forecast.jct_s.items():
        rows.add_row(name, duration(jct_s), "")
    over = f"{forecast.ttd_s / bound_s:.2f} × the bound of {duration(bound_s)}" if bound_s else ""
    rows.add_row("all jobs (TTD)", duration(forecast.ttd_s), over)
    return rows


def _remarks(expected: RunForecast, nodes: Sequence[Node]) -> Iterator[str]:
    caution = expected.forecast.caution
    yield f"{caution[0].upper()}{caution[1:]}."
    if expected.moved_bytes is None:
        yield "Bytes to move: unknown, until a first run tells the size of the weights."
    elif expected.moved_bytes:
        yield f"Bytes to move: about {bytes(expected.moved_bytes)} of weights."
    if expected.cost is not None:
        yield _cost(expected.cost, nodes)
    if expected.worths:
        worths = (f"{w.node} {_worth(w.saves_s)}" for w in expected.worths)
        yield f"Without: {', '.join(worths)}."


def _cost(cost: float, nodes: Sequence[Node]) -> str:
    rented = [node.aws for node in nodes if node.enabled and node.aws]
    told = f"Cost: {money(cost, '$' if rented else '')}, with the priced nodes kept throughout"
    budget = next((request.budget for request in rented), None)
    if budget is None:
        return f"{told}."
    if cost > budget:
        return f"{told}: more than the budget of {money(budget)}, at which the instances end."
    return f"{told}; the budget is {money(budget)}."


def _worth(saves_s: float | None) -> str:
    if saves_s is None:
        return "impossible"
    return f"{'+' if saves_s >= 0 else '−'}{duration(abs(saves_s))}"


def _print_warning(console: Console, mix: Mix) -> None:
    scripts = sorted({job.launch.code for job in mix.jobs if job.launch.code})
    setups = sorted({f"setup: {job.launch.setup}" for job in mix.jobs if job.launch.setup})
    code = "".join(f"\n    {plain(line, 300)}" for line in [*scripts, *setups])
    console.print(f"\n{_CODE_WARNING}{code}")
    console.print("Dry run: nothing was started.")


def _job_table(mix: Mix) -> Table:
    needs = ["NEEDS"] if any(job.min_vram_gb for job in mix.jobs) else []
    rows = table("JOB", "TRAINS", "PRESET", ">BATCH", ">STEPS", "ARRIVES", *needs)
    for job in mix.jobs:
        needed = f"{job.min_vram_gb:g} GB" if job.min_vram_gb else NOTHING
        arrives = duration(job.arrives_s) if job.arrives_s else "at once"
        what, preset = job.launch.code or job.workload, job.launch.preset
        preset = NOTHING if job.launch.code else preset
        steps, batch = f"{job.target_steps:,}", str(job.batch_size)
        rows.add_row(job.name, what, preset, batch, steps, arrives, *[needed for _ in needs])
    return rows


def _plan_table(devices: list[Device], stays: Sequence[Stay]) -> Table:
    rows = table("DEVICE", "~TRAINS")
    for device in devices:
        mine = [stay for stay in stays if stay.device == device.name]
        words = [_since(stay) for stay in mine[:_STAYS]]
        if len(mine) > _STAYS:
            words.append(f"and {len(mine) - _STAYS} more")
        rows.add_row(device.name, ", ".join(words) or "nothing")
    return rows


def _since(stay: Stay) -> str:
    return f"{stay.job} from {duration(stay.from_s)}" if stay.from_s else stay.job


# -- as JSON ---------------------------------------------------------------------------------


def _as_record(
    mix: Mix,
    devices: list[Device],
    sent: list[Upload],
    expected: RunForecast | None,
    bound_s: float | None,
) -> records.Plan:
    rates = RateModel(mix.jobs, devices)
    forecast = _forecast_record(mix, expected) if expected else None
    return records.Plan(
        dry_run=True,
        mix=mix.name,
        policy=mix.policy.name,
        slot_s=mix.slot_s,
        lower_bound_s=bound_s,
        devices=tuple(device_record(device) for device in devices),
        jobs=tuple(
            records.PlannedJob(
                name=job.name,
                workload=job.workload,
                script=job.launch.script,
                setup=job.launch.setup,
                preset=job.launch.preset,
                batch_size=job.batch_size,
                steps_target=job.target_steps,
                estimated_steps_per_s={d.name: rates.estimated(job.id, d.name) for d in devices},
                min_vram_gb=job.min_vram_gb or None,
                too_small=tuple(d.name for d in devices if not is_large_enough(d, job)),
            )
            for job in mix.jobs
        ),
        projects=as_records(sent),
        first_round=forecast.rounds[0].stints if forecast and forecast.rounds else (),
        forecast=forecast,
    )


def _forecast_record(mix: Mix, expected: RunForecast) -> records.PlanForecast:
    names = {job.id: job.name for job in mix.jobs}
    forecast = expected.forecast
    return records.PlanForecast(
        ttd_s=forecast.ttd_s,
        jct_s=dict(forecast.jct_s),
        basis=forecast.basis,
        typical_error=forecast.typical_error,
        rounds=tuple(
            records.PlannedRound(
                one.round,
                one.t,
                tuple(records.PlannedStint(d, names[job], steps) for job, d, steps in one.stints),
            )
            for one in expected.rounds[:_ROUNDS]
        ),
        stays=tuple(records.PlannedStay(s.device, s.job, s.from_s) for s in expected.stays),
        moved_bytes=expected.moved_bytes,
        cost=expected.cost,
        nodes=tuple(records.NodeWorth(w.node, w.ttd_s, w.saves_s) for w in expected.worths),
        ways=dict(expected.ways),
    )
