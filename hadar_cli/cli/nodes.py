"""``hadar nodes``: the inventory as hadar reads it; ``trust`` has a file of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import typer

from hadar_cli.cli.options import (
    DEFAULT_NODES,
    AsJson,
    NodesFile,
    cached_profile,
    print_json,
    require_file,
    stdout,
)
from hadar_cli.cli.trust import trust

if TYPE_CHECKING:
    from rich.table import Table

    from hadar_cli.cli.records import DeviceFacts
    from hadar_cli.core.model import Device

app = typer.Typer(no_args_is_help=True, help="The machines of the inventory.")


@app.callback()
def _group() -> None:
    """The machines of the inventory."""


@app.command("list")
def list_nodes(nodes: NodesFile = DEFAULT_NODES, as_json: AsJson = False) -> None:
    """List the machines and their devices."""
    from rich.table import Table

    from hadar_cli.adapters.config import read_nodes
    from hadar_cli.adapters.profile_cache import fill

    require_file(nodes, "hadar init writes a starter")
    inventory = fill(read_nodes(nodes), cached_profile(nodes))
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(inventory))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NODE", "HOST", "DEVICES", "HOURS", "PRICE/H", "ENABLED"):
        table.add_column(heading, no_wrap=True)
    for node in inventory:
        kinds = ", ".join(device.kind for device in node.devices)
        if node.emulated_speed:
            kinds += f" (emulated, {node.emulated_speed:g} of a core)"
        price = "–" if node.price_per_hour is None else f"{node.price_per_hour:g}"
        enabled = "yes" if node.enabled else "no"
        table.add_row(node.name, node.host, kinds, node.hours or "always", price, enabled)
    stdout().print(table)


app.command("trust")(trust)


def device_table(devices: list[Device]) -> Table:
    """What is known of each device before anything has run."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("DEVICE", "GPU"):
        table.add_column(heading, no_wrap=True)
    for heading in ("VRAM", "TFLOPS", "PCIE", "PMI", "EMULATED"):
        table.add_column(heading, justify="right", no_wrap=True)
    for facts in map(device_record, devices):
        table.add_row(
            facts.name,
            facts.gpu,
            _or_dash(facts.vram_gb, "{:g} GB"),
            _or_dash(facts.tflops, "{:g}"),
            _or_dash(facts.pcie, "{}"),
            _or_dash(facts.pmi, "{:.1f}"),
            _or_dash(facts.emulated_speed, "{:g} of a core"),
        )
    return table


def device_facts(device: Device) -> dict[str, Any]:
    """One device for ``--json``."""
    return dataclasses.asdict(device_record(device))


def device_record(device: Device) -> DeviceFacts:
    from hadar_cli.cli.records import DeviceFacts
    from hadar_cli.core.formula import pmi

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
    return "–" if value is None else pattern.format(value)
