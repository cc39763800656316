"""What Slurm is asked for on a node's behalf, and how Slurm writes times."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")


@dataclass(frozen=True, slots=True)
class SlurmRequest:
    """One node of a cluster, in sbatch's own words. Its login node is the node's ``host``."""

    time: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gres: str | None = None
    constraint: str | None = None
    cpus: int | None = None
    mem: str | None = None
    options: tuple[str, ...] = ()  # of sbatch, as they are
    setup: str | None = None  # shell lines, before Python is started there
    renew: bool = True  # ask for another allocation when one ends
    bin: str | None = None  # where Slurm's commands are, on the login node
    conf: str | None = None  # which slurm.conf they are to use


def seconds_of(time: str) -> float | None:
    """A time as Slurm writes it: ``30`` are minutes, ``1-12`` a day and a half. None: no limit."""
    match = _TIME.fullmatch(time.strip())
    if not match:
        return None
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return float(int(match["days"]) * 86_400 + hours * 3600 + minutes * 60 + seconds)
    if len(parts) == 3:
        return float(parts[0] * 3600 + parts[1] * 60 + parts[2])
    return float(parts[0] * 60 + (parts[1] if len(parts) == 2 else 0))
