"""From kinds to devices: jobs stay where they are, gangs share as few nodes as can be.

A gang that fits its nodes only because smaller jobs hold devices there sends those jobs elsewhere:
a restart costs them seconds, and a spread gang may run at a third of its speed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, count, groupby

from hadar_cli.core.policies.gangs.cluster_devices import ClusterDevices, Placement
from hadar_cli.core.policies.gangs.queue import Allocation


def place(
    devices: ClusterDevices,
    previous: Placement,
    allocations: Mapping[int, Allocation],
    pinned: Collection[int] = (),
) -> dict[int, tuple[str, ...]]:
    """Concrete devices for every allocation; never one device twice.

    Jobs that are ``pinned`` give way to nobody.
    """
    waiting = dict(allocations)
    kept = _stays(devices, previous, allocations)
    for job in kept:
        del waiting[job]
    return place_beside(Placed(devices, kept), waiting, pinned)


def place_beside(
    placed: Placed, newcomers: Mapping[int, Allocation], pinned: Collection[int]
) -> dict[int, tuple[str, ...]]:
    """Concrete devices for newcomers, the widest gang first, beside those who are placed."""
    placing, wanted = _Placing(placed, pinned), dict(newcomers)
    waiting = [(-sum(allocation), job) for job, allocation in wanted.items()]
    heapq.heapify(waiting)
    while waiting:
        _, job = heapq.heappop(waiting)
        for moved in placing.admit(job, wanted[job]):
            if moved not in wanted:
                wanted[moved] = placed.allocations[moved]
            heapq.heappush(waiting, (-sum(wanted[moved]), moved))
    return placing.places


def _stays(
    devices: ClusterDevices, previous: Placement, allocations: Mapping[int, Allocation]
) -> dict[int, tuple[str, ...]]:
    """Gangs that have what they are to have, all of it still here."""
    counts = devices.counts
    return {
        job: previous[job]
        for job, allocation in allocations.items()
        if job in previous
        and counts[previous[job]] == allocation
        and len(previous[job]) == sum(allocation)
    }


class Placed:
    """Gangs on their devices, followed as they come and go: looked at is only what changed."""

    def __init__(self, devices: ClusterDevices, gangs: Placement) -> None:
        self.devices = devices
        self._begin(gangs)

    def _begin(self, gangs: Placement) -> None:
        self.gangs: dict[int, tuple[str, ...]] = {}
        self.allocations: dict[int, Allocation] = {}
        self.taken: dict[str, int] = {}  # devices, and a number that grows from one to the next
        self.open = set(self.devices.home)  # devices
        self.broken: set[int] = set()  # gangs with devices that are not here
        self._number = count()
        for job, gang in gangs.items():
            self._put(job, gang)

    def follow(self, gangs: Placement) -> None:
        """Turns to these gangs: some of those before and, behind them, new ones."""
        for job in self.gangs.keys() - gangs.keys():
            self._take_away(job)
        jobs = list(gangs)
        for job in jobs[len(self.gangs) :]:
            self._put(job, gangs[job])
        if jobs != list(self.gangs) or gangs != self.gangs:
            self._begin(gangs)

    def _put(self, job: int, gang: tuple[str, ...]) -> None:
        self.gangs[job], self.allocations[job] = gang, self.devices.counts[gang]
        for name in gang:
            self.taken[name] = next(self._number)
        self.open.difference_update(gang)
        if sum(self.allocations[job]) < len(gang):
            self.broken.add(job)

    def _take_away(self, job: int) -> None:
        gang = self.gangs.pop(job)
        del self.allocations[job]
        for name in gang:
            self.taken.pop(name, None)
        self.open.update(name for name in gang if name in self.devices.home)
        self.broken.discard(job)


class _Placing:
    """Who holds what while a placement is made.

    Most devices are taken from the beginning, so only groups with some free are looked at.
    """

    def __init__(self, placed: Placed, pinned: Collection[int]) -> None:
        devices = self._devices = placed.devices
        self._pinned = pinned
        self.places = dict(placed.gangs)
        self._holders: list[dict[int, int]] = []  # of each group, once somebody may have to move
        groups = sorted({devices.home[name] for name in placed.open})
        self._free = {  # of each group, an ordered set
            s: {name: None for name in devices.groups[s].devices if name in placed.open}
            for s in groups
        }
        # Groups of each kind by how many devices they have free, so that best fit is a look-up;
        # of equals the one where nobody sits, or where nobody sat down for the longest time.
        self._holes: list[list[dict[int, None]]] = [
            [{} for _ in range(size + 1)] for size in devices.largest
        ]
        last = {s: max(placed.taken.get(d, -1) for d in devices.groups[s].devices) for s in groups}
        for s in sorted(groups, key=last.__getitem__):
            self._holes[devices.groups[s].kind][len(self._free[s])][s] = None

    def seat(self, job: int, devices: tuple[str, ...]) -> None:
        self.places[job] = self.places.get(job, ()) + devices
        for s, names in self._by_group(devices):
            self._shift(s, -len(names))
            for name in names:
                del self._free[s][name]
            if self._holders:
                self._holders[s][job] = self._holders[s].get(job, 0) + len(names)

    def admit(self, job: int, allocation: Allocation) -> list[int]:
        """Seats a gang, best fit; returns the smaller jobs that had to give way."""
        moved: list[int] = []
        is_mixed = sum(1 for size in allocation if size) > 1
        for kind, left in enumerate(allocation):
            while left:
                s = self._best_fit(kind, left)
                size = min(left, len(self._holes[kind]) - 1)
                if len(self._free[s]) < size and not is_mixed:
                    s, holders = self._cheapest_room(kind, size, sum(allocation), s)
                    for guest in holders:
                        self._take_away(guest)
                    moved += holders
                taken = tuple(self._free[s])[:left]
                self.seat(job, taken)
                left -= len(taken)
        return moved

    def _best_fit(self, kind: int, count: int) -> int:
        """The fullest group with room for all, else the emptiest."""
        holes = self._holes[kind]
        too_small = range(min(count, len(holes)) - 1, 0, -1)
        for size in chain(range(count, len(holes)), too_small):
            for group in holes[size]:
                return group
        raise ValueError(f"overbooked: no free device of kind {self._devices.kinds[kind]!r}")

    def _cheapest_room(
        self, kind: int, size: int, width: int, otherwise: int
    ) -> tuple[int, list[int]]:
        """The group that ``size`` devices come free on at the least disturbance, and of whom."""
        if not any(self._gives_way(job, width, size) for job in self.places):
            return otherwise, []
        self._holders = self._holders or self._look_around()
        best: tuple[int, int, list[int]] = (size, otherwise, [])
        for s, group in enumerate(self._devices.groups):
            if group.kind != kind or len(group.devices) < size:
                continue
            room, cost, leaving = len(self._free.get(s, ())), 0, []
            for guest, held in sorted(self._holders[s].items(), key=lambda item: -item[1]):
                if room < size and self._gives_way(guest, width, size):
                    room, cost = room + held, cost + held
                    leaving.append(guest)
            if room >= size and cost < best[0]:
                best = (cost, s, leaving)
        return best[1], best[2]

    def _gives_way(self, guest: int, width: int, size: int) -> bool:
        return guest not in self._pinned and len(self.places[guest]) < min(width, size)

    def _look_around(self) -> list[dict[int, int]]:
        """Who has how many devices of each group."""
        holders: list[dict[int, int]] = [{} for _ in self._devices.groups]
        for job, devices in self.places.items():
            for s, names in self._by_group(devices):
                holders[s][job] = holders[s].get(job, 0) + len(names)
        return holders

    def _take_away(self, job: int) -> None:
        for s, names in self._by_group(self.places.pop(job)):
            self._shift(s, len(names))
            self._free.setdefault(s, {}).update(dict.fromkeys(names))
            self._holders[s].pop(job, None)

    def _by_group(self, devices: tuple[str, ...]) -> Iterator[tuple[int, Sequence[str]]]:
        """Runs of devices on the same group, of which there is mostly one."""
        for s, names in groupby(devices, self._devices.home.__getitem__):
            yield s, list(names)

    def _shift(self, s: int, change: int) -> None:
        """Moves a group to the holes of its new size."""
        holes = self._holes[self._devices.groups[s].kind]
        size = len(self._free.get(s, ()))
        holes[size].pop(s, None)  # full groups are in no one's way
        holes[size + change][s] = None
