"""Who else uses a node's devices while a run is there, and what that means for its copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hadar_cli.core.availability import GpuUse, Unavailable, why_unavailable
from hadar_cli.core.model import Device, Node
from hadar_cli.core.reasons import Absence
from hadar_cli.engine.ports import DeviceFree, DeviceTaken, DeviceWanted
from hadar_cli.nodes.wire import Message, read_as, said

_MOST_NAMES = 8  # of runs that wait for one device, in the journal


@dataclass(frozen=True, slots=True)
class _Use:
    gpus: tuple[GpuUse, ...]
    minute_of_day: int
    gpu_problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    index: int
    why: str  # it is not ours to use; empty: it is
    wanted_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Turns:
    devices: tuple[_Turn, ...]


class OtherUsers:
    """Judges what one node's agent tells; the first word on a device is told whatever it is."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_taken: dict[str, bool] = {}  # as far as they were judged
        self._use: _Use | None = None
        self._turns: dict[int, _Turn] | None = None
        self._wanted_by: dict[str, tuple[str, ...]] = {}
        self.leaves_because = ""  # why all of it is about to be taken away, if it is

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to watch: real GPUs, or hours."""
        return (self._has_cards and not self._node.is_allotted) or bool(self._node.hours)

    @property
    def turns(self) -> dict[str, Any] | None:
        """What the agent needs to take turns with other runs' agents; None where nobody else can
        be on the devices, or nobody could know that they are the same ones."""
        node = self._node
        if node.is_allotted or not (self._has_cards or node.is_over_ssh or node.is_local):
            return None
        devices = [{"index": device.index, "card": _card(device)} for device in node.devices]
        return {"turn_s": node.turn_s, "devices": devices}

    @property
    def _has_cards(self) -> bool:
        return any(d.gpu and not d.emulated_speed for d in self._node.devices)

    def begin_anew(self) -> None:
        self._is_taken.clear()
        self._use = self._turns = None
        self.leaves_because = ""

    def forget(self, device: str) -> None:
        """What was last said of it proved wrong; the next word is told whatever it is."""
        self._is_taken.pop(device, None)

    def judge(self, message: Message) -> Iterator[DeviceTaken | DeviceFree | DeviceWanted]:
        """What has changed for the node's devices."""
        match message.get("event"):
            case "leaving":
                self.leaves_because = said(message.get("why", "")) or "it is taken away"
                yield from (DeviceTaken(d.name, self.leaves_because) for d in self._node.devices)
                return
            case "turns":
                self._turns = {turn.index: turn for turn in read_as(message, _Turns).devices}
            case _:
                self._use = read_as(message, _Use)
        if (self.is_needed and not self._use) or (self.turns and self._turns is None):
            return  # half of it is not known yet
        for device in self._node.devices:
            why = self._why_unavailable(device)
            before = self._is_taken.get(device.name)
            self._is_taken[device.name] = why is not None
            yield from self._wanted(device)
            if why and not before:
                yield DeviceTaken(device.name, why.why, why.reason)
            elif not why and before is not False:
                yield DeviceFree(device.name)

    def _why_unavailable(self, device: Device) -> Unavailable | None:
        turn = (self._turns or {}).get(device.index)
        if turn and turn.why:
            return Unavailable(said(turn.why), Absence.TURN)
        if not (use := self._use):
            return None
        problem = said(use.gpu_problem) if use.gpu_problem else None
        return why_unavailable(self._node, device, use.gpus, use.minute_of_day, problem)

    def _wanted(self, device: Device) -> Iterator[DeviceWanted]:
        turn = (self._turns or {}).get(device.index)
        names = tuple(said(name) for name in turn.wanted_by[:_MOST_NAMES]) if turn else ()
        if names != self._wanted_by.get(device.name, ()):
            self._wanted_by[device.name] = names
            yield DeviceWanted(device.name, names)


def _card(device: Device) -> dict[str, Any] | None:
    if device.emulated_speed or not device.gpu:
        return None
    return {"index": device.card, "uuid": device.gpu.uuid}
