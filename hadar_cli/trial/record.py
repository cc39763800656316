"""Records of what a process trained (node/trace.py writes them), and how two compare."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_OF_LOSS = 1e-4  # relative: float error, and no more
_OF_RATE = 1e-6
_OF_UPDATE = 1e-2  # of an update's length: weights closer than this are the same
_OF_WEIGHTS = 1e-7  # of the weights: what sums of them cannot tell apart


@dataclass(frozen=True, slots=True)
class Update:
    batches: tuple[str, ...]
    losses: tuple[float, ...]
    lr: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(slots=True)
class Record:
    """One process's updates, and the files that it read."""

    updates: list[Update] = field(default_factory=list)
    begin: tuple[float, ...] = ()
    size: int = 0  # numbers in the weights that begin
    length: int = 0  # the steps that the script by itself would train
    opened: list[Path] = field(default_factory=list)
    replaced: str = ""  # a sampler whose random numbers are not those by hand
    ticks_too_late: bool = False  # learning rates changed after the last update


def read_record(path: Path) -> Record:
    """As far as it is there; a process may have been killed while it wrote."""
    record = Record()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            _take(record, json.loads(line))
        except (ValueError, KeyError):
            break
    return record


def _take(record: Record, entry: dict[str, Any]) -> None:
    if "open" in entry:
        record.opened.append(Path(entry["open"]))
    elif "length" in entry:
        record.length = entry["length"] or record.length
    elif "begin" in entry:
        record.begin, record.size = tuple(entry["begin"]), int(entry["size"])
    elif "replaced" in entry:
        record.replaced = str(entry["replaced"])
    elif "ticks_too_late" in entry:
        record.ticks_too_late = entry["ticks_too_late"]
    else:
        names = ("batches", "losses", "lr", "weights")
        record.updates.append(Update(*(tuple(entry[name]) for name in names)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first update that is not the same in two records, and what of it differs."""

    update: int
    what: str  # "batch", "learning rate", "loss" or "weights"
    one: str
    other: str


def first_difference(one: Record, other: Record) -> Difference | None:
    """Between the updates that both have; None if they are the same within float error."""
    before = one.begin
    for number, (a, b) in enumerate(zip(one.updates, other.updates, strict=False), start=1):
        if a.batches and b.batches and a.batches != b.batches:
            sizes = f"{len(a.batches)} for an update", f"{len(b.batches)} for an update"
            told = sizes if len(a.batches) != len(b.batches) else ("", "")
            return Difference(number, "batch", *told)
        if not _are_close(a.lr, b.lr, _OF_RATE):
            return Difference(number, "learning rate", _shown(a.lr), _shown(b.lr))
        if not _are_close(a.losses, b.losses, _OF_LOSS):
            return Difference(number, "loss", _shown(a.losses), _shown(b.losses))
        if not _are_same_weights(before, a.weights, b.weights):
            return Difference(number, "weights", "", "")
        before = a.weights
    return None


def begin_alike(one: Record, other: Record) -> bool:
    return one.size == other.size and _are_close(one.begin, other.begin, _OF_WEIGHTS)


def _are_close(one: tuple[float, ...], other: tuple[float, ...], tolerance: float) -> bool:
    return len(one) == len(other) and all(
        a == b or math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(one, other, strict=True)
    )


def _are_same_weights(
    before: tuple[float, ...], one: tuple[float, ...], other: tuple[float, ...]
) -> bool:
    return len(one) == len(other) and all(
        not abs(a - b) > _OF_UPDATE * abs(a - was) + _OF_WEIGHTS * max(1.0, abs(a))
        for was, a, b in zip(before, one, other, strict=False)
    )


def _shown(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers[:3])
