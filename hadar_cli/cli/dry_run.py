"""What ``hadar run --dry-run`` prints: who would train what where, and how long that may take."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from hadar_cli.cli.nodes import device_facts, device_table
from hadar_cli.cli.options import print_json, stdout
from hadar_cli.cli.run import preset_note
from hadar_cli.core.fluid import forked_optimum
from hadar_cli.core.model import Device, Mix
from hadar_cli.core.policies import registry
from hadar_cli.core.policies.registry import ClusterView, JobView, Stint
from hadar_cli.core.state import JobState
from hadar_cli.core.throughput import RateModel
from hadar_cli.report.format import duration, figures, plain

_CODE_WARNING = "A mix runs code on the nodes, as the user that owns them: read it before you run."


def show(mix: Mix, devices: list[Device], as_json: bool) -> None:
    """Prints the plan; starts and writes nothing."""
    rates = RateModel(mix.jobs, devices)
    stints = _first_round(mix, devices, rates)
    work = [job.target_steps for job in mix.jobs]
    expected_s = forked_optimum(work, rates.matrix([job.id for job in mix.jobs])).makespan_s
    if as_json:
        print_json(_as_json(mix, devices, rates, stints, expected_s))
    else:
        _print(stdout(), mix, devices, rates, stints, expected_s)


def _first_round(mix: Mix, devices: list[Device], rates: RateModel) -> list[Stint]:
    """The policy's first plan, at the estimated rates."""
    queue = [JobState(job) for job in mix.jobs if job.arrives_s <= 0]
    view = ClusterView(
        now_s=0.0,
        slot_s=mix.slot_s,
        seconds=mix.slot_s,
        devices=tuple(device.name for device in devices),
        jobs=lambda: [
            JobView(
                state.job,
                free_steps=state.remaining,
                remaining_steps=state.remaining,
                solo_steps=max(1, round(mix.merge.solo * state.remaining)),
            )
            for state in queue
        ],
        rates=rates,
        cluster=tuple(devices),
        queue=queue,
    )
    return registry.create(mix.policy).plan(view)


def _print(
    console: Console,
    mix: Mix,
    devices: list[Device],
    rates: RateModel,
    stints: list[Stint],
    expected_s: float,
) -> None:
    console.print(device_table(devices))
    console.print()
    console.print(_job_table(mix))
    if note := preset_note(mix, devices):
        console.print(note)
    console.print("\nEstimated steps/s, until they are measured", style="bold")
    console.print(rate_table([(job.name, job.id) for job in mix.jobs], devices, rates))
    console.print(f"\nFirst round ({mix.slot_s:g} s) by {mix.policy.name}", style="bold")
    console.print(_plan_table(mix, devices, stints))
    console.print(f"\nAll jobs take at least {duration(expected_s)} by these estimates.")
    scripts = sorted({job.launch.script for job in mix.jobs if job.launch.script})
    setups = sorted({f"setup: {job.launch.setup}" for job in mix.jobs if job.launch.setup})
    code = "".join(f"\n    {plain(line, 300)}" for line in [*scripts, *setups])
    console.print(_CODE_WARNING + code)
    console.print("Dry run: nothing was started.")


def _job_table(mix: Mix) -> Table:
    table = plain_table("JOB", "TRAINS", "PRESET", ">BATCH", ">STEPS", "ARRIVES")
    for job in mix.jobs:
        arrives = duration(job.arrives_s) if job.arrives_s else "at once"
        what, preset = job.launch.script or job.workload, job.launch.preset
        preset = "–" if job.launch.script else preset
        steps, batch = f"{job.target_steps:,}", str(job.batch_size)
        table.add_row(job.name, what, preset, batch, steps, arrives)
    return table


def rate_table(jobs: list[tuple[str, int]], devices: list[Device], rates: RateModel) -> Table:
    """Estimated steps per second, a row for each job and a column for each device."""
    table = plain_table("JOB", *(f">{device.name}" for device in devices))
    for name, job_id in jobs:
        table.add_row(name, *(figures(rates.estimated(job_id, d.name)) for d in devices))
    return table


def _plan_table(mix: Mix, devices: list[Device], stints: list[Stint]) -> Table:
    names = {job.id: job.name for job in mix.jobs}
    table = plain_table("DEVICE", "TRAINS, ONE AFTER ANOTHER")
    table.columns[1].no_wrap = False
    for device in devices:
        mine = [s for s in stints if s.device == device.name]
        words = ", ".join(f"{names[s.job]} {s.steps:,}" for s in mine)
        table.add_row(device.name, words or "nothing at first: each job starts on one device")
    return table


def plain_table(*headings: str) -> Table:
    """A table without lines; headings that start with ``>`` are of numbers, set to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        is_number = heading.startswith(">")
        table.add_column(
            heading.removeprefix(">"), justify="right" if is_number else "left", no_wrap=True
        )
    return table


def _as_json(
    mix: Mix, devices: list[Device], rates: RateModel, stints: list[Stint], expected_s: float
) -> dict[str, Any]:
    names = {job.id: job.name for job in mix.jobs}
    return {
        "dry_run": True,
        "mix": mix.name,
        "policy": mix.policy.name,
        "slot_s": mix.slot_s,
        "lower_bound_s": expected_s,
        "devices": [device_facts(device) for device in devices],
        "jobs": [
            {
                "name": job.name,
                "workload": job.workload,
                "script": job.launch.script,
                "setup": job.launch.setup,
                "preset": job.launch.preset,
                "batch_size": job.batch_size,
                "steps_target": job.target_steps,
                "estimated_steps_per_s": {d.name: rates.estimated(job.id, d.name) for d in devices},
            }
            for job in mix.jobs
        ],
        "first_round": [
            {"device": s.device, "job": names[s.job], "steps": s.steps} for s in stints
        ],
    }
