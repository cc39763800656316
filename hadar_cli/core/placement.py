"""From kinds to devices: jobs stay where they are, gangs share as few nodes as can be.

A gang that fits its nodes only because smaller jobs hold devices there sends those jobs elsewhere:
a restart costs them seconds, and a spread gang may run at a third of its speed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TypeAlias

from hadar_cli.core.model import Device
from hadar_cli.core.queue import Allocation

Placement: TypeAlias = Mapping[int, tuple[str, ...]]  # device names by job id


@dataclass(frozen=True, slots=True)
class Shelf:
    """The devices of one kind on one node."""

    kind: int
    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """All shelves of the cluster; ``home`` tells the shelf of each device."""

    kinds: tuple[str, ...]
    shelves: tuple[Shelf, ...]
    home: Mapping[str, int] = field(compare=False)

    @staticmethod
    def of(devices: Iterable[Device]) -> Site:
        """Kinds in the order of their names, so that the order of devices does not matter."""
        groups: dict[tuple[str, str], list[str]] = {}
        for device in devices:
            groups.setdefault((device.kind, device.node), []).append(device.name)
        kinds = tuple(sorted({kind for kind, _ in groups}))
        shelves = tuple(
            Shelf(kinds.index(kind), node, tuple(names)) for (kind, node), names in groups.items()
        )
        return Site._indexed(kinds, shelves)

    @staticmethod
    def uniform(kinds: Sequence[str], capacity: Sequence[int], per_node: Sequence[int]) -> Site:
        """So many devices of each kind, on nodes of one kind."""
        shelves = tuple(
            Shelf(r, f"{kind}-{node}", tuple(f"{kind}-{node}:{i}" for i in range(size)))
            for r, kind in enumerate(kinds)
            for node in range(-(-capacity[r] // per_node[r]))
            if (size := min(per_node[r], capacity[r] - node * per_node[r]))
        )
        return Site._indexed(tuple(kinds), shelves)

    @staticmethod
    def _indexed(kinds: tuple[str, ...], shelves: tuple[Shelf, ...]) -> Site:
        home = {name: s for s, shelf in enumerate(shelves) for name in shelf.devices}
        return Site(kinds, shelves, home)

    def counts(self, devices: Iterable[str]) -> Allocation:
        """Devices of each kind among these."""
        counts = [0] * len(self.kinds)
        for name in devices:
            counts[self.shelves[self.home[name]].kind] += 1
        return tuple(counts)

    def is_spread(self, devices: Sequence[str]) -> bool:
        """Whether a gang holds more nodes than its size needs, or several kinds."""
        shelves = {self.home[name] for name in devices}
        if len({self.shelves[s].kind for s in shelves}) > 1:
            return True
        kind = self.shelves[next(iter(shelves))].kind if shelves else 0
        sizes = sorted((len(s.devices) for s in self.shelves if s.kind == kind), reverse=True)
        needed, room = 0, 0
        while room < len(devices):
            room += sizes[needed]
            needed += 1
        return len(shelves) > needed


def place(
    site: Site,
    previous: Placement,
    allocations: Mapping[int, Allocation],
    pinned: Collection[int] = (),
) -> dict[int, tuple[str, ...]]:
    """Concrete devices for every allocation; never one device twice.

    Jobs that are ``pinned`` give way to nobody.
    """
    floor = _Floor(site, pinned)
    waiting: list[tuple[int, int]] = []  # a heap, the widest gang first
    for job, allocation in allocations.items():
        held = previous.get(job, ())
        if held and site.home.keys() >= set(held) and site.counts(held) == allocation:
            floor.seat(job, held)
        else:
            heapq.heappush(waiting, (-sum(allocation), job))
    while waiting:
        _, job = heapq.heappop(waiting)
        for moved in floor.admit(job, allocations[job]):
            heapq.heappush(waiting, (-sum(allocations[moved]), moved))
    return floor.seats


class _Floor:
    """Who sits where while a placement is made."""

    def __init__(self, site: Site, pinned: Collection[int]) -> None:
        self._site, self._pinned = site, pinned
        self._free = [dict.fromkeys(shelf.devices) for shelf in site.shelves]  # ordered sets
        self._guests: list[dict[int, int]] = [{} for _ in site.shelves]
        # Shelves of each kind by how many devices they have free, so that best fit is a look-up.
        self._holes: list[list[dict[int, None]]] = [[] for _ in site.kinds]
        for s, shelf in enumerate(site.shelves):
            holes = self._holes[shelf.kind]
            holes.extend({} for _ in range(len(shelf.devices) + 1 - len(holes)))
            holes[len(shelf.devices)][s] = None
        self.seats: dict[int, tuple[str, ...]] = {}

    def seat(self, job: int, devices: tuple[str, ...]) -> None:
        self.seats[job] = self.seats.get(job, ()) + devices
        for s, names in self._by_shelf(devices):
            self._shift(s, -len(names))
            for name in names:
                del self._free[s][name]
            self._guests[s][job] = self._guests[s].get(job, 0) + len(names)

    def admit(self, job: int, allocation: Allocation) -> list[int]:
        """Seats a gang, best fit; returns the smaller jobs that had to give way."""
        moved: list[int] = []
        is_mixed = sum(1 for count in allocation if count) > 1
        for kind, count in enumerate(allocation):
            left = count
            while left:
                s = self._best_fit(kind, left)
                size = min(left, len(self._holes[kind]) - 1)
                if len(self._free[s]) < size and not is_mixed:
                    s, guests = self._cheapest_room(kind, size, sum(allocation), s)
                    for guest in guests:
                        self._unseat(guest)
                    moved += guests
                taken = tuple(self._free[s])[:left]
                self.seat(job, taken)
                left -= len(taken)
        return moved

    def _best_fit(self, kind: int, count: int) -> int:
        """The fullest shelf with room for all, else the emptiest."""
        holes = self._holes[kind]
        too_small = range(min(count, len(holes)) - 1, 0, -1)
        for size in chain(range(count, len(holes)), too_small):
            for shelf in holes[size]:
                return shelf
        raise ValueError(f"overbooked: no free device of kind {self._site.kinds[kind]!r}")

    def _cheapest_room(
        self, kind: int, size: int, width: int, otherwise: int
    ) -> tuple[int, list[int]]:
        """The shelf that ``size`` devices come free on at the least disturbance, and of whom."""
        best: tuple[int, int, list[int]] = (size, otherwise, [])
        for s, shelf in enumerate(self._site.shelves):
            if shelf.kind != kind or len(shelf.devices) < size:
                continue
            room, cost, leaving = len(self._free[s]), 0, []
            for guest, held in sorted(self._guests[s].items(), key=lambda item: -item[1]):
                gives_way = len(self.seats[guest]) < min(width, size) and guest not in self._pinned
                if room < size and gives_way:
                    room, cost = room + held, cost + held
                    leaving.append(guest)
            if room >= size and cost < best[0]:
                best = (cost, s, leaving)
        return best[1], best[2]

    def _unseat(self, job: int) -> None:
        for s, names in self._by_shelf(self.seats.pop(job)):
            self._shift(s, len(names))
            self._free[s] |= dict.fromkeys(names)
            self._guests[s].pop(job, None)

    def _by_shelf(self, devices: tuple[str, ...]) -> Iterator[tuple[int, Sequence[str]]]:
        """Runs of devices on the same shelf, of which there is mostly one."""
        for s, names in groupby(devices, self._site.home.__getitem__):
            yield s, list(names)

    def _shift(self, s: int, change: int) -> None:
        """Moves a shelf to the holes of its new size."""
        holes = self._holes[self._site.shelves[s].kind]
        size = len(self._free[s])
        del holes[size][s]
        holes[size + change][s] = None
