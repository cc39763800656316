"""Gangs over real SSH servers: one member is killed, hangs or is cut off, at every stage."""

from __future__ import annotations

from hadar_cli.core import events
from tests.faults.checker import demand
from tests.faults.real_faults import STAGES, cut, kill, kill_head, reset, stop
from tests.faults.real_run import RealRun
from tests.faults.real_scenario import Scenario
from tests.faults.real_site import Site

_QUICK = tuple(stage for stage in STAGES if stage != "transfer")  # which takes a slow link


def gangs(is_full: bool) -> list[Scenario]:
    """One after the other in a short run; in a long one, more of each."""
    killed = tuple(kill("worker", stage) for stage in _QUICK)
    hung = stop("worker", "training", 2.0)
    struck = {"member killed, hung, cut off": (*killed, hung, cut("training", 2.0))}
    if is_full:
        struck |= {
            "member's node in trouble": (
                *(kill(who, "training") for who in ("supervisor", "agent", "nursery", "session")),
                *(reset(stage) for stage in ("start", "training")),
            ),
            "member hangs": tuple(stop("worker", stage, 8.0) for stage in ("start", "training")),
            "member cut off": (*(cut(stage, 2.0) for stage in _QUICK), cut("training", 25.0)),
            "head of a gang killed": tuple(kill_head(stage) for stage in _QUICK),
        }
    return [
        Scenario(f"gang: {name}", faults, _connect, proves=_was_shared, gang=2)
        for name, faults in struck.items()
    ]


def _connect(site: Site) -> None:
    for name in site.lab.names:
        site.extra.setdefault(name, {}).update(network="lab", address="127.0.0.1")


def _was_shared(run: RealRun) -> bool:
    """All steps were done by both, together."""
    copies = [seen.event for seen in run.seen if isinstance(seen.event, events.CopyStarted)]
    demand(all(len(copy.devices) == 2 for copy in copies), "I1: steps of a gang were not shared")
    return bool(copies)
