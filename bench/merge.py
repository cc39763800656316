"""Merging copies against the least it could cost: reading their bytes and one pass of adds.

    python -m bench.merge --copies 5 --mb 400 [--base] [--dtype F32] [--folder /dev/shm]

The pass of adds is in float64, as the merge has to be, in one thread; adds in the stored type are
printed beside it. The merge also weighs, checks, rounds, hashes and writes, and with --base
measures updates: what hashing and writing alone take is shown, and so is what it takes to sync the
result to the disk, which the store does after the merge. All take turns, so that a busy machine
slows them alike; the least of each counts. The merge has two threads or more: where others leave
it less than two cores, look at the processor time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from bench.frame import Row, beside
from hadar_cli.core.model import MergeRules
from hadar_cli.weights.merge_arithmetic import BLOCK, CHUNK
from hadar_cli.weights.merging import Contribution, merge
from hadar_cli.weights.safetensors_file import DTYPES, Array, Checkpoint, Tensor, narrow, widen
from hadar_cli.weights.safetensors_file import write as write_file

TENSORS = 20
Times = tuple[float, float]


def make(path: Path, mb: int, dtype: str, seed: int) -> Path:
    size = mb * 1_000_000 // DTYPES[dtype].itemsize // TENSORS
    tensors = [Tensor(f"model/0/layer{i}.weight", dtype, (size,)) for i in range(TENSORS)]
    generator = np.random.default_rng(seed)

    def blocks() -> Iterator[Array]:
        for _ in tensors:
            for start in range(0, size, BLOCK):
                count = min(BLOCK, size - start)
                yield narrow(generator.standard_normal(count), dtype)

    with path.open("wb") as file:
        write_file(file, tensors, {}, blocks())
    sync(path)  # or the disk would still be busy with it while others are measured
    return path


def read_and_add(paths: list[Path], wide: bool) -> None:
    """Read every byte once and add it to a sum, by the same blocks as the merge."""
    files = [Checkpoint(path) for path in paths]
    for tensor in files[0].tensors.values():
        stored = np.empty(min(BLOCK, tensor.size), DTYPES[tensor.dtype])
        total = np.zeros(stored.size, np.float64 if wide else widen(stored, tensor.dtype).dtype)
        for start in range(0, tensor.size, BLOCK):
            size = min(BLOCK, tensor.size - start)
            for file in files:
                file.read_into(tensor.name, start, stored[:size])
                total[:size] += widen(stored[:size], tensor.dtype)


def hash_and_write(path: Path, out: Path) -> None:
    """What any merge does with its result, whatever that is."""
    digest, block = hashlib.sha256(), path.read_bytes()[: 4 * CHUNK]
    with out.open("wb") as file:
        for _ in range(0, path.stat().st_size, len(block)):
            digest.update(block)
            file.write(block)


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def least(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """Least wall time and least processor time of each, in seconds."""
    times: dict[str, list[Times]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            action()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: (min(wall for wall, _ in each), min(cpu for _, cpu in each))
        for name, each in times.items()
    }


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rows(quick: bool) -> Iterator[Row]:
    for mb in (100,) if quick else (100, 400):
        ours, theirs = take_turns(mb, 3 if quick else 5)
        yield beside(f"5 copies of {mb} MB", "s", ours, "read and add in float64", theirs)


def take_turns(mb: int, repeats: int) -> tuple[list[float], list[float]]:
    """Processor seconds of merging five such copies, and of reading and adding them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [make(folder / f"copy{i}", mb, "F32", i) for i in range(5)]
        copies = [Contribution(i, path, 10 * (i + 1), 32) for i, path in enumerate(paths)]

        def merge_anew() -> None:
            (folder / "out").unlink(missing_ok=True)
            merge(copies, None, folder / "out", MergeRules())

        merge_anew()
        actions = {"merge": merge_anew, "add": lambda: read_and_add(paths, wide=True)}
        turns = [least(actions, 1) for _ in range(repeats)]
        return [turn["merge"][1] for turn in turns], [turn["add"][1] for turn in turns]


def main() -> None:
    parser = argparse.ArgumentParser(description="merging against reading and adding")
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--dtype", choices=("F16", "BF16", "F32", "F64"), default="F32")
    parser.add_argument("--base", action="store_true", help="with a base: norms, rule progress")
    parser.add_argument("--folder", type=Path, help="where to put the files")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        paths = [make(folder / f"copy{i}", args.mb, args.dtype, i) for i in range(args.copies)]
        base = make(folder / "base", args.mb, args.dtype, args.copies) if args.base else None
        rules = MergeRules(rule="progress" if base else "mean")
        copies = [Contribution(i, path, 10 * (i + 1), 32) for i, path in enumerate(paths)]
        inputs = [*paths, base] if base else paths
        out, other = folder / "out", folder / "other"

        def merge_all() -> None:
            merge(copies, base, out, rules)

        before = peak_mib()
        merge_all()
        peak = peak_mib()
        print(f"{args.copies} x {args.mb} MB of {args.dtype}{', with a base' if base else ''}")
        print(f"peak memory: {peak:.0f} MiB, {peak - before:.0f} of them by merging")
        times = least(
            {
                "(remove the last one)": out.unlink,
                "merge": merge_all,
                "sync its result": lambda: sync(out),
                "read, add in float64": lambda: read_and_add(inputs, wide=True),
                "read, add as stored": lambda: read_and_add(inputs, wide=False),
                "(remove the other)": lambda: other.unlink(missing_ok=True),
                "hash, write": lambda: hash_and_write(out, other),
            },
            args.repeats,
        )
        wall, cpu = times["merge"]
        for label, (one_wall, one_cpu) in times.items():
            if label.startswith("("):
                continue
            ratios = f"merge takes {wall / one_wall:.2f} x, {cpu / one_cpu:.2f} x"
            print(f"{label:21} {one_wall:6.3f} s, {one_cpu:6.3f} s of processor: {ratios}")


if __name__ == "__main__":
    main()
