"""What copies hand in, opened and checked: which can be merged with each other, or why not.

A checkpoint holds ``model/<i>/<name>`` (weights and buffers) and, beside them,
``optimizer/<i>/<parameter>/<state>`` and ``state/<name>/…``; its metadata under ``hadar`` name the
float buffers and the tied weights. Whatever has none of these prefixes counts as weights, so plain
scripts may use any names. ``outer/…`` is the merge's own: see blending.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hadar_cli.adapters.safetensors_file import (
    Array,
    BadBase,
    Checkpoint,
    CheckpointError,
    Tensor,
    open_hand_in,
    quote,
    widen,
)
from hadar_cli.core.model import MergeRules

OPTIMIZER = "optimizer/"
STATE = "state/"
OUTER = "outer/"

T = TypeVar("T")
Layout = tuple[frozenset[Tensor], frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Contribution:
    """A checkpoint that a copy handed in, and the work it claims for it."""

    copy: int
    path: Path
    steps: int
    batch_size: int
    digest: str = ""  # the file's SHA-256, where it is known


class Refused(Exception):
    """Some copies proved unfit while being merged."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class Copy:
    """An opened contribution."""

    def __init__(
        self, contribution: Contribution, base: Checkpoint | None, stack: ExitStack
    ) -> None:
        self.id = contribution.copy
        self.steps = contribution.steps
        self.weight = contribution.steps * contribution.batch_size
        self.path = contribution.path
        self.digest = contribution.digest
        self.checkpoint = stack.enter_context(open_hand_in(contribution.path, base))
        self.layout = layout(self.checkpoint)

    def state(self, rules: MergeRules) -> frozenset[Tensor]:
        """What is averaged beside the weights; the optimizer's part may be left out of it."""
        wanted = (OPTIMIZER, STATE) if rules.optimizer_state == "average" else (STATE,)
        return frozenset(t for t in self.checkpoint.tensors.values() if t.name.startswith(wanted))

    def read(self, tensor: Tensor, start: int, block: Array) -> Array:
        """The values from ``start`` on, read into ``block``."""
        try:
            self.checkpoint.read_into(tensor.name, start, block)
            return widen(block, tensor.dtype)
        except BadBase:
            raise
        except CheckpointError as error:
            raise Refused({self.id: f"unreadable: {error}"}) from error


def admit(
    contributions: Sequence[Contribution],
    base: Checkpoint | None,
    rules: MergeRules,
    stack: ExitStack,
) -> tuple[list[Copy], dict[int, str]]:
    """The copies that can be merged with each other, by id, and why the others cannot."""
    copies: list[Copy] = []
    refused: dict[int, str] = {}
    for contribution in sorted(contributions, key=lambda contribution: contribution.copy):
        if contribution.steps < 1:
            refused[contribution.copy] = "it did no steps"
            continue
        try:
            copies.append(Copy(contribution, base, stack))
        except CheckpointError as error:
            refused[contribution.copy] = f"unreadable: {error}"

    if copies:
        wanted = layout(base) if base else _most_common([c.layout for c in by_steps(copies)])
        for copy in copies:
            if reason := difference(copy.layout, wanted):
                refused[copy.id] = reason
    copies = [copy for copy in copies if copy.id not in refused]

    if copies:
        # The base has nothing to say here: it has no such state before the first merge.
        state = _most_common([c.state(rules) for c in by_steps(copies)])
        for copy in copies:
            if reason := difference((copy.state(rules), frozenset()), (state, frozenset())):
                refused[copy.id] = reason
    return [copy for copy in copies if copy.id not in refused], refused


def by_steps(copies: Iterable[Copy]) -> list[Copy]:
    """The leader first: the copy with most steps, of equals the one with the lowest id."""
    return sorted(copies, key=lambda copy: (-copy.steps, copy.id))


def _most_common(layouts: Sequence[T]) -> T:
    """Of equally common ones the first."""
    return Counter(layouts).most_common(1)[0][0]


def is_weight(tensor: Tensor) -> bool:
    """Weights and buffers: what every checkpoint of a job holds from the first one on."""
    return not tensor.name.startswith((OPTIMIZER, STATE, OUTER))


def layout(checkpoint: Checkpoint) -> Layout:
    """What must agree among checkpoints of one job: the weights and which of them are tied."""
    weights = frozenset(filter(is_weight, checkpoint.tensors.values()))
    if not weights:
        raise CheckpointError("it holds no weights")
    _, tied = notes(checkpoint)
    return weights, tied


def notes(checkpoint: Checkpoint) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """The names of the buffers, and the tied weights as (alias, stored name)."""
    try:
        content = json.loads(checkpoint.metadata.get("hadar", "{}"))
        buffers = frozenset(content.get("buffers", ()))
        tied = frozenset(content.get("tied", {}).items())
    except (ValueError, RecursionError, TypeError, AttributeError) as error:
        raise CheckpointError("its notes are not as hadar writes them") from error
    if any(alias in checkpoint.tensors or name not in checkpoint.tensors for alias, name in tied):
        raise CheckpointError("its tied weights are not stored once")
    return buffers, tied


def difference(layout: Layout, wanted: Layout) -> str | None:
    """What sets a layout apart from the one wanted, or None."""
    (tensors, tied), (wanted_tensors, wanted_tied) = layout, wanted
    mine = {tensor.name: tensor for tensor in tensors}
    theirs = {tensor.name: tensor for tensor in wanted_tensors}
    if missing := theirs.keys() - mine.keys():
        return f"it lacks {quote(min(missing))}"
    if surplus := mine.keys() - theirs.keys():
        return f"it has {quote(min(surplus))}, which does not belong"
    for name, tensor in sorted(mine.items()):
        other = theirs[name]
        if tensor.dtype != other.dtype:
            return f"{quote(name)} is {tensor.dtype}, not {other.dtype}"
        if tensor.shape != other.shape:
            return f"{quote(name)} has shape {list(tensor.shape)}, not {list(other.shape)}"
    return None if tied == wanted_tied else "its tied weights are others"
