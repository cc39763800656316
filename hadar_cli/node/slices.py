"""Sets of steps as the node knows them: pairs of first step and end, in order."""

from __future__ import annotations

from collections.abc import Iterator

Slices = tuple[tuple[int, int], ...]


def parse_slices(text: str) -> Slices:
    """``"120:180,300:320"`` as pairs of first step and end."""
    pairs = (part.split(":") for part in text.split(",") if part)
    return tuple((int(first), int(end)) for first, end in pairs)


def format_slices(slices: Slices) -> str:
    return ",".join(f"{first}:{end}" for first, end in slices)


def take(slices: Slices, steps: int) -> Slices:
    """The first ``steps`` steps of ``slices``."""
    taken: list[tuple[int, int]] = []
    for first, end in slices:
        if steps <= 0:
            break
        taken.append((first, min(end, first + steps)))
        steps -= end - first
    return tuple(taken)


def skip(slices: Slices, steps: int) -> Slices:
    """What is left of ``slices`` after its first ``steps`` steps."""
    left: list[tuple[int, int]] = []
    for first, end in slices:
        skipped = min(steps, end - first)
        steps -= skipped
        if first + skipped < end:
            left.append((first + skipped, end))
    return tuple(left)


def before(slices: Slices, bound: int) -> Slices:
    """The steps of ``slices`` below ``bound``."""
    return tuple((first, min(end, bound)) for first, end in slices if first < bound)


def joined(one: Slices, other: Slices) -> Slices:
    """The steps of both, in order."""
    whole: list[tuple[int, int]] = []
    for first, end in sorted((*one, *other)):
        if whole and whole[-1][1] == first:
            first, _ = whole.pop()
        whole.append((first, end))
    return tuple(whole)


def numbers(slices: Slices) -> Iterator[int]:
    for first, end in slices:
        yield from range(first, end)
