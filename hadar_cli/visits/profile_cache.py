"""What ``hadar profile nodes`` found, kept beside the inventory: nodes.toml, nodes.profile.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from hadar_cli.core.model import Gpu, Node
from hadar_cli.errors import InputError
from hadar_cli.node.contract import write_atomically
from hadar_cli.typed import read_json
from hadar_cli.visits.discovery import Discovery
from hadar_cli.visits.inspection import is_open

_LARGEST = 1 << 22
_Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=10**6)]
_Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[\x20-\x7e]{1,64}\Z")]


class _Gpu(msgspec.Struct, forbid_unknown_fields=True):
    model: _Word
    tflops: _Positive
    vram_gb: _Positive
    pcie: Annotated[int, msgspec.Meta(ge=1, le=6)]
    index: Annotated[int, msgspec.Meta(ge=0, le=1023)] | None = None
    uuid: _Word | None = None


class _Machine(msgspec.Struct, forbid_unknown_fields=True):
    """Where the GPUs were found: a name that has moved to another machine says nothing."""

    host: str
    port: int | None
    gpus: tuple[_Gpu, ...]


Cached: TypeAlias = Mapping[str, _Machine]


def cache_path(inventory: Path) -> Path:
    return inventory.with_suffix(".profile.json")


def load(inventory: Path) -> Cached:
    """What was found for the nodes of the inventory; refuses a damaged file."""
    path = cache_path(inventory)
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST)
        return read_json(content, dict[str, _Machine])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        fix = "hadar profile nodes writes it anew"
        raise InputError(f"cannot be used: {error}", file=str(path), fix=fix) from error


def store(inventory: Path, cached: Cached, found: Iterable[Discovery]) -> Cached:
    """Adds what was found to what was known, in the file and in the result."""
    fresh = {
        one.node.name: _Machine(
            one.node.host, one.node.port, tuple(_Gpu(**asdict(gpu)) for gpu in one.gpus)
        )
        for one in found
        if not one.problem
    }
    if not fresh:
        return cached
    path, both = cache_path(inventory), {**cached, **fresh}
    try:
        write_atomically(path, msgspec.to_builtins(both))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from error
    return both


def fill(nodes: Sequence[Node], cached: Cached) -> tuple[Node, ...]:
    """The nodes, with the GPUs that were found for those that leave it open."""
    return tuple(_filled(node, cached.get(node.name)) for node in nodes)


def _filled(node: Node, machine: _Machine | None) -> Node:
    if not machine or not is_open(node) or (machine.host, machine.port) != (node.host, node.port):
        return node
    return replace(node, gpus=tuple(Gpu(**msgspec.structs.asdict(gpu)) for gpu in machine.gpus))
