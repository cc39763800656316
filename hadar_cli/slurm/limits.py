"""What a cluster has and allows, as sinfo and scontrol tell it: why a request can never start.

Slurm takes requests that break a partition's limits, unless its administrator forbids that, and
lets them wait for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hadar_cli.core.slurm import SlurmRequest, seconds_of
from hadar_cli.errors import nearest

PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
NODES = ("sinfo", "--noheader", "--format=%R|%G|%f|%c|%m")
_CLOSED = ("DOWN", "DRAIN", "INACTIVE")
_MOST_NAMED = 12
_OF_ACCOUNTS = (
    "`sacctmgr show assoc user=$USER format=account,partition,qos` shows what you may use"
)

# Of the reasons that squeue gives for waiting, those that no waiting ends.
_NEVER = re.compile(
    r"Partition(Time|Node)Limit|BadConstraints|Invalid(Account|QOS)|DependencyNeverSatisfied"
    r"|(Account|QOS)NotAllowed|Max\w+Per(Job|Node)(Limit)?|can't use this partition"
    r"|QOSMin\w+|MaxMemPerLimit|DeadLine|ReservationDeleted"
    r"|not permitted to use this partition"
)

Partition = Mapping[str, str]


def is_endless(reason: str) -> bool:
    """A job that waits for this waits for ever."""
    return bool(_NEVER.search(reason))


def partitions_of(table: str) -> list[Partition]:
    rows = (
        dict(word.split("=", 1) for word in line.split() if "=" in word)
        for line in table.splitlines()
    )
    return [row for row in rows if "PartitionName" in row]


def why_never(request: SlurmRequest, partitions: Sequence[Partition]) -> str | None:
    """What the partitions that are asked for do not allow; None if one of them allows all."""
    named = (request.partition or "").split(",")
    asked = [
        one
        for one in partitions
        if one["PartitionName"] in named or (not request.partition and one.get("Default") == "YES")
    ]
    objections = [next(_objections(request, one), None) for one in asked]
    return objections[0] if objections and all(objections) else None


def _objections(request: SlurmRequest, partition: Partition) -> Iterator[str]:
    name = f"partition {partition['PartitionName']}"
    most, wanted_s = partition.get("MaxTime", ""), seconds_of(request.time)
    most_s, state = seconds_of(most), partition.get("State", "UP")
    if most_s is not None and wanted_s is not None and wanted_s > most_s:
        yield f"{name} gives {most} at the most, and time = {request.time!r} asks for more"
    if state in _CLOSED:
        yield f"{name} starts nothing now: it is {state}"
    allowed = partition.get("AllowAccounts", "ALL")
    if request.account and allowed != "ALL" and request.account not in allowed.split(","):
        yield f"{name} is for accounts {allowed}, and account = {request.account!r} is none of them"


def what_would_do(complaint: str, request: SlurmRequest, table: str) -> str:
    """The fix for what sbatch complains of, from sinfo's ``table`` of what there is."""
    rows = [cells for line in table.splitlines() if len(cells := line.split("|")) == 5]
    there = [row for row in rows if not request.partition or row[0] in request.partition.split(",")]
    told = complaint.lower()
    if "account" in told or "qos" in told:
        return _OF_ACCOUNTS
    if "partition" in told:
        hint = nearest(request.partition or "", [row[0] for row in rows])
        meant = f"did you mean {hint!r}? " if hint and "nvalid" in told else ""
        return f"{meant}partitions here: {_listed(row[0] for row in rows)}"
    if "feature" in told:
        features = (one for row in there for one in row[2].split(","))
        return f"features of the nodes there: {_listed(features)}"
    kinds = (f"{row[1]} with {row[3]} CPUs and {row[4]} MB" for row in there)
    return f"what nodes have there (`sinfo -o '%R %G %f %c %m'`): {_listed(kinds)}"


def _listed(words: Iterable[str]) -> str:
    names = [word for word in dict.fromkeys(words) if word != "(null)"]
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more]) or "none"
