"""Asks machines which GPUs they have, where the inventory does not say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hadar_cli.core.availability import GpuUse
from hadar_cli.core.gpu_table import find_gpu
from hadar_cli.core.model import Gpu, Node
from hadar_cli.visits.inspection import Problem, problem_of, read_facts
from hadar_cli.visits.visit import DEADLINE_S, on_all, visiting

# Drivers keep a part of the memory to themselves: a T4 of 16 GB tells of 15. What differs by more
# is another edition of the card: an RTX 3080 with 12 GB in place of 10.
_RESERVED = 0.15
_GENERATIONS = range(1, 7)


@dataclass(frozen=True, slots=True)
class Discovery:
    """A node's GPUs, or why they are not known."""

    node: Node
    gpus: tuple[Gpu, ...] = ()
    problem: Problem | None = None


def discover(
    nodes: Sequence[Node], runs: Path, deadline_s: float = DEADLINE_S
) -> Iterator[Discovery]:
    """Visits the nodes at once, each within the deadline; found ones come as they answer."""

    def look(node: Node) -> Discovery:
        with visiting(node, runs, deadline_s) as visit:
            facts = read_facts(visit)
        if facts.gpu_problem:
            fix = "see why there, or list the GPUs: gpus = [...]"
            return Discovery(node, problem=Problem(facts.gpu_problem, fix))
        return identify(node, facts.gpus)

    for node, result in on_all(nodes, look, deadline_s):
        if isinstance(result, Exception):
            result = Discovery(node, problem=problem_of(result, "being asked for its GPUs"))
        yield result


def identify(node: Node, reported: Sequence[GpuUse]) -> Discovery:
    """The spec sheets of what the node reports; all or none, as devices go by their number."""
    reported = sorted(reported, key=lambda gpu: gpu.index)
    indices = [gpu.index for gpu in reported]
    divided = {index for index in indices if indices.count(index) > 1}
    known = [_specs(gpu, place, gpu.index in divided) for place, gpu in enumerate(reported)]
    strange = [gpu.model for gpu, specs in zip(reported, known, strict=True) if not specs]
    if not strange:
        return Discovery(node, tuple(specs for specs in known if specs))
    line = ", ".join(_as_toml(*pair) for pair in zip(reported, known, strict=True))
    what = f"{' and '.join(dict.fromkeys(strange))}: not in the table of known GPUs"
    fix = f"add its tensor TFLOPS to this line, and the line to its [[node]]: gpus = [{line}]"
    return Discovery(node, problem=Problem(what, fix))


def _specs(gpu: GpuUse, place: int, is_part: bool) -> Gpu | None:
    """From the table; which card it is, is noted where its place does not tell."""
    known = find_gpu(gpu.model)
    if not known:
        return None
    if is_part or (gpu.uuid or "").startswith("MIG-"):
        known = replace(known, uuid=gpu.uuid)
    elif gpu.index != place:
        known = replace(known, index=gpu.index)
    vram_gb = _vram_gb(gpu)
    if vram_gb and abs(vram_gb / known.vram_gb - 1) > _RESERVED:
        known = replace(known, vram_gb=vram_gb)
    return replace(known, pcie=gpu.pcie) if gpu.pcie and gpu.pcie in _GENERATIONS else known


def _vram_gb(gpu: GpuUse) -> float:
    """Whole gigabytes; none if what the node says is no number."""
    return float(round(gpu.memory_mb / 1024)) if math.isfinite(gpu.memory_mb) else 0.0


def _as_toml(gpu: GpuUse, known: Gpu | None) -> str:
    if known:
        return f"{{ model = {json.dumps(known.model)} }}"
    vram = f"{_vram_gb(gpu):g}" if _vram_gb(gpu) else "?"  # of memory that the machine shares
    fields = f"model = {json.dumps(gpu.model)}, tflops = ?, vram_gb = {vram}"
    return f"{{ {fields}, pcie = {gpu.pcie} }}" if gpu.pcie else f"{{ {fields} }}"
