"""From kinds to devices: jobs stay where they are, gangs share as few nodes as can be.

A gang that fits its nodes only because smaller jobs hold devices there sends those jobs elsewhere:
a restart costs them seconds, and a spread gang may run at a third of its speed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, count, groupby

from hadar_cli.core.policies.gangs.queue import Allocation
from hadar_cli.core.policies.gangs.site import Placement, Site


def place(
    site: Site,
    previous: Placement,
    allocations: Mapping[int, Allocation],
    pinned: Collection[int] = (),
) -> dict[int, tuple[str, ...]]:
    """Concrete devices for every allocation; never one device twice.

    Jobs that are ``pinned`` give way to nobody.
    """
    waiting = dict(allocations)
    kept = _stays(site, previous, allocations)
    for job in kept:
        del waiting[job]
    return seat_beside(Seating(site, kept), waiting, pinned)


def seat_beside(
    seating: Seating, newcomers: Mapping[int, Allocation], pinned: Collection[int]
) -> dict[int, tuple[str, ...]]:
    """Concrete devices for newcomers, the widest gang first, beside those who are seated."""
    floor, wanted = _Floor(seating, pinned), dict(newcomers)
    waiting = [(-sum(allocation), job) for job, allocation in wanted.items()]
    heapq.heapify(waiting)
    while waiting:
        _, job = heapq.heappop(waiting)
        for moved in floor.admit(job, wanted[job]):
            if moved not in wanted:
                wanted[moved] = seating.allocations[moved]
            heapq.heappush(waiting, (-sum(wanted[moved]), moved))
    return floor.seats


def _stays(
    site: Site, previous: Placement, allocations: Mapping[int, Allocation]
) -> dict[int, tuple[str, ...]]:
    """Gangs that have what they are to have, all of it still here."""
    counts = site.counts
    return {
        job: previous[job]
        for job, allocation in allocations.items()
        if job in previous
        and counts[previous[job]] == allocation
        and len(previous[job]) == sum(allocation)
    }


class Seating:
    """Gangs on their devices, followed as they come and go: looked at is only what changed."""

    def __init__(self, site: Site, gangs: Placement) -> None:
        self.site = site
        self._begin(gangs)

    def _begin(self, gangs: Placement) -> None:
        self.gangs: dict[int, tuple[str, ...]] = {}
        self.allocations: dict[int, Allocation] = {}
        self.taken: dict[str, int] = {}  # devices, and a number that grows from one to the next
        self.open = set(self.site.home)  # devices
        self.broken: set[int] = set()  # gangs with devices that are not here
        self._number = count()
        for job, gang in gangs.items():
            self._seat(job, gang)

    def follow(self, gangs: Placement) -> None:
        """Turns to these gangs: some of those before and, behind them, new ones."""
        for job in self.gangs.keys() - gangs.keys():
            self._unseat(job)
        jobs = list(gangs)
        for job in jobs[len(self.gangs) :]:
            self._seat(job, gangs[job])
        if jobs != list(self.gangs) or gangs != self.gangs:
            self._begin(gangs)

    def _seat(self, job: int, gang: tuple[str, ...]) -> None:
        self.gangs[job], self.allocations[job] = gang, self.site.counts[gang]
        for name in gang:
            self.taken[name] = next(self._number)
        self.open.difference_update(gang)
        if sum(self.allocations[job]) < len(gang):
            self.broken.add(job)

    def _unseat(self, job: int) -> None:
        gang = self.gangs.pop(job)
        del self.allocations[job]
        for name in gang:
            self.taken.pop(name, None)
        self.open.update(name for name in gang if name in self.site.home)
        self.broken.discard(job)


class _Floor:
    """Who sits where while a placement is made.

    Most devices are taken from the beginning, so only shelves with some free are looked at.
    """

    def __init__(self, seating: Seating, pinned: Collection[int]) -> None:
        site = self._site = seating.site
        self._pinned = pinned
        self.seats = dict(seating.gangs)
        self._guests: list[dict[int, int]] = []  # of each shelf, once somebody may have to move
        shelves = sorted({site.home[name] for name in seating.open})
        self._free = {  # of each shelf, an ordered set
            s: {name: None for name in site.shelves[s].devices if name in seating.open}
            for s in shelves
        }
        # Shelves of each kind by how many devices they have free, so that best fit is a look-up;
        # of equals the one where nobody sits, or where nobody sat down for the longest time.
        self._holes: list[list[dict[int, None]]] = [
            [{} for _ in range(size + 1)] for size in site.largest
        ]
        last = {s: max(seating.taken.get(d, -1) for d in site.shelves[s].devices) for s in shelves}
        for s in sorted(shelves, key=last.__getitem__):
            self._holes[site.shelves[s].kind][len(self._free[s])][s] = None

    def seat(self, job: int, devices: tuple[str, ...]) -> None:
        self.seats[job] = self.seats.get(job, ()) + devices
        for s, names in self._by_shelf(devices):
            self._shift(s, -len(names))
            for name in names:
                del self._free[s][name]
            if self._guests:
                self._guests[s][job] = self._guests[s].get(job, 0) + len(names)

    def admit(self, job: int, allocation: Allocation) -> list[int]:
        """Seats a gang, best fit; returns the smaller jobs that had to give way."""
        moved: list[int] = []
        is_mixed = sum(1 for size in allocation if size) > 1
        for kind, left in enumerate(allocation):
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
        if not any(self._gives_way(job, width, size) for job in self.seats):
            return otherwise, []
        self._guests = self._guests or self._look_around()
        best: tuple[int, int, list[int]] = (size, otherwise, [])
        for s, shelf in enumerate(self._site.shelves):
            if shelf.kind != kind or len(shelf.devices) < size:
                continue
            room, cost, leaving = len(self._free.get(s, ())), 0, []
            for guest, held in sorted(self._guests[s].items(), key=lambda item: -item[1]):
                if room < size and self._gives_way(guest, width, size):
                    room, cost = room + held, cost + held
                    leaving.append(guest)
            if room >= size and cost < best[0]:
                best = (cost, s, leaving)
        return best[1], best[2]

    def _gives_way(self, guest: int, width: int, size: int) -> bool:
        return guest not in self._pinned and len(self.seats[guest]) < min(width, size)

    def _look_around(self) -> list[dict[int, int]]:
        """Who has how many devices of each shelf."""
        guests: list[dict[int, int]] = [{} for _ in self._site.shelves]
        for job, devices in self.seats.items():
            for s, names in self._by_shelf(devices):
                guests[s][job] = guests[s].get(job, 0) + len(names)
        return guests

    def _unseat(self, job: int) -> None:
        for s, names in self._by_shelf(self.seats.pop(job)):
            self._shift(s, len(names))
            self._free.setdefault(s, {}).update(dict.fromkeys(names))
            self._guests[s].pop(job, None)

    def _by_shelf(self, devices: tuple[str, ...]) -> Iterator[tuple[int, Sequence[str]]]:
        """Runs of devices on the same shelf, of which there is mostly one."""
        for s, names in groupby(devices, self._site.home.__getitem__):
            yield s, list(names)

    def _shift(self, s: int, change: int) -> None:
        """Moves a shelf to the holes of its new size."""
        holes = self._holes[self._site.shelves[s].kind]
        size = len(self._free.get(s, ()))
        holes[size].pop(s, None)  # full shelves are in no one's way
        holes[size + change][s] = None
