"""Fuzzers: whatever a file or a node says is taken, or refused with an error of hadar's own.

Inputs are broken in their structure, so that they get past the first parser (TOML, YAML, JSON) to
the checks that are ours; those that do not are counted apart. All is made by one seed.
"""

from __future__ import annotations

import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from tests.faults.sections import Findings, Size, section

QUICK, FULL = 60_000, 5_200_000  # inputs; some of them end at the first parser
CHUNK = 500
_HANG_S = 20.0
_SLOW_S = 5.0  # of processor time, for one input
_MEMORY_KB = 300_000  # that a chunk may add to the peak

UNREAD, REFUSED, TAKEN = "stopped by the first parser", "refused", "taken"
Examine: TypeAlias = Callable[[Any], str]


class HangError(BaseException):
    """No input may keep anyone waiting; not to be taken for an error of the input's."""


@dataclass(frozen=True, slots=True)
class Target:
    """``make`` an input; ``examine`` says what became of it, and raises if that cannot be."""

    name: str
    share: int  # of the inputs, in thousandths
    make: Callable[[Random], Any]
    examine: Examine


@dataclass(slots=True)
class Tally:
    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def targets(folder: Path) -> dict[str, Target]:
    """All targets, with a folder of their own to put files in."""
    from tests.faults import fuzz_files, fuzz_nodes, fuzz_traces, fuzz_wire

    modules = (fuzz_files, fuzz_traces, fuzz_nodes, fuzz_wire)
    return {target.name: target for module in modules for target in module.targets(folder)}


def _folder() -> tempfile.TemporaryDirectory[str]:
    """In memory where that can be: disks are slow."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(
        prefix="hadar-fuzz-", dir=memory if memory.is_dir() else None
    )


def run_chunk(chunk: tuple[str, int, int]) -> Tally:
    """``count`` inputs for one target, made by one seed."""
    name, seed, count = chunk
    with _folder() as folder:
        target = targets(Path(folder))[name]
        dice = Random(f"{name} {seed}")
        tally = Tally(name)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            made = target.make(dice)
            wrong = try_input(target, made, tally.outcomes)
            if wrong:
                shown = repr(made)
                where = f"{name}, seed {seed}, input {number}"
                tally.violations.append(f"{where}: {wrong}\n    {shown[:600]}")
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        if grown_kb > _MEMORY_KB:
            tally.violations.append(f"{name}, seed {seed}: took {grown_kb / 1000:.0f} MB")
    return tally


def try_input(target: Target, made: Any, outcomes: Counter[str]) -> str | None:
    """What is wrong with how the input was dealt with."""
    began = time.process_time()
    try:
        with _alarm():
            outcomes[target.examine(made)] += 1
    except HangError:
        return f"hangs: {_last_place(sys.exc_info()[1])}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]} ({_last_place(error)})"
    used_s = time.process_time() - began
    return f"took {used_s:.1f} s of processor time" if used_s > _SLOW_S else None


def _last_place(error: BaseException | None) -> str:
    frames = traceback.extract_tb(error.__traceback__) if error else []
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames]
    return " < ".join(reversed(ours[-4:]))


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, _HANG_S)  # of processor time: others use the machine too
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def chunks(inputs: int, first_seed: int) -> Iterator[tuple[str, int, int]]:
    with _folder() as folder:
        known = targets(Path(folder)).values()
    whole = sum(target.share for target in known)
    for target in known:
        left = inputs * target.share // whole
        seed = first_seed
        while left > 0:
            yield target.name, seed, min(CHUNK, left)
            left -= CHUNK
            seed += 1


def run_many(inputs: int, first_seed: int = 1, processes: int = 1) -> dict[str, Tally]:
    """Tallies by target."""
    tallies: dict[str, Tally] = {}
    work = list(chunks(inputs, first_seed))
    with get_context("fork").Pool(processes) as pool:
        for tally in pool.imap_unordered(run_chunk, work):
            total = tallies.setdefault(tally.target, Tally(tally.target))
            total.outcomes += tally.outcomes
            total.violations += tally.violations
    return tallies


@section("fuzz")
def run_fuzz(size: Size) -> Findings:
    tallies = run_many(FULL if size.is_full else QUICK, size.seed, size.processes)
    fired = Counter({t.target: t.outcomes[REFUSED] + t.outcomes[TAKEN] for t in tallies.values()})
    violations = [line for tally in tallies.values() for line in tally.violations]
    violations += [f"{name}: the first parser stopped all" for name in tallies if not fired[name]]
    return Findings(
        trials=fired.total(),
        fired=fired,
        checked=fired.total(),
        violations=violations,
        details={
            f"fuzz: {outcome}": {t.target: t.outcomes[outcome] for t in tallies.values()}
            for outcome in (TAKEN, REFUSED, UNREAD)
        },
    )


def main() -> None:
    """``python -m tests.faults.fuzz [INPUTS [FIRST_SEED [TARGET]]]``"""
    words = sys.argv[1:]
    inputs, seed = int(words[0]) if words else 5000, int(words[1]) if words[1:] else 1
    began = time.perf_counter()
    one = words[2] if words[2:] else None
    found = {one: run_chunk((one, seed, inputs))} if one else run_many(inputs, seed)
    for tally in found.values():
        print(tally.target, dict(tally.outcomes), f"{len(tally.violations)} violations")
    seen: set[str] = set()
    for tally in found.values():
        for line in tally.violations:
            place = line.partition("(")[2].partition(")")[0]
            if place not in seen:
                seen.add(place)
                print(line)
    print(f"{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
