"""``hadar nodes``: the inventory as hadar reads it; ``trust`` has a file of its own."""

from __future__ import annotations

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

app = typer.Typer(no_args_is_help=True, help="List, find, trust, add and drain machines.")


@app.callback()
def _group() -> None:
    """The machines of the inventory."""


@app.command("list")
def list_nodes(nodes: NodesFile = DEFAULT_NODES, as_json: AsJson = False) -> None:
    """List the machines and their devices."""
    from hadar_cli.config.inventory import read_nodes
    from hadar_cli.report.terminal.tables import table
    from hadar_cli.visits.profile_cache import fill

    require_file(nodes, "hadar init writes a starter")
    inventory = fill(read_nodes(nodes), cached_profile(nodes))
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(inventory))
        return
    rows = table("NODE", "HOST", "DEVICES", "HOURS", "PRICE/H", "ENABLED")
    for node in inventory:
        kinds = ", ".join(device.kind for device in node.devices)
        if node.emulated_speed:
            kinds += f" (emulated, {node.emulated_speed:g} of a core)"
        price = "–" if node.price_per_hour is None else f"{node.price_per_hour:g}"
        enabled = "yes" if node.enabled else "no"
        rows.add_row(node.name, node.host, kinds, node.hours or "always", price, enabled)
    stdout().print(rows)
