"""The impact of the slot's length: CRU of every mix at 90 to 720 s, under HadarE and Hadar."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bench.paper.cache import Cache
from bench.paper.charts import Axis, lines
from bench.paper.clusters import CLUSTERS, paper_mix, play
from bench.paper.section import MIXES, Setting, Text, mix_name
from hadar_cli.core.model import PolicyChoice

TITLE = "Impact of the slot's length"
SLOTS = (90.0, 180.0, 360.0, 720.0)
POLICIES = {"hadare": "HadarE", "hadar": "Hadar"}

# Where the paper's text says that CRU peaks, in seconds.
PAPER_BEST = {
    ("hadare", "aws"): "90 for M-1 to M-5, 360 for M-8 to M-12",
    ("hadare", "testbed"): "90 for M-1 to M-4, 360 for M-5 to M-12",
    ("hadar", "aws"): "90 or 180, M-3: 360",
    ("hadar", "testbed"): "90 for M-1 to M-4, 360 for M-5 to M-12",
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """One mix at each of ``SLOTS``."""

    cru: list[float]
    ttd_s: list[float]


Measured = dict[str, dict[str, Sweep]]  # by "policy, cluster" and mix


def measure(setting: Setting, cache: Cache) -> Measured:
    mixes = ("m1", "m5", "m12") if setting.quick else MIXES
    return {
        f"{policy}, {cluster}": {
            mix: cache.get(
                f"{policy}, {cluster}, {mix}",
                Sweep,
                partial(sweep, policy, cluster, mix),
            )
            for mix in mixes
        }
        for policy in POLICIES
        for cluster in CLUSTERS
    }


def sweep(policy: str, cluster: str, mix: str) -> Sweep:
    results = [play(paper_mix(mix), cluster, PolicyChoice(policy), slot_s) for slot_s in SLOTS]
    return Sweep([r.cru or 0.0 for r in results], [r.ttd_s or 0.0 for r in results])


def write(found: Measured, text: Text) -> None:
    text.say(
        "As above, with other slots. Each cell is CRU in % and, in brackets, TTD over that of the "
        "best slot; the best is bold."
    )
    for policy, label in POLICIES.items():
        for cluster, place in CLUSTERS.items():
            each = found[f"{policy}, {cluster}"]
            text.say(f"{label}, {place}. Paper's peaks: {PAPER_BEST[policy, cluster]} s.")
            rows = [[mix_name(mix), *map(_cell, *_columns(one))] for mix, one in each.items()]
            text.table(("", *(f"{slot:.0f} s" for slot in SLOTS)), rows)
            text.picture(
                f"slots-{policy}-{cluster}",
                f"CRU by slot length under {label} on the {place} cluster",
                lines(
                    f"CRU by slot length: {label}, {place}",
                    Axis("slot, s", 0.0, 800.0),
                    Axis("CRU, %", 0.0, 100.0),
                    {
                        mix_name(mix): [(s, 100 * c) for s, c in zip(SLOTS, one.cru, strict=True)]
                        for mix, one in each.items()
                    },
                    dots=True,
                ),
            )
    text.say(
        "**Why they differ.** In the paper every slot's end costs a restart and a transfer for "
        "every copy, so long slots pay for large mixes. Here a copy stays alive while its device "
        "keeps its job, copies meet when that pays rather than at the slot's end, and a device "
        "that has nothing left is given work inside the slot: the slot's length hardly matters, "
        "and short slots cost hand-ins without a gain."
    )


def _columns(one: Sweep) -> tuple[list[float], list[float], list[bool]]:
    best = min(one.ttd_s)
    return one.cru, [ttd / best for ttd in one.ttd_s], [c == max(one.cru) for c in one.cru]


def _cell(cru: float, slower: float, is_best: bool) -> str:
    figure = f"{100 * cru:.1f}"
    return f"{f'**{figure}**' if is_best else figure} ({slower:.2f})"
