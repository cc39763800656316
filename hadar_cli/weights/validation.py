"""What copies hand in, opened and checked: which can be merged with each other, or why not.

A checkpoint holds ``model/<i>/<name>`` (weights and buffers) and, beside them,
``optimizer/<i>/<parameter>/<state>`` and ``state/<name>/…``; its metadata under ``hadar`` name the
float buffers, the tied weights, and what did not train, with its hash. Whatever has none of these
prefixes counts as weights, so plain scripts may use any names. ``outer/…`` is the merge's own: see
merge_arithmetic.py.

What did not train may be left out of the file. It is then what the base holds, or, where the base
names it only, what every copy's own script built: the hashes must agree.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hadar_cli.core.model import MergeRules
from hadar_cli.core.reasons import Unfit
from hadar_cli.weights.safetensors_file import (
    Array,
    BadBase,
    Checkpoint,
    CheckpointError,
    Tensor,
    quote,
    widen,
)
from hadar_cli.weights.updates import open_hand_in

OPTIMIZER = "optimizer/"
STATE = "state/"
OUTER = "outer/"

NOBODY = -1  # the number of what stands for the copies in time, where there are none

T = TypeVar("T")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Layout:
    """What must agree among checkpoints of one job."""

    stored: frozenset[Tensor]
    frozen: frozenset[tuple[str, str]]  # what did not train, with its hash; it may be stored too
    tied: frozenset[tuple[str, str]]  # alias and stored name

    @property
    def left_out(self) -> frozenset[str]:
        """Named by hash only."""
        return frozenset(name for name, _ in self.frozen) - {tensor.name for tensor in self.stored}


@dataclass(frozen=True, slots=True)
class Lateness:
    """Of a copy that comes to a later merge than its own: what it trained, and how."""

    base: Path  # the weights that it began with
    merges: int  # since then, without the one that it joins
    lr_scale: float  # the factor on its learning rate


@dataclass(frozen=True, slots=True)
class Contribution:
    """A checkpoint that a copy handed in, and the work it claims for it."""

    copy: int
    path: Path
    steps: int
    batch_size: int
    digest: str = ""  # the file's SHA-256, where it is known
    late: Lateness | None = None


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a copy cannot be merged; ``why`` is for people."""

    reason: Unfit
    why: str


class Refused(Exception):
    """Some copies proved unfit while being merged."""

    def __init__(self, reasons: dict[int, Objection]) -> None:
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
        found = notes(self.checkpoint)
        self.frozen = found.frozen
        self.keeps_optimizer = found.keeps_optimizer and not self.state_in(OPTIMIZER)

    def state_in(self, prefix: str) -> frozenset[Tensor]:
        return frozenset(t for t in self.checkpoint.tensors.values() if t.name.startswith(prefix))

    def read(self, tensor: Tensor, start: int, block: Array) -> Array:
        """The values from ``start`` on, read into ``block``."""
        try:
            self.checkpoint.read_into(tensor.name, start, block)
            return widen(block, tensor.dtype)
        except BadBase:
            raise
        except CheckpointError as error:
            raise Refused({self.id: unreadable(error)}) from error


def unreadable(error: CheckpointError) -> Objection:
    return Objection(Unfit.UNREADABLE, f"unreadable: {error}")


def admit(
    contributions: Sequence[Contribution],
    base: Checkpoint | None,
    rules: MergeRules,
    stack: ExitStack,
) -> tuple[list[Copy], dict[int, Objection]]:
    """The copies that can be merged with each other, by id, and why the others cannot."""
    copies: list[Copy] = []
    refused: dict[int, Objection] = {}
    for contribution in sorted(contributions, key=lambda contribution: contribution.copy):
        if contribution.steps < 1:
            refused[contribution.copy] = Objection(Unfit.NO_STEPS, "it did no steps")
            continue
        try:
            copies.append(Copy(contribution, base, stack))
        except CheckpointError as error:
            refused[contribution.copy] = unreadable(error)

    if copies:
        wanted = layout(base) if base else _most_common([c.layout for c in by_steps(copies)])
        for copy in copies:
            if reason := difference(copy.layout, wanted):
                refused[copy.id] = Objection(Unfit.UNLIKE, reason)
        copies = [copy for copy in copies if copy.id not in refused]
        refused |= _other_thawed(copies, wanted)
    copies = [copy for copy in copies if copy.id not in refused]
    refused |= _other_state(copies, rules)
    return [copy for copy in copies if copy.id not in refused], refused


def _other_thawed(copies: Sequence[Copy], wanted: Layout) -> dict[int, Objection]:
    """Why copies cannot be merged that train what was frozen so far, each in another shape."""
    known = {tensor.name: tensor for tensor in wanted.stored}
    clashes = {copy.id: _clash(copy.layout.stored, known) for copy in by_steps(copies)}
    return {number: Objection(Unfit.UNLIKE, why) for number, why in clashes.items() if why}


def _other_state(copies: Sequence[Copy], rules: MergeRules) -> dict[int, Objection]:
    """Why copies cannot be merged whose optimizer's or own state is another than most have.

    The base has nothing to say here: it has no such state before the first merge. A copy that was
    to keep its optimizer's state has handed in none, and one in which layers are still frozen that
    others train cannot have their state.
    """
    refused = _unlike(copies, STATE)
    if rules.optimizer_state == "average":
        refused |= _unlike([copy for copy in copies if not copy.keeps_optimizer], OPTIMIZER)
    return refused


def _unlike(copies: Sequence[Copy], prefix: str) -> dict[int, Objection]:
    trained = {tensor.name for copy in copies for tensor in copy.layout.stored}
    ahead = [copy for copy in by_steps(copies) if not copy.layout.left_out & trained]
    wanted = _most_common([copy.state_in(prefix) for copy in ahead]) if ahead else frozenset()
    known = {tensor.name: tensor for tensor in wanted}
    refused: dict[int, Objection] = {}
    for copy in by_steps(copies):
        mine = copy.state_in(prefix)
        if copy in ahead:
            reason = difference(_without_notes(mine), _without_notes(wanted))
        else:
            reason = _clash(mine, known)
        if reason:
            refused[copy.id] = Objection(Unfit.UNLIKE, reason)
    return refused


def _without_notes(tensors: frozenset[Tensor]) -> Layout:
    return Layout(tensors, frozenset(), frozenset())


def _clash(tensors: Iterable[Tensor], known: dict[str, Tensor]) -> str | None:
    """Why they do not go with those known by the same names; new ones are known from then on."""
    for tensor in tensors:
        if known.setdefault(tensor.name, tensor) != tensor:
            return f"{quote(tensor.name)} has another shape or type than others' have"
    return None


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
    """Its weights, those that are named only, and which of them are tied."""
    weights = frozenset(filter(is_weight, checkpoint.tensors.values()))
    if not weights:
        raise CheckpointError("it holds no weights")
    found = notes(checkpoint)
    return Layout(weights, frozenset(found.frozen.items()), found.tied)


@dataclass(frozen=True, slots=True)
class Notes:
    """What is written of a checkpoint's weights beside them."""

    buffers: frozenset[str]
    tied: frozenset[tuple[str, str]]
    frozen: Mapping[str, str]
    keeps_optimizer: bool


def notes(checkpoint: Checkpoint) -> Notes:
    try:
        content = json.loads(checkpoint.metadata.get("hadar", "{}"))
        buffers = frozenset(content.get("buffers", ()))
        tied = frozenset(content.get("tied", {}).items())
        frozen = dict(content.get("frozen", {}))
        sound = all(_HASH.fullmatch(digest) for digest in frozen.values())
    except (ValueError, RecursionError, TypeError, AttributeError) as error:
        raise CheckpointError("its notes are not as hadar writes them") from error
    if not sound:
        raise CheckpointError("its notes are not as hadar writes them")
    held = checkpoint.tensors.keys() | frozen.keys()
    if any(alias in held or name not in held for alias, name in tied):
        raise CheckpointError("its tied weights are not stored once")
    return Notes(buffers, tied, frozen, content.get("keeps_optimizer") is True)


def difference(layout: Layout, wanted: Layout) -> str | None:
    """What sets a layout apart from the one wanted, or None."""
    mine = {tensor.name: tensor for tensor in layout.stored}
    theirs = {tensor.name: tensor for tensor in wanted.stored}
    frozen, their_frozen = dict(layout.frozen), dict(wanted.frozen)
    names, their_names = mine.keys() | frozen.keys(), theirs.keys() | their_frozen.keys()
    if missing := their_names - names:
        return f"it lacks {quote(min(missing))}"
    if surplus := names - their_names:
        return f"it has {quote(min(surplus))}, which does not belong"
    for name in sorted(mine.keys() & theirs.keys()):
        tensor, other = mine[name], theirs[name]
        if tensor.dtype != other.dtype:
            return f"{quote(name)} is {tensor.dtype}, not {other.dtype}"
        if tensor.shape != other.shape:
            return f"{quote(name)} has shape {list(tensor.shape)}, not {list(other.shape)}"
    for name in sorted(frozen.keys() & their_frozen.keys()):
        if frozen[name] != their_frozen[name]:
            return (
                f"{quote(name)} does not train, but is another than the job's: an unseeded model "
                "or another base model"
            )
    return None if layout.tied == wanted.tied else "its tied weights are others"
