"""What halving finds in a sweep of 27 trials on the lab, beside training all of them to their end.

    python -m bench.sweep [--seeds 5] [--first 1] [--keep]

For each seed three real runs of ``examples/sweep.yaml`` over SSH: all trials to their end; halving
with the rungs that hadar chooses; halving again with the devices' speeds dealt anew. Seeds differ
in the model's first weights and in the order of the data. The rule, fixed before measuring: halving
has *found* the best trial if it names the same one as training all to the end, for that seed.
Beside it: by how much the named trial's held-out loss is above the best's, all of them trained to
the end, and the best trial's own spread from seed to seed. ``--keep`` stores the result.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import pstdev

import msgspec

from hadar_cli import api
from hadar_cli.core import events
from hadar_cli.core.model import Mix
from hadar_cli.runs.store import find_run, read_journal
from tests.support.lab import running

ROOT = Path(__file__).parents[1]
MIX = ROOT / "examples" / "sweep.yaml"
RESULT = ROOT / "bench" / "results" / "sweep.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run."""

    best: str
    steps: int
    losses: dict[str, float]
    promoted: tuple[tuple[str, int], ...]  # trial and rung


@dataclass(frozen=True, slots=True)
class Seed:
    seed: int
    rungs: tuple[int, ...]
    full: Outcome
    halved: Outcome
    dealt_anew: Outcome

    @property
    def is_found(self) -> bool:
        return self.halved.best == self.full.best

    @property
    def rank(self) -> int:
        """Of the named trial among all, trained to the end."""
        named = self.full.losses[self.halved.best]
        return 1 + sum(loss < named for loss in self.full.losses.values())

    @property
    def above(self) -> float:
        return self.full.losses[self.halved.best] / self.full.losses[self.full.best] - 1

    @property
    def share(self) -> float:
        return self.halved.steps / self.full.steps

    @property
    def is_same(self) -> bool:
        """Whether the machines' speeds changed nothing, to the last digit of every loss."""
        one, other = self.halved, self.dealt_anew
        return one.promoted == other.promoted and one.losses == other.losses


def train(mix: Mix, inventory: Path, runs: Path, name: str) -> Outcome:
    report = api.run(mix, api.nodes(inventory), name=name, runs_dir=runs).wait()
    store = find_run(runs, name)
    names = {job.id: job.name for job in store.facts.mix.jobs}
    passed = [e for e in read_journal(store.journal_path) if isinstance(e, events.MilestonePassed)]
    best = report.best["sweep"]
    assert best
    return Outcome(
        best=best,
        steps=sum(row["steps"] for row in report.trials),
        losses={row["name"]: row["value"] for row in report.trials},
        promoted=tuple(sorted((names[e.job], e.step) for e in passed)),
    )


def deal_anew(inventory: Path) -> Path:
    """The same machines, each with the speed of the next."""
    text = inventory.read_text()
    speeds = re.findall(r"speed = ([\d.]+)", text)
    turned = iter(speeds[1:] + speeds[:1])
    other = inventory.with_name("dealt-anew.toml")
    other.write_text(re.sub(r"speed = [\d.]+", lambda _: f"speed = {next(turned)}", text))
    return other


def seeds(numbers: range) -> Iterator[Seed]:
    halving = api.mix(MIX)
    promote = halving.jobs[0].promote
    assert promote
    full = replace(halving, jobs=tuple(replace(job, promote=None) for job in halving.jobs))
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "lab", 5) as lab:
        runs, anew = Path(folder) / "runs", deal_anew(lab.inventory)
        for seed in numbers:
            yield Seed(
                seed,
                promote.rungs,
                train(replace(full, seed=seed), lab.inventory, runs, f"full-{seed}"),
                train(replace(halving, seed=seed), lab.inventory, runs, f"halved-{seed}"),
                train(replace(halving, seed=seed), anew, runs, f"anew-{seed}"),
            )


def line(one: Seed) -> str:
    return (
        f"seed {one.seed}: best {one.full.best} ({one.full.losses[one.full.best]:.4f}), halving "
        f"names {one.halved.best}, number {one.rank}, {one.above:.1%} above; "
        f"{one.share:.1%} of the steps; with other speeds {'the same' if one.is_same else 'OTHERS'}"
    )


def verdict(found: list[Seed]) -> str:
    spreads = [pstdev(one.full.losses[other.full.best] for one in found) for other in found]
    return (
        f"found {sum(one.is_found for one in found)} of {len(found)}; rungs {found[0].rungs}; "
        f"at most {max(one.share for one in found):.1%} of the steps; loss at most "
        f"{max(one.above for one in found):.1%} above the best's, which differs from seed to seed "
        f"by {max(spreads) / min(found[0].full.losses.values()):.1%} (standard deviation)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sweep", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    found = []
    for one in seeds(range(asked.first, asked.first + asked.seeds)):
        found.append(one)
        print(line(one), flush=True)
    print(verdict(found))
    if asked.keep:
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    main()
