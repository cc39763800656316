"""Whether a device of a shared machine may be used now. Its other users come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hadar_cli.core.model import Device, Node
from hadar_cli.core.reasons import Absence

# A desktop session or an idle notebook holds less; a training run holds more.
DEFAULT_MAX_GPU_MEM = 0.1
_MOST_LISTED = 8  # GPUs, in a sentence


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a node says about one of its GPUs. Memory of hadar's own copies is not counted."""

    index: int
    model: str
    memory_mb: float
    others_mb: float | None  # None: nobody can tell
    others: tuple[str, ...] = ()  # the users who hold it
    pcie: int | None = None  # the generation that card and board both know
    uuid: str | None = None
    sees_processes: bool = True  # or the node cannot tell whose the memory is, as in a container

    @property
    def others_share(self) -> float | None:
        if self.others_mb is None or not self.memory_mb:
            return None
        return self.others_mb / self.memory_mb

    def is_of(self, device: Device) -> bool:
        """Whether this is the device's card."""
        if device.gpu and device.gpu.uuid:
            return self.uuid == device.gpu.uuid
        return self.index == device.card


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why a device should be left alone now."""

    why: str
    reason: Absence = Absence.TAKEN


def why_unavailable(
    node: Node,
    device: Device,
    gpus: Sequence[GpuUse],
    minute_of_day: int | None,
    problem: str | None = None,
) -> Unavailable | None:
    """Why the device should be left alone now, None if it may be used.

    ``gpus``, the ``problem`` of its tools and ``minute_of_day`` (its own local time) are as the
    node reports them. A GPU of which nothing is known may be anyone's: it is left alone unless
    ``max_gpu_mem`` is 1.
    """
    if node.hours and minute_of_day is not None and not is_within(node.hours, minute_of_day):
        return Unavailable(f"outside its hours, {node.hours} (there it is {_clock(minute_of_day)})")
    if device.emulated_speed or not device.gpu or node.is_allotted:
        return None
    limit = DEFAULT_MAX_GPU_MEM if node.max_gpu_mem is None else node.max_gpu_mem
    found = [gpu for gpu in gpus if gpu.is_of(device)]
    if limit >= 1:
        return None
    share = found[0].others_share if found else None
    if share is None:
        return Unavailable(_untold(gpus, bool(found), problem), Absence.UNTOLD)
    if share > limit:
        who = " and ".join(found[0].others) or "others"
        verb = "holds" if len(found[0].others) == 1 else "hold"
        return Unavailable(f"{who} {verb} {share:.0%} of its memory, more than {limit:.0%}")
    return None


def _untold(gpus: Sequence[GpuUse], is_listed: bool, problem: str | None) -> str:
    """Why it cannot be told, as far as that is known, and what to do about it."""
    because = ""
    if problem:
        because = f" ({problem})"
    elif gpus and not is_listed:
        models = ", ".join(f"{gpu.index}: {gpu.model}" for gpu in gpus[:_MOST_LISTED])
        because = f" (it is not among the GPUs that its tools list: {models})"
    return f"who uses it cannot be told there{because}; max_gpu_mem = 1 uses it all the same"


def is_within(hours: str, minute_of_day: int) -> bool:
    """Whether the minute is in ``19:00-07:00``; a window may span midnight.

    The end is not part of it, and equal ends mean the whole day.
    """
    first, end = (_minutes(clock) for clock in hours.split("-"))
    if first < end:
        return first <= minute_of_day < end
    return minute_of_day >= first or minute_of_day < end


def _minutes(clock: str) -> int:
    hour, minute = clock.split(":")
    return 60 * int(hour) + int(minute)


def _clock(minute_of_day: int) -> str:
    return f"{minute_of_day // 60:02d}:{minute_of_day % 60:02d}"
