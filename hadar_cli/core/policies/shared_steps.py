"""Three ways to use many devices: alone, shared steps, merged copies. Here is chosen.

A shared step is exact and costs an exchange of gradients; merged copies cost quality early in
training, which is why a job begins with steps that merging must not divide: its solo phase. So the
devices that would idle meanwhile share these, where they reach each other and are faster so. After
it, the devices of one node share steps, as the paper's copy is a node, and nodes are merged. A job
that is the only one is not merged where sharing all of its steps has half the pace of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hadar_cli.core.estimates.gangs import GAIN, Speeds, best_gang
from hadar_cli.core.model import Device
from hadar_cli.core.policies.port import JobView, Stint

# Of the fastest device alone. Shorter steps are shared only where the user asks for it: what little
# is known of an exchange before the first one promises more than processes on busy cores keep.
LEAST_STEP_S = 0.1
# Of the pace of merged copies: so much may be given to be exact (docs/quality.md).
EXACT = 0.5
_MOST = 16  # devices that are weighed for it, the fastest


def helpful_gang(view: JobView, best: str, others: Sequence[str], rates: Speeds) -> tuple[str, ...]:
    """The devices that had better share the job's steps, ``best`` first; it alone where none helps.

    The fastest join first, each as long as it makes the gang faster: what exchanging gradients
    takes, as far as it is known, is in a gang's rate. Who asks for sharing gets the best company.
    """
    alone = rates.rate(view.job.id, best)
    is_asked = view.job.mode == "share"
    if alone > 0 and not is_asked and 1 / alone < LEAST_STEP_S:
        return (best,)
    gang, rate = best_gang(view.job.id, best, others, rates) if alone > 0 else ((best,), 0.0)
    if not is_asked:
        return gang if rate > GAIN * alone else (best,)
    able = (device for device in others if rates.rate(view.job.id, device) > 0)
    return gang if len(gang) > 1 else (best, *able)


def shares_to_its_end(view: JobView, cluster: Sequence[Device], rates: Speeds) -> bool:
    """Whether a job that has all devices for itself had better share all of its steps."""
    job = view.job
    alone = {d.name: rates.rate(job.id, d.name) for d in cluster if d.name not in view.too_dear}
    if not view.may_share or job.mode != "auto" or job.fork or not any(alone.values()):
        return False
    best, *others = sorted(cluster, key=lambda device: -alone.get(device.name, 0.0))
    near = [d.name for d in others if d.reach == best.reach and alone.get(d.name)]
    gang = helpful_gang(view, best.name, near[: _MOST - 1], rates)
    return len(gang) > 1 and rates.gang(job.id, gang) >= EXACT * sum(alone.values())


def share_nodes(
    stints: Sequence[Stint], jobs: Sequence[JobView], cluster: Sequence[Device], rates: Speeds
) -> list[Stint]:
    """Copies of a job that would begin on several devices of one node, as one that they share."""
    may = {job.job.id: job for job in jobs if job.may_share and not job.solo_steps}
    node_of = {device.name: device.node for device in cluster}
    firsts: dict[str, Stint] = {}
    for stint in stints:
        firsts.setdefault(stint.device, stint)
    groups: dict[tuple[int, str], list[Stint]] = {}
    for stint in firsts.values():
        if stint.job in may and not stint.gang and stint.device in node_of:
            groups.setdefault((stint.job, node_of[stint.device]), []).append(stint)
    shared: dict[Stint, Stint | None] = {}
    for (job, _), mine in groups.items():
        best = max(mine, key=lambda stint: rates.rate(job, stint.device))
        others = [stint.device for stint in mine if stint is not best]
        gang = helpful_gang(may[job], best.device, others, rates)
        if len(gang) == len(mine) > 1:  # all or none: one left out would be a copy to merge
            shared |= dict.fromkeys(mine)
            steps = sum(stint.steps for stint in mine)
            shared[best] = replace(best, steps=steps, gang=gang)
    return [one for stint in stints if (one := shared.get(stint, stint)) is not None]
