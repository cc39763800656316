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


def read_and_add(paths: list[Path], kind: type[np.floating] | None) -> None:
    """Read every byte once and add it to a sum, by the same blocks as the merge."""
    files = [Checkpoint(path) for path in paths]
    for tensor in files[0].tensors.values():
        for start in range(0, tensor.size, BLOCK):
            stop = min(start + BLOCK, tensor.size)
            total = np.zeros(
                stop - start, kind or widen(np.zeros(0, DTYPES[tensor.dtype]), tensor.dtype).dtype
            )
            for file in files:
                total += widen(file.read(tensor.name, start, stop), tensor.dtype)


def best(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--dtype", choices=("F16", "BF16", "F32", "F64"), default="F32")
    parser.add_argument("--base", action="store_true", help="with a base: norms, rule progress")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [make(folder / f"copy{i}", args.mb, args.dtype, i) for i in range(args.copies)]
        base = make(folder / "base", args.mb, args.dtype, args.copies) if args.base else None
        rules = MergeRules(rule="progress" if base else "mean")
        copies = [Contribution(i, path, 10 * (i + 1), 32) for i, path in enumerate(paths)]
        inputs = [*paths, base] if base else paths

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        out = folder / "out"
        merging = best(
            lambda: (out.unlink(missing_ok=True), merge(copies, base, out, rules)), args.repeats
        )
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wide = best(lambda: read_and_add(inputs, np.float64), args.repeats)
        stored = best(lambda: read_and_add(inputs, None), args.repeats)

    print(f"{args.copies} x {args.mb} MB of {args.dtype}{', with a base' if base else ''}")
    print(f"merge                     {merging:6.3f} s")
    print(f"read + float64 adds       {wide:6.3f} s   merge is {merging / wide:.2f} x")
    print(f"read + adds as stored     {stored:6.3f} s   merge is {merging / stored:.2f} x")
    print(
        f"peak memory               {after / 1024:6.0f} MiB, {(after - before) / 1024:.0f} of it the merge"
    )


if __name__ == "__main__":
    main()
