"""Who else uses a node's devices while a run is there, and what that means for its copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hadar_cli.core.model import Node
from hadar_cli.core.politeness import GpuUse, objection
from hadar_cli.engine.ports import DeviceFree, DeviceTaken
from hadar_cli.nodes.wire import Message, read_as, said


@dataclass(frozen=True, slots=True)
class _Use:
    gpus: tuple[GpuUse, ...]
    minute_of_day: int


class Sharing:
    """Judges what one node's agent tells; the first word on a device is told whatever it is."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_taken: dict[str, bool] = {}  # as far as they were judged
        self.leaves_because = ""  # why all of it is about to be taken away, if it is

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to watch: real GPUs, or hours."""
        has_cards = any(d.gpu and not d.emulated_speed for d in self._node.devices)
        return (has_cards and not self._node.is_allotted) or bool(self._node.hours)

    def begin_anew(self) -> None:
        self._is_taken.clear()
        self.leaves_because = ""

    def judge(self, message: Message) -> Iterator[DeviceTaken | DeviceFree]:
        """What has changed for the node's devices."""
        if message.get("event") == "leaving":
            self.leaves_because = said(message.get("why", "")) or "it is taken away"
            yield from (DeviceTaken(d.name, self.leaves_because) for d in self._node.devices)
            return
        use = read_as(message, _Use)
        for device in self._node.devices:
            why = objection(self._node, device, use.gpus, use.minute_of_day)
            before = self._is_taken.get(device.name)
            self._is_taken[device.name] = why is not None
            if why and not before:
                yield DeviceTaken(device.name, why)
            elif not why and before is not False:
                yield DeviceFree(device.name)
