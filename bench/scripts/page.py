"""docs/scripts.md, from what was measured."""

from __future__ import annotations

import re
import statistics
from typing import Any

Results = dict[str, dict[str, dict[str, dict[str, Any]]]]  # by script, column and seed
ROUNDING = 1e-5  # of the value: what single precision may leave
TRAINER = """\
An earlier version of this page had 1.857 for `trainer`, seed 1, over SSH. That was no price of
merging: the same model in plain loops, merged by plain arithmetic in eight patterns from "once, at
the end" to "every few steps", ends at most 4 % from one loop alone, and 26 more runs of this seed
over SSH ended between 1.19 and 1.24. What it was is not known.
`tests/integration/test_forked_trainer.py` holds that two copies of a Trainer with merges in between
have the weights of plain loops."""
NOTEWORTHY = 0.05  # of the value: a merge that ends so far from by hand is told
TITLES = (
    "script",
    "style",
    "changed lines",
    "`hadar try`",
    "by hand",
    "one device",
    "differs by",
    "SSH",
    "merges",
    "bytes per merge",
)


def changed_lines(text: str) -> int:
    return len(re.findall(r"# hadar(?::.*)?$", text, re.M))


def page(texts: dict[str, str], results: Results) -> str:
    lines = [
        "# Scripts as people bring them",
        "",
        "Written by `python -m bench.scripts`. Each script of `bench/scripts/styles` is trained",
        "by hand, without hadar; under hadar on one device of this computer; and over SSH, in a",
        "run of its own, on the two nodes of `scripts/lab up --nodes 2`. There the devices are",
        "paced to a few hundredths of a core, rounds last 10 s, and `merge: {solo: 0, every_s: 4}`",
        "makes copies early and merges them often: jobs this short would by default be trained by",
        "one device from start to end. What merging costs at the defaults is in",
        "[quality.md](quality.md).",
        "",
        "Quality on held-out data: the mean over the seeds, and in brackets how many there were.",
        "*`hadar try`*: how many checks passed (✓), warned (·) or failed (✗), with the first seed.",
        "*Differs by*: how far a seed on one device is from by hand, at the most. *Merges*: of",
        "several copies, in all seeds together. *Bytes per merge*: what the copies handed in for",
        "one of these, on the mean.",
        "",
        f"| {' | '.join(TITLES)} |",
        "|" + " --- |" * len(TITLES),
    ]
    lines += [_row(name, text, results.get(name, {})) for name, text in texts.items()]
    remarks = [line for name in texts for line in _remarks(name, results.get(name, {}))]
    lines += ["", "## What does not come out", ""]
    lines += remarks or ["Every row does."]
    lines += ["", TRAINER] if "trainer" in texts else []
    return "\n".join(lines) + "\n"


def _row(name: str, text: str, columns: dict[str, dict[str, dict[str, Any]]]) -> str:
    told = text.splitlines()[0].strip('"').rstrip(".")
    apart = _apart(columns)
    ssh = columns.get("ssh", {}).values()
    merges = sum(seed["merges"] for seed in ssh)
    cells = [
        name,
        told,
        str(changed_lines(text)),
        _tried(columns.get("try", {})),
        _mean(columns.get("hand", {})),
        _mean(columns.get("one", {})),
        f"{apart:.1g}" if apart is not None else "not run",
        _mean(columns.get("ssh", {})),
        str(merges) if ssh else "not run",
        f"{sum(seed['bytes'] for seed in ssh) / merges:,.0f}" if merges else "–",
    ]
    return f"| {' | '.join(cells)} |"


def _tried(seeds: dict[str, dict[str, Any]]) -> str:
    """How many things it looked at, and how many of them it warned of or found wrong."""
    if not seeds:
        return "not run"
    (found,) = (seeds[seed] for seed in sorted(seeds)[:1])
    told = f"✓ {found['passed']}"
    told += f", · {len(found['warned'])}" if found["warned"] else ""
    return told + (f", ✗ {len(found['failed'])}" if found["failed"] else "")


def _mean(seeds: dict[str, dict[str, Any]]) -> str:
    values = [seed["value"] for seed in seeds.values() if seed["value"] is not None]
    return f"{statistics.fmean(values):.4g} ({len(values)})" if values else "not run"


def _apart(columns: dict[str, dict[str, dict[str, Any]]]) -> float | None:
    hand, one = columns.get("hand", {}), columns.get("one", {})
    pairs = [(hand[seed]["value"], one[seed]["value"]) for seed in hand if seed in one]
    return max((abs(a - b) for a, b in pairs if b is not None), default=None)


def _remarks(name: str, columns: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """A sentence for whatever is not as it should be."""
    found = []
    for seed in columns.get("try", {}).values():
        found += [f"- `hadar try` warns of `{name}`: {what}." for what in seed["warned"]]
        found += [f"- `hadar try` refuses `{name}`: {what}." for what in seed["failed"]]
    columns = {column: seeds for column, seeds in columns.items() if column != "try"}
    apart = _apart(columns)
    size = max((abs(seed["value"]) for seed in columns.get("hand", {}).values()), default=0.0)
    if apart is not None and apart > ROUNDING * size:
        found.append(f"- `{name}` on one device is not as by hand: {apart:.2g} apart.")
    for column, seeds in columns.items():
        failed = [
            f"{seed} ({told['failed']})" for seed, told in seeds.items() if told.get("failed")
        ]
        if failed:
            found.append(f"- `{name}` failed in the column `{column}`, seed {', '.join(failed)}.")
    ssh = columns.get("ssh", {}).values()
    if ssh and not any(seed["merges"] for seed in ssh):
        found.append(
            f"- `{name}` over SSH was trained by one copy: its figure says nothing of merges."
        )
    hand, merged = columns.get("hand", {}), columns.get("ssh", {})
    both = [seed for seed in hand if merged.get(seed, {}).get("value") is not None]
    if both:
        by_hand = statistics.fmean(hand[seed]["value"] for seed in both)
        over_ssh = statistics.fmean(merged[seed]["value"] for seed in both)
        if abs(over_ssh - by_hand) > NOTEWORTHY * abs(by_hand):
            found.append(
                f"- `{name}` over SSH ends at {over_ssh:.3g}, by hand with the same seeds at"
                f" {by_hand:.3g}: its copies were merged from the first steps on, without the solo"
                " phase of the defaults."
            )
    return found
