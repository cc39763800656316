"""HadarE against Hadar and Gavel on the paper's two clusters, in simulation at its scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from bench.paper.cache import Cache
from bench.paper.charts import Axis, Bar, axis, bars, tallest
from bench.paper.section import MIXES, ROOT, Setting, Text, mix_name
from hadar_cli.config.mixes import read_mix
from hadar_cli.core.gpu_table import find_gpu
from hadar_cli.core.model import Device, Mix, PolicyChoice
from hadar_cli.simulation.fitting import assumed_costs
from hadar_cli.simulation.scenario import PolicyResult, Scenario, simulate
from hadar_cli.simulation.speeds import ModelledSpeeds
from tests.support.lab import PROFILES

TITLE = "HadarE on the paper's two clusters, simulated at its scale"
POLICIES = ("gavel", "gavel-makespan", "hadar", "hadare")
CLUSTERS = {"aws": "AWS", "testbed": "testbed"}
SLOT_S = 360.0

# Mean JCT in seconds, read from the coordinates of the paper's Fig. JCT: HadarE, Hadar, Gavel.
PAPER_JCT = {
    "aws": {
        "m1": (800.7, 1269.0, 1728.6),
        "m3": (1005.0, 1801.7, 2036.2),
        "m4": (1120.6, 1848.7, 2024.1),
        "m5": (1032.5, 1727.5, 2128.4),
        "m8": (1148.9, 2277.3, 2526.6),
        "m10": (1127.3, 2589.8, 2849.1),
        "m12": (1143.0, 2653.1, 3209.3),
    },
    "testbed": {
        "m1": (459.6, 1308.5, 1743.1),
        "m3": (702.2, 1740.0, 1913.3),
        "m4": (730.5, 1613.3, 2168.4),
        "m5": (755.9, 1522.0, 2178.7),
        "m8": (944.0, 2150.5, 2184.7),
        "m10": (1127.3, 2256.4, 2588.4),
        "m12": (1203.0, 2512.5, 2814.9),
    },
}
# Means over the seven mixes, from the paper's text: CRU, TTD and JCT gains.
PAPER_GAINS = {
    "aws": {"CRU": (1.20, 1.56), "TTD": (1.17, "2.12, both clusters"), "JCT": (1.17, 2.23)},
    "testbed": {"CRU": (1.21, 1.62), "TTD": (1.16, "2.12, both clusters"), "JCT": (1.23, 2.76)},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    ttd_s: float
    bound_s: float
    cru: float
    rounds: int
    jcts_s: list[float]  # in order

    @property
    def jct_s(self) -> float:
        return fmean(self.jcts_s)


def devices_of(cluster: str) -> tuple[Device, ...]:
    """The paper's machines, one GPU each, as spec sheets describe them."""
    return tuple(Device(m.name, m.name, 0, find_gpu(m.gpu)) for m in PROFILES[cluster])


def paper_mix(name: str) -> Mix:
    return read_mix(ROOT / "mixes" / f"{name}.yaml", accelerators=True)


def play(mix: Mix, cluster: str, policy: PolicyChoice, slot_s: float = SLOT_S) -> PolicyResult:
    devices = devices_of(cluster)
    scenario = Scenario(
        replace(mix, slot_s=slot_s, policy=policy),
        devices,
        assumed_costs(accelerators=True),
        lambda _: ModelledSpeeds(mix.jobs, devices),
    )
    result = simulate(scenario, policy, policy.name, lambda done: None)
    if result.ttd_s is None:
        raise RuntimeError(f"{policy.name} left {result.unfinished} jobs: {result.problem}")
    return result


def outcome(mix: str, cluster: str, policy: str) -> Outcome:
    result = play(paper_mix(mix), cluster, PolicyChoice(policy))
    assert result.ttd_s and result.lower_bound_s and result.cru
    return Outcome(
        result.ttd_s, result.lower_bound_s, result.cru, result.rounds, list(result.finished_s)
    )


Measured = dict[str, dict[str, dict[str, Outcome]]]  # by cluster, policy and mix


def measure(setting: Setting, cache: Cache) -> Measured:
    return {
        cluster: {
            policy: {
                mix: cache.get(
                    f"{cluster}, {mix}, {policy}",
                    Outcome,
                    partial(outcome, mix, cluster, policy),
                )
                for mix in MIXES
            }
            for policy in POLICIES
        }
        for cluster in CLUSTERS
    }


def better_gavel(found: dict[str, dict[str, Outcome]], mix: str) -> Outcome:
    return min((found["gavel"][mix], found["gavel-makespan"][mix]), key=lambda one: one.ttd_s)


def write(found: Measured, text: Text) -> None:
    text.say(
        "One V100, two K80 and two T4 (AWS); TITAN RTX, T4, T400, RTX 3090 and A2000 (testbed). "
        "`paper` presets, slots of 360 s, 10 s for a start and 10 s for each hand-in of forked "
        "copies; jobs that are not forked run on from slot to slot and pay no hand-in, which "
        "favours Gavel and Hadar. True speeds are the formula's. Gavel stands with both of its "
        "objectives; gains are over the better of the two in TTD, mix by mix."
    )
    for cluster, label in CLUSTERS.items():
        text.say(f"### {label}")
        _mix_table(found[cluster], cluster, text)
        _gain_table(found[cluster], cluster, text)
        _pictures(found[cluster], cluster, label, text)
    text.say(
        "**Why they differ.** The gains over Gavel are smaller than the paper's because the rivals "
        "are stronger here: both objectives of Gavel, warm copies and no restart where a job keeps "
        "its device, no idle slot after a job's end. HadarE's own distance to the bound that no "
        "schedule of forked jobs can beat is what is left to win. The paper's figures hold some "
        "slips: M-5's TTD of 3,900 s under Hadar on AWS stands beside a largest JCT of 2,918 s, "
        "though all jobs start together; M-10's mean JCT under HadarE is the same on both clusters "
        "(1127.34 s); 4,200 s against 3,900 s is called a speed-up of 1.18; and eight MM jobs like "
        "M-1's, which takes 801 s on AWS with all five nodes to itself, need 8 × 801 s, while the "
        "last job of M-12 is done after 1,473 s: its completion times under HadarE for large mixes "
        "cannot be met by any schedule of M-1's jobs. Bars of its CRU and "
        "TTD figures are not printed as numbers; only the means in its text are compared."
    )


def _mix_table(found: dict[str, dict[str, Outcome]], cluster: str, text: Text) -> None:
    rows = []
    for mix in MIXES:
        gavel, hadar, hadare = better_gavel(found, mix), found["hadar"][mix], found["hadare"][mix]
        paper = PAPER_JCT[cluster][mix]
        rows.append(
            (
                mix_name(mix),
                " / ".join(f"{one.ttd_s:,.0f}" for one in (hadare, hadar, gavel)),
                f"{hadare.ttd_s / hadare.bound_s:.3f}",
                " / ".join(f"{100 * one.cru:.0f}" for one in (hadare, hadar, gavel)),
                " / ".join(f"{jct:,.0f}" for jct in paper),
                " / ".join(f"{one.jct_s:,.0f}" for one in (hadare, hadar, gavel)),
                f"{min(hadare.jcts_s):,.0f}–{max(hadare.jcts_s):,.0f}",
            )
        )
    head = ("", "TTD, s: HadarE / Hadar / Gavel", "HadarE's TTD ÷ forked bound", "CRU, %")
    tail = ("mean JCT, s: paper", "mean JCT, s: ours", "JCT under HadarE, least–most")
    text.table((*head, *tail), rows)


def _gain_table(found: dict[str, dict[str, Outcome]], cluster: str, text: Text) -> None:
    def mean_gain(of: str, policy: str) -> str:
        gains = []
        for mix in MIXES:
            gavel, ours = better_gavel(found, mix), found[policy][mix]
            if of == "CRU":
                gains.append(ours.cru / gavel.cru)
            elif of == "TTD":
                gains.append(gavel.ttd_s / ours.ttd_s)
            else:
                gains.append(gavel.jct_s / ours.jct_s)
        return f"{fmean(gains):.2f}"

    rows: list[tuple[object, ...]] = [
        (of, hadar, mean_gain(of, "hadar"), hadare, mean_gain(of, "hadare"))
        for of, (hadar, hadare) in PAPER_GAINS[cluster].items()
    ]
    over_hadar = fmean(found["hadar"][mix].ttd_s / found["hadare"][mix].ttd_s for mix in MIXES)
    rows.append(("TTD, over Hadar", "", "", "1.79, both clusters", f"{over_hadar:.2f}"))
    text.table(("mean gain over Gavel", "Hadar: paper", "ours", "HadarE: paper", "ours"), rows)


def _pictures(found: dict[str, dict[str, Outcome]], cluster: str, label: str, text: Text) -> None:
    named = {"HadarE": "hadare", "Hadar": "hadar", "Gavel, makespan": "gavel-makespan"}
    named["Gavel, max-min"] = "gavel"
    groups = [mix_name(mix) for mix in MIXES]
    ttd = {n: [Bar(found[p][m].ttd_s) for m in MIXES] for n, p in named.items()}
    cru = {n: [Bar(100 * found[p][m].cru) for m in MIXES] for n, p in named.items()}
    jct = {
        n: [Bar(o.jct_s, min(o.jcts_s), max(o.jcts_s)) for o in (found[p][m] for m in MIXES)]
        for n, p in named.items()
    }
    for what, title, y, series in (
        ("ttd", "Total time duration", axis("seconds", tallest(ttd)), ttd),
        ("cru", "Cluster resource utilisation", Axis("%", 0.0, 100.0), cru),
        ("jct", "Mean completion time, with least and most", axis("seconds", tallest(jct)), jct),
    ):
        svg = bars(f"{title}, {label}", y, groups, series)
        text.picture(f"{what}-{cluster}", f"{title} on the {label} cluster", svg)
