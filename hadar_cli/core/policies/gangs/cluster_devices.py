"""The devices of a cluster, by kind and node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hadar_cli.core.model import Device
from hadar_cli.core.policies.gangs.queue import Allocation

Placement: TypeAlias = Mapping[int, tuple[str, ...]]  # device names by job id


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices of one kind on one node."""

    kind: int
    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterDevices:
    """All groups of the cluster; ``home`` tells the group of each device, in their order.

    ``counts`` tells a gang's devices of each kind; those that are not here are none.
    """

    kinds: tuple[str, ...]
    groups: tuple[DeviceGroup, ...]
    home: Mapping[str, int] = field(compare=False)
    counts: Mapping[tuple[str, ...], Allocation] = field(compare=False)
    largest: tuple[int, ...] = field(compare=False)  # group of each kind

    @staticmethod
    def of(devices: Iterable[Device]) -> ClusterDevices:
        """Kinds in the order of their names, so that the order of devices does not matter."""
        names_of: dict[tuple[str, str], list[str]] = {}
        for device in devices:
            names_of.setdefault((device.kind, device.node), []).append(device.name)
        kinds = tuple(sorted({kind for kind, _ in names_of}))
        groups = tuple(
            DeviceGroup(kinds.index(kind), node, tuple(names))
            for (kind, node), names in names_of.items()
        )
        return ClusterDevices._indexed(kinds, groups)

    @staticmethod
    def uniform(
        kinds: Sequence[str], capacity: Sequence[int], per_node: Sequence[int]
    ) -> ClusterDevices:
        """So many devices of each kind, on nodes of one kind."""
        groups = tuple(
            DeviceGroup(r, f"{kind}-{node}", tuple(f"{kind}-{node}:{i}" for i in range(size)))
            for r, kind in enumerate(kinds)
            for node in range(-(-capacity[r] // per_node[r]))
            if (size := min(per_node[r], capacity[r] - node * per_node[r]))
        )
        return ClusterDevices._indexed(tuple(kinds), groups)

    @staticmethod
    def _indexed(kinds: tuple[str, ...], groups: tuple[DeviceGroup, ...]) -> ClusterDevices:
        home = {name: s for s, group in enumerate(groups) for name in group.devices}
        kind_of = {name: groups[s].kind for name, s in home.items()}
        sizes = [[len(s.devices) for s in groups if s.kind == r] for r in range(len(kinds))]
        largest = tuple(max(of_kind, default=0) for of_kind in sizes)
        return ClusterDevices(kinds, groups, home, _Counts(kind_of, len(kinds)), largest)

    def is_spread(self, devices: Sequence[str]) -> bool:
        """Whether a gang holds more nodes than its size needs, or several kinds."""
        groups = {self.home[name] for name in devices}
        if len({self.groups[s].kind for s in groups}) > 1:
            return True
        kind = self.groups[next(iter(groups))].kind if groups else 0
        sizes = sorted((len(s.devices) for s in self.groups if s.kind == kind), reverse=True)
        needed, room = 0, 0
        while room < len(devices):
            room += sizes[needed]
            needed += 1
        return len(groups) > needed


class _Counts(dict[tuple[str, ...], Allocation]):
    """Counts every gang once."""

    def __init__(self, kind_of: Mapping[str, int], kinds: int) -> None:
        super().__init__()
        self._kind_of, self._kinds = kind_of, kinds

    def __missing__(self, gang: tuple[str, ...]) -> Allocation:
        counts = [0] * self._kinds
        for name in gang:
            if name in self._kind_of:
                counts[self._kind_of[name]] += 1
        self[gang] = tuple(counts)
        return self[gang]
