"""Merging copies against the least it could cost: reading their bytes and one pass of adds.

    python -m bench.merge --copies 5 --mb 400 [--base] [--dtype F32]

The pass of adds is in float64, as the merge has to be; adds in the stored type are printed beside
it. The merge also weighs, checks, rounds, hashes and writes, and with --base measures updates.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hadar_cli.adapters.safetensors_file import DTYPES, Array, Checkpoint, Tensor, narrow, widen
from hadar_cli.adapters.safetensors_file import write as write_file
from hadar_cli.adapters.tensors import BLOCK, Contribution, merge
from hadar_cli.core.model import MergeRules

TENSORS = 20


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


def best(action: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Least wall time and least processor time, each in seconds."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="merging against reading and adding")
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--dtype", choices=("F16", "BF16", "F32", "F64"), default="F32")
    parser.add_argument("--base", action="store_true", help="with a base: norms, rule progress")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [make(folder / f"copy{i}", args.mb, args.dtype, i) for i in range(args.copies)]
        base = make(folder / "base", args.mb, args.dtype, args.copies) if args.base else None
        rules = MergeRules(rule="progress" if base else "mean")
        copies = [Contribution(i, path, 10 * (i + 1), 32) for i, path in enumerate(paths)]
        inputs = [*paths, base] if base else paths

        def merge_anew() -> None:
            (folder / "out").unlink(missing_ok=True)
            merge(copies, base, folder / "out", rules)

        before = peak_mib()
        merging = best(merge_anew, args.repeats)
        after = peak_mib()
        print(f"{args.copies} x {args.mb} MB of {args.dtype}{', with a base' if base else ''}")
        print(f"merge                  {merging[0]:6.3f} s, {merging[1]:.3f} s of processor")
        for label, wide in (("read + float64 adds  ", True), ("read + adds as stored", False)):
            least = best(lambda wide=wide: read_and_add(inputs, wide), args.repeats)  # type: ignore[misc]
            print(
                f"{label}  {least[0]:6.3f} s, {least[1]:.3f} s of processor: "
                f"merge takes {merging[0] / least[0]:.2f} x, {merging[1] / least[1]:.2f} x"
            )
        print(f"peak memory            {after:6.0f} MiB, {after - before:.0f} of them by merging")


if __name__ == "__main__":
    main()
