"""What several commands say of devices: their facts and their speeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hadar_cli.cli.records import DeviceFacts
from hadar_cli.core.estimates.formula import pmi
from hadar_cli.report.format import NOTHING, figures
from hadar_cli.report.terminal.tables import table

if TYPE_CHECKING:
    from rich.table import Table

    from hadar_cli.core.estimates.throughput import RateModel
    from hadar_cli.core.model import Device


def device_table(devices: list[Device]) -> Table:
    """What is known of each device before anything has run."""
    made = table("DEVICE", "GPU", ">VRAM", ">TFLOPS", ">PCIE", ">PMI", ">EMULATED")
    for facts in map(device_record, devices):
        made.add_row(
            facts.name,
            facts.gpu,
            _or_dash(facts.vram_gb, "{:g} GB"),
            _or_dash(facts.tflops, "{:g}"),
            _or_dash(facts.pcie, "{}"),
            _or_dash(facts.pmi, "{:.1f}"),
            _or_dash(facts.emulated_speed, "{:g} of a core"),
        )
    return made


def rate_table(
    jobs: list[tuple[str, int]], devices: list[Device], rates: RateModel, best: bool = False
) -> Table:
    """Steps per second, a row for each job: the formula's, or the ``best`` that is known."""
    made = table("JOB", *(f">{device.name}" for device in devices))
    rate = rates.rate if best else rates.estimated
    for name, job_id in jobs:
        made.add_row(name, *(figures(rate(job_id, d.name)) for d in devices))
    return made


def device_record(device: Device) -> DeviceFacts:
    """One device for ``--json``."""
    gpu = device.gpu
    return DeviceFacts(
        name=device.name,
        node=device.node,
        gpu=device.kind,
        vram_gb=gpu.vram_gb if gpu else None,
        tflops=gpu.tflops if gpu else None,
        pcie=gpu.pcie if gpu else None,
        pmi=pmi(gpu) if gpu else None,
        emulated_speed=device.emulated_speed,
    )


def _or_dash(value: float | None, pattern: str) -> str:
    return NOTHING if value is None else pattern.format(value)
