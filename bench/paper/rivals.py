"""Other schedulers' own workloads: Sia's, Shockwave's and Gavel's, beside what they made of them.

    scripts/paper --full --only rivals --rivals FOLDER     # writes docs/rivals.md

FOLDER holds what cannot be shipped: ``sia-simulator/`` of github.com/siasosp23/artifacts, in
``shockwave/`` the traces of github.com/uw-mad-dash/shockwave as 120.trace, 220.trace … with its
tacc_throughputs.json, and in ``gavel/`` simulation_throughputs.json and Philly traces of
github.com/stanford-futuredata/gavel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from bench.paper.batches import batch
from bench.paper.cache import Cache, NotMeasured
from bench.paper.section import Setting, Text
from hadar_cli.core.model import Mix, PolicyChoice
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.scenario import Scenario, simulate, wrong_lengths
from hadar_cli.simulation.shockwave import read_workload as read_shockwave
from hadar_cli.simulation.sia import Profiles, read_workload
from hadar_cli.simulation.speeds import TableSpeeds, parse_cluster
from hadar_cli.simulation.traces import Trace, read_throughputs, read_trace

TITLE = "Rivals' own workloads"
INTRODUCTION = """\
# Beside Sia, Shockwave and Gavel, on their own workloads

One setting for all: the policy `hadar` as it comes. This page is written by
`scripts/paper --only rivals`; do not edit it. Times are hours: the end of the last job / the mean
completion time. *Tuned on* means that somebody looked at this workload while the defaults were
found; the others were not looked at for that.
"""
SIA_CLUSTER = {"aws": 24, "dgx-ext": 16, "rtx": 24}
EVEN = "v100:20,p100:20,k80:20"
SIA = {"philly": 8, "saturn": 10}
# Sia, SOSP '23, table 3: means and deviations over all workloads of a set, in its own simulator.
PUBLISHED = {
    "philly": "Sia 14.2 ± 1.9 / 0.6 ± 0.1 · Pollux 24.5 / 1.0 · Gavel, tuned jobs 33.8 / 1.9",
    "saturn": "Sia 14.9 ± 1.7 / 0.7 ± 0.1 · Pollux 25.5 / 1.0 · Gavel, tuned jobs 43.0 / 2.5",
}
# Sia's code, run on philly 1: with all sizes free, and with all jobs as they ask.
SIA_PHILLY_1 = "Sia's own code: free 15.6 / 0.54, as asked 20.3 / 1.32"
SHOCKWAVE = {
    120: "Shockwave 6.72 / 2.77, ρ 1.78 (7.5 %) · Themis 8.87 / 3.14, ρ 3.44",
    220: "not published as figures",
    460: "not published as figures",
}
SHOCKWAVE_GPUS = {120: 32, 220: 64, 460: 128}
# This repository's Gavel, charged for spread gangs like everybody; max-min · makespan.
GAVEL = {
    "batch 1": "233.4 / 86.5 · 200.1 / 199.4",
    "batch 2": "206.4 / 76.4 · 172.9 / 172.1",
    "2869ce": "593.7 / 208.2 · 561.1 / 444.2",
    "103959": "698.8 / 174.4 · 602.9 / 601.5",
    "e13805": "812.5 / 147.4 · 635.3 / 582.5",
}
TUNED_ON = (
    *(f"philly {n}" for n in range(1, 9)),
    *("saturn 1", "saturn 2", "shockwave 120", "2869ce"),
)
WRONG = (", lengths ± 50 %", ", blind")
HELD_OUT_SEEDS = (12, 13)  # what is done about wrong lengths was chosen on others


@dataclass(frozen=True, slots=True)
class Played:
    """What the default made of a workload."""

    ttd_h: float
    jct_h: float
    bound: float  # TTD over it
    rho: float
    beyond: float
    restarts: int

    def __str__(self) -> str:
        return f"{self.ttd_h:,.1f} / {self.jct_h:,.2f}"


def measure(setting: Setting, cache: Cache) -> dict[str, Played]:
    found = {}
    for name, scenario in _cases(setting):
        found[name] = cache.get(name, Played, partial(_play, scenario))
    return found


def _play(scenario: Callable[[], Scenario]) -> Played:
    result = simulate(scenario(), PolicyChoice("hadar"), "hadar", lambda done: None)
    if result.ttd_s is None or result.mean_jct_s is None or result.problem:
        raise RuntimeError(f"unfinished: {result.problem}")
    return Played(
        result.ttd_s / 3600,
        result.mean_jct_s / 3600,
        result.ttd_s / (result.lower_bound_s or 1.0),
        result.worst_rho or 0.0,
        result.beyond_fair or 0.0,
        result.restarts,
    )


# -- the workloads ---------------------------------------------------------------------------


def _cases(setting: Setting) -> Iterator[tuple[str, Callable[[], Scenario]]]:
    for group, count in SIA.items():
        for number in range(1, count + 1):
            for free in (False, True):
                how = "free" if free else "as asked"
                yield f"{group} {number}, {how}", partial(_sia, setting, group, number, free)
    for jobs, gpus in SHOCKWAVE_GPUS.items():
        yield f"shockwave {jobs}", partial(_shockwave, setting, jobs, gpus)
    for seed in (1, 2, *HELD_OUT_SEEDS):
        for told in ("", *WRONG) if seed in HELD_OUT_SEEDS else ("",):
            yield f"batch {seed}{told}", partial(_batch, setting, seed, told)
    for cluster in ("2869ce", "103959", "e13805"):
        yield cluster, partial(_philly, setting, cluster)


def _folder(setting: Setting) -> Path:
    if setting.rivals is None:
        raise NotMeasured("needs --rivals FOLDER")
    return setting.rivals


def _sia(setting: Setting, group: str, number: int, free: bool) -> Scenario:
    folder = _folder(setting) / "sia-simulator"
    path = folder / "workloads" / group / f"workload-{number}.csv"
    trace = read_workload(path, Profiles(folder / "traces"), SIA_CLUSTER, free)
    cluster = ",".join(f"{kind}:{count}" for kind, count in SIA_CLUSTER.items())
    return _scenario(trace, cluster, 8, slot_s=60.0, start_s=50.0)


def _shockwave(setting: Setting, jobs: int, gpus: int) -> Scenario:
    """With batches that grow on the way, as in the authors' simulator."""
    folder = _folder(setting) / "shockwave"
    table = read_throughputs(folder / "tacc_throughputs.json")
    trace = read_shockwave(folder / f"{jobs}.trace", table)
    return _scenario(trace, f"v100:{gpus}", 4, slot_s=120.0, start_s=20.0)


def _batch(setting: Setting, seed: int, told: str) -> Scenario:
    table = read_throughputs(_folder(setting) / "gavel" / "simulation_throughputs.json")
    drawn = batch(seed, 480, table)
    lengths = {"": None, ", blind": {}}.get(told, wrong_lengths(drawn.jobs, 0.5, seed))
    return _scenario(drawn, EVEN, 4, slot_s=360.0, start_s=10.0, table=table, told=lengths)


def _philly(setting: Setting, cluster: str) -> Scenario:
    """All jobs of one virtual cluster, there from the beginning."""
    folder = _folder(setting) / "gavel"
    lines = (folder / f"{cluster}.trace").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    text = "\n".join("\t".join([*row[:5], "0", *row[6:]]) for row in rows) + "\n"
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / f"{cluster}.trace"
        path.write_text(text)
        trace = read_trace(path)
    table = read_throughputs(folder / "simulation_throughputs.json")
    return _scenario(trace, EVEN, 4, slot_s=360.0, start_s=10.0, table=table)


def _scenario(
    trace: Trace,
    cluster: str,
    per_node: int,
    *,
    slot_s: float,
    start_s: float,
    table: object = None,
    told: dict[int, float] | None = None,
) -> Scenario:
    devices, rates = parse_cluster(cluster, per_node), table or trace.rates

    def speeds(consolidated: bool) -> TableSpeeds:
        return TableSpeeds(rates, trace.jobs, devices, loses=not consolidated)

    return Scenario(
        Mix("rivals", trace.jobs, slot_s=slot_s), devices, Costs(start_s, 10.0), speeds, told=told
    )


# -- the page --------------------------------------------------------------------------------


def write(found: dict[str, Played], text: Text) -> None:
    _write_sia(found, text)
    _write_shockwave(found, text)
    _write_gavel(found, text)
    text.say(
        "## What is not equal",
        "- Hadar's simulator gives away devices that come free inside a slot, Gavel's does not.\n"
        "- Hadar is told exact lengths where nothing else is said; Shockwave predicts them, and "
        "Sia goes by goodput alone.\n"
        "- Sia learns speeds as it goes; here they are known, as the mean over all epochs. Its "
        "restarts take 25 to 250 s by application, here 50 s for all, and its T4 nodes have four "
        "GPUs, here eight.\n"
        "- Shockwave's jobs have the lengths that its own simulator gives them, batches that grow "
        "on the way included; the scheduler knows them, and sees one mean rate for each job.\n"
        "- Where hadar is behind: the end of the last job on 103959, by 0.1 %, against Gavel's "
        "minimum makespan; and, with free sizes, over the ten saturn workloads, 15.7 h against "
        "Sia's published 14.9 ± 1.7.\n"
        "- Blind, hadar goes by jobs of the same model. In the virtual clusters models were drawn "
        "at random, so that they tell nothing: that costs 0 to 18 % on four of them, and 50 % on "
        "e13805, where one job alone takes as long as all (21 % by all jobs alike).",
    )


def _write_sia(found: dict[str, Played], text: Text) -> None:
    text.say(
        "## Sia",
        "160 jobs that arrive over eight hours on 24 T4, 16 A100 and 24 RTX 2080 Ti; slots of 60 "
        "s. *As asked*: each job with the replicas and the batch it asks for. *Free*: any number "
        "of GPUs, and the batch that is best with it.",
    )
    rows: list[tuple[object, ...]] = []
    for group, count in SIA.items():
        for number in range(1, count + 1):
            name = f"{group} {number}"
            both = found[f"{name}, as asked"], found[f"{name}, free"]
            theirs = SIA_PHILLY_1 if name == "philly 1" else ""
            rows.append((name, *both, _tuned(name), theirs))
        means = [
            _mean([found[f"{group} {n}, {how}"] for n in range(1, count + 1)])
            for how in ("as asked", "free")
        ]
        rows.append((f"**{group}, mean**", *means, "", PUBLISHED[group]))
    text.table(("workload", "hadar, as asked", "hadar, free", "tuned on", "theirs"), rows)


def _write_shockwave(found: dict[str, Played], text: Text) -> None:
    text.say(
        "## Shockwave",
        "ρ is the worst finish-time ratio: JCT over the exclusive time times the jobs to a GPU; in "
        "brackets the share of jobs beyond 1.",
    )
    rows = [
        (jobs, f"{one}, ρ {one.rho:.2f} ({100 * one.beyond:.1f} %)", _tuned(name), theirs)
        for jobs, theirs in SHOCKWAVE.items()
        for name in (f"shockwave {jobs}",)
        for one in (found[name],)
    ]
    text.table(("jobs", "hadar", "tuned on", "theirs"), rows)


def _write_gavel(found: dict[str, Played], text: Text) -> None:
    text.say(
        "## Gavel",
        "20 V100, 20 P100, 20 K80 in nodes of four; slots of 360 s. Batches of 480 jobs drawn from "
        "a seed, and virtual clusters of the Philly trace with all their jobs there at once. "
        "Gavel: max-min fairness · minimum makespan, both as policies of this repository and "
        "charged for spreading.",
    )
    rows = [
        (name, found[name], f"{found[name].bound:.3f}", _tuned(name), theirs)
        for name, theirs in GAVEL.items()
    ]
    text.table(("workload", "hadar", "TTD × bound", "tuned on", "Gavel"), rows)
    text.say(
        "Lengths that are told wrongly, or not at all, and what that costs in TTD, on seeds that "
        "were not looked at before:"
    )
    rows = []
    for seed in HELD_OUT_SEEDS:
        exact = found[f"batch {seed}"]
        for told in WRONG:
            one = found[f"batch {seed}{told}"]
            rows.append(
                (f"batch {seed}{told}", one, f"{100 * (one.ttd_h / exact.ttd_h - 1):+.1f} %")
            )
    text.table(("workload", "hadar", "longer by"), rows)


def _tuned(name: str) -> str:
    return "yes" if name in TUNED_ON else "no"


def _mean(played: Sequence[Played]) -> str:
    ttd_h, jct_h = (fmean(getattr(p, name) for p in played) for name in ("ttd_h", "jct_h"))
    return f"**{ttd_h:.1f} / {jct_h:.2f}**"
