"""What Ray is asked for on a node's behalf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIX = "ray:"


@dataclass(frozen=True, slots=True)
class RayRequest:
    """One machine of a Ray cluster, in Ray's own words. The cluster is the node's ``host``."""

    node: str | None = None  # its address, host name, name, id, or a label: key=value
    num_gpus: float | None = None  # None: as many as the node lists
    num_cpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    nth: int = 0  # of the machines that fit; nodes that ask for the same get one each
