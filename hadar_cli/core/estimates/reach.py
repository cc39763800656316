"""Which devices can share steps: those of one machine, or of one network.

A gang of a job keeps to devices that reach each other. Where not all of them do, every job that
asks for several is given one group of them, the least crowded one that is large enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hadar_cli.core.arrays import BoolArray
from hadar_cli.core.model import Device, Job
from hadar_cli.errors import InputError


def keep_together(jobs: Sequence[Job], devices: Sequence[Device], able: BoolArray) -> BoolArray:
    """Jobs × devices, which of those that are ``able`` may be used: of one group for each gang."""
    groups = list(dict.fromkeys(device.reach for device in devices))
    if len(groups) < 2 or all(job.most_gpus == 1 for job in jobs):
        return able
    mine = np.array([[device.reach == group for device in devices] for group in groups])
    load = np.zeros(len(groups))
    together: BoolArray = able.copy()
    for row, job in enumerate(jobs):
        if job.most_gpus == 1:
            continue
        room = (mine & able[row]).sum(axis=1)
        asked = job.least_gpus
        fits = room >= asked if (room >= asked).any() else room == room.max()
        crowded = np.where(fits, (load + job.gpus) / np.maximum(room, 1), np.inf)
        chosen = int(crowded.argmin())
        load[chosen] += job.gpus
        together[row] &= mine[chosen]
    return together


def require_room_for_gangs(
    jobs: Sequence[Job], devices: Sequence[Device], able: BoolArray, file: str
) -> None:
    """Refuses a mix with a gang that is larger than any group of devices that could form it."""
    for row, job in enumerate(jobs):
        room = [d for column, d in enumerate(devices) if able[row, column]]
        sizes: dict[str, int] = {}
        for device in room:
            sizes[device.reach] = sizes.get(device.reach, 0) + 1
        most = max(sizes.values(), default=0)
        if job.least_gpus <= max(1, most):
            continue
        what = f"job {job.name!r} asks for {job.least_gpus} devices at once"
        if job.least_gpus > len(room):
            problem, fix = f"{what}, and there are {len(room)} for it", f"gpus: {len(room)}"
            raise InputError(problem, file=file, field="gpus", fix=f"{fix}, or elastic: true")
        raise InputError(
            f"{what}, and at most {most} of them can reach each other",
            file=file,
            field="gpus",
            fix='say which nodes share a trusted network: network = "lab" in nodes.toml'
            f"{_lonely(room)}; `hadar check` tells which of them reach each other",
        )


def _lonely(devices: Sequence[Device]) -> str:
    """Words on networks of one node, whose names may be slips."""
    nodes = {device.node: device.reach for device in devices if device.reach.startswith("network ")}
    alone = [(n, r) for n, r in nodes.items() if list(nodes.values()).count(r) == 1]
    told = [f"{node} is alone in {reach}" for node, reach in alone]
    return f" ({', '.join(told)})" if told else ""
