"""``hadar check``: whether every machine of the inventory can train, and what to do if not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from hadar_cli.cli.options import (
    DEFAULT_NODES,
    DEFAULT_RUNS,
    AsJson,
    NodesFile,
    RunsDir,
    Timeout,
    print_json,
    read_inventory,
    stdout,
)
from hadar_cli.errors import RefusedError, UnfinishedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Group, RenderableType
    from rich.table import Table

    from hadar_cli.visits.inspection import Inspection

_LONGEST = 300  # of a machine's own words
_ROOMY = 106  # columns from which the table shows everything
_WHERE_ROOMY = ("up", "down", "python", "left over")
_ALIGNED = {title: f">{title}" for title in ("round trip", "up", "down", "free", "left over")}
_ALIGNED["devices"] = "~devices"


def check(
    nodes: NodesFile = DEFAULT_NODES,
    timeout_s: Timeout = 15.0,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Check that every machine can be reached and can train.

    Every failure comes with its fix.
    Ends with 0 if all can, 3 if some cannot, 4 if none is left after refusing changed host keys.
    """
    from hadar_cli.visits.inspection import inspect

    seen, complete = inspect(read_inventory(nodes), runs_dir, timeout_s)
    if as_json:
        list(complete)
        print_json([_as_json(one) for one in seen])
    elif sys.stdout.isatty():
        _watch(seen, complete)
    else:
        list(complete)
        console = stdout()
        console.print(_page(seen, console.width))
    raise typer.Exit(exit_code(seen))


def exit_code(seen: Sequence[Inspection]) -> int:
    if all(one.is_usable for one in seen):
        return 0
    if any(one.is_usable for one in seen) or not any(one.refused for one in seen):
        return UnfinishedError.exit_code
    return RefusedError.exit_code


def _watch(seen: list[Inspection], complete: Iterator[Inspection]) -> None:
    """The table, filled in while answers arrive."""
    from rich.live import Live

    console = stdout()

    def page() -> Group:
        return _page(seen, console.width)

    with Live(get_renderable=page, console=console, refresh_per_second=8):
        list(complete)


def _page(seen: Sequence[Inspection], width: int) -> Group:
    from rich.console import Group

    return Group(_table(seen, width), *_remarks(seen))


def _table(seen: Sequence[Inspection], width: int) -> Table:
    from rich.text import Text

    from hadar_cli.report.terminal.tables import name, table

    cells = [_cells(one) for one in seen]
    titles = [title for title in cells[0] if width >= _ROOMY or title not in _WHERE_ROOMY]
    rows = table("node", "state", *(_ALIGNED.get(title, title) for title in titles))
    for one, row in zip(seen, cells, strict=True):
        word, style = _state(one)
        rows.add_row(name(one.node.name), Text(word, style), *(row[title] for title in titles))
    return rows


def _cells(one: Inspection) -> dict[str, str]:
    from hadar_cli.report.format import NOTHING

    facts, left = one.facts, one.leftovers
    torch = one.torch.torch if one.torch else None
    return {
        "round trip": NOTHING if one.round_trip_s is None else f"{1000 * one.round_trip_s:.1f} ms",
        "up": _speed(one.up_bytes_per_s),
        "down": _speed(one.down_bytes_per_s),
        "python": _words(facts.python, 12) if facts else NOTHING,
        "torch": _words(torch or NOTHING, 16),
        "devices": _words(", ".join(_devices(one)), 60),
        "free": _size(facts.disk.free_bytes if facts else None),
        "left over": _size(left.bytes - left.code_bytes if left else None),
    }


def _state(one: Inspection) -> tuple[str, str]:
    if not one.is_done:
        return f"{one.stage} …", "dim"
    if one.problems:
        return ("refused", "bold red") if one.refused else ("not usable", "red")
    if len(one.left_alone) == len(one.node.devices):
        return "in use", "yellow"
    return "usable", "green"


def _devices(one: Inspection) -> Iterator[str]:
    gpus = one.facts.gpus if one.facts else ()
    for device in one.node.devices:
        gpu = next((gpu for gpu in gpus if gpu.is_of(device)), None)
        if device.emulated_speed:
            yield f"{device.kind} (emulated)"
        elif gpu and device.gpu:
            used = f", {gpu.others_share:.0%} used" if gpu.others_mb else ""
            yield f"{gpu.model} ({gpu.memory_mb / 1024:.0f} GB{used})"
        else:
            yield device.kind


def _remarks(seen: Sequence[Inspection]) -> Iterator[RenderableType]:
    from rich.text import Text

    for one in seen:
        for problem in one.problems:
            what = _words(problem.what, _LONGEST)
            yield Text.assemble(("\n✗ ", "red"), (one.node.name, "bold"), f": {what}")
            yield Text.assemble(("  fix: ", "green"), _words(problem.fix, _LONGEST))
        for device, why in one.left_alone.items():
            what = f"{device} is left alone: {_words(why, _LONGEST)}"
            yield Text.assemble(("\n· ", "yellow"), what)
        for note in one.notes:
            what = f"{one.node.name}: {_words(note, _LONGEST)}"
            yield Text.assemble(("\n· ", "yellow"), what)
    yield from _links(seen)
    if all(one.is_done for one in seen):
        usable = sum(one.is_usable for one in seen)
        yield f"\n{usable} of {len(seen)} machines can be used."


def _links(seen: Sequence[Inspection]) -> Iterator[RenderableType]:
    """Who of a network does not reach whom; the slowest way where all do."""
    from rich.text import Text

    from hadar_cli.visits.links import FIX

    networks: dict[str, list[Inspection]] = {}
    for one in seen:
        if one.node.network and one.links:
            networks.setdefault(one.node.network, []).append(one)
    for network, nodes in networks.items():
        links = [link for one in nodes for link in one.links]
        broken = [link for link in links if link.problem]
        for link in broken:
            what = _words(link.why, _LONGEST)
            yield Text.assemble(("\n✗ ", "red"), (f"network {network}", "bold"), f": {what}")
        if broken:
            yield Text.assemble(("  fix: ", "green"), f"{FIX}; until then no gang spans them")
        else:
            slowest = min(links, key=lambda link: link.bytes_per_s)
            speed, way = _speed(slowest.bytes_per_s), f"{slowest.start} to {slowest.end}"
            told = f"{len(nodes)} nodes reach each other, the slowest way at {speed} ({way})"
            yield Text.assemble(("\n· ", "green"), f"network {network}: {told}")


def _words(text: str, limit: int) -> str:
    """What a machine said, made harmless."""
    from hadar_cli.report.format import plain

    return plain(text, limit)


def _speed(bytes_per_s: float | None) -> str:
    return _size(bytes_per_s) + ("/s" if bytes_per_s is not None else "")


def _size(count: float | None) -> str:
    from hadar_cli.report.format import NOTHING, bytes

    return NOTHING if count is None else bytes(count)


def _as_json(one: Inspection) -> Any:
    """An inspection for ``--json``: the same facts, with nothing in them that a terminal obeys."""
    from dataclasses import asdict, fields

    from hadar_cli.visits.inspection import NodeCheck

    node: dict[str, Any] = {"node": one.node.name, "host": one.node.host, "usable": one.is_usable}
    found = {f.name: getattr(one, f.name) for f in fields(NodeCheck) if f.name not in node}
    return _harmless(asdict(NodeCheck(**node, **found)))


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return _words(value, _LONGEST)
    if isinstance(value, dict):
        return {_words(str(key), _LONGEST): _harmless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_harmless(item) for item in value]
    return value
