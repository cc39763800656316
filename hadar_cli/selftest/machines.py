"""What visits find out about each machine: login, torch, kernels, memory, users, transfers."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from hadar_cli.assembly import connect
from hadar_cli.core.model import Device, Node
from hadar_cli.errors import HadarError
from hadar_cli.runs.store import RunStore
from hadar_cli.selftest.findings import Finding
from hadar_cli.visits.inspection import (
    Inspection,
    Memory,
    fill_memory,
    kernel_problem,
    problem_of,
)
from hadar_cli.visits.visit import on_all

_FILE_BYTES = 64 * 10**6
_TRANSFER_S = 90.0
_MEMORY_S = 60.0
_NO_CARD = "it is a CPU, or stands in for a card"


def judge(one: Inspection) -> Iterator[Finding]:
    """What an inspection tells by itself."""
    broken = {kernel.index: kernel_problem(kernel) for kernel in one.kernels}
    problems = [problem for problem in one.problems if problem not in broken.values()]
    for problem in problems:
        yield Finding(one.node.name, "machine", False, problem.what, problem.fix)
    if one.facts and not problems:
        torch = one.torch.torch if one.torch and one.torch.torch else "not known"
        if one.torch and one.torch.accelerator:
            torch += f" with {one.torch.accelerator}"
        free = one.facts.disk.free_bytes / 1e9
        what = f"Python {one.facts.python}, torch {torch}, {free:.0f} GB free on disk"
        yield Finding(one.node.name, "machine", True, what)
    for device in one.node.devices:
        yield from _judge_card(one, device, broken.keys())
    if one.problems:
        what = "not tried: the machine cannot be used as it is"
        yield Finding(one.node.name, "the rest", None, what)


def _judge_card(one: Inspection, device: Device, computed: Collection[int]) -> Iterator[Finding]:
    if not is_card(device) or not one.facts:
        return
    for kernel in one.kernels:
        if kernel.index == device.card:
            problem = kernel_problem(kernel)
            what = problem.what if problem else "a matrix product is the same as on the CPU"
            fix = problem.fix if problem else ""
            yield Finding(device.name, "kernels", not problem, what, fix)
    if device.card not in computed:
        yield Finding(device.name, "kernels", None, "not tried: torch does not see the card")
    if why := one.left_alone.get(device.name):
        yield Finding(device.name, "users", None, f"left alone: {why}")
        return
    used = [gpu.others_mb for gpu in one.facts.gpus if gpu.is_of(device)]
    if used and used[0] is not None:
        yield Finding(device.name, "users", True, f"others hold {used[0]:,.0f} MB; it may be used")
    else:
        yield Finding(device.name, "users", None, "who uses it cannot be told there")


def is_card(device: Device) -> bool:
    return bool(device.gpu and not device.emulated_speed)


def hold_memory(seen: Sequence[Inspection], runs: Path) -> Iterator[Finding]:
    """Whether every card that is free holds and gives back most of its memory."""
    here = [one for one in seen if not one.node.is_allotted]  # the others are not ours yet
    cards = {
        one.node.name: [d for d in one.node.devices if is_card(d) and d.name not in one.left_alone]
        for one in here
    }

    def fill(node: Node) -> list[Finding]:
        devices = cards[node.name]
        found = fill_memory(node, [device.card for device in devices], runs, _MEMORY_S)
        return [_held(device, one) for device, one in zip(devices, found, strict=True)]

    for one in seen:
        for device in one.node.devices:
            if not is_card(device):
                yield Finding(device.name, "memory", None, f"not tried: {_NO_CARD}")
            elif device.name in one.left_alone:
                yield Finding(device.name, "memory", None, "not tried: the card is left alone")
            elif one.node.is_allotted:
                yield Finding(device.name, "memory", None, "not tried: it is still to be allotted")
    nodes = [one.node for one in here if cards[one.node.name]]
    for node, result in on_all(nodes, fill, _MEMORY_S):
        yield from _told(node, "memory", result)


def _held(device: Device, memory: Memory) -> Finding:
    held = f"it held {memory.held / 1e9:.1f} of {memory.free / 1e9:.1f} GB free"
    if not memory.problem:
        return Finding(device.name, "memory", True, f"{held}, and gave it back")
    fix = "see what else uses the card, and whether its driver is well: nvidia-smi"
    return Finding(device.name, "memory", False, f"{held}: {memory.problem}", fix)


def send_files(nodes: Sequence[Node], store: RunStore) -> Iterator[Finding]:
    """Whether a large file gets to every node and back, as checkpoints do, and how fast."""
    for node in nodes:
        if node.is_local:
            yield Finding(node.name, "files", None, "not tried: nothing travels on this computer")
    far = [node for node in nodes if not node.is_local]
    if not far:
        return
    content = os.urandom(_FILE_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    scratch = store.scratch_path("selftest")
    scratch.write_bytes(content)
    store.keep(scratch, digest)

    def send(node: Node) -> list[Finding]:
        [connection] = connect([node], store)
        with closing(connection):
            times = [time.perf_counter()]
            path = connection.push(digest, "selftest", tuple)
            times.append(time.perf_counter())
            returned = connection.pull(path, _FILE_BYTES)
            times.append(time.perf_counter())
        up, down = (_FILE_BYTES / 1e6 / (b - a) for a, b in pairwise(times))
        what = f"64 MB there at {up:.0f} MB/s and back at {down:.0f} MB/s"
        if returned == digest:
            return [Finding(node.name, "files", True, f"{what}, each byte the same")]
        fix = "its disk or its memory changes data: have both checked"
        return [Finding(node.name, "files", False, f"{what}, but not the same bytes", fix)]

    for node, result in on_all(far, send, _TRANSFER_S):
        yield from _told(node, "files", result)


def _told(node: Node, check: str, result: list[Finding] | Exception) -> list[Finding]:
    if not isinstance(result, Exception):
        return result
    if isinstance(result, TimeoutError):
        what, fix = f"not done within {result}", "see how fast scp is to that machine"
    elif isinstance(result, HadarError):
        what, fix = str(result), result.fix or "see whether `ssh` reaches it"
    else:
        problem = problem_of(result, "being tried")
        what, fix = problem.what, problem.fix
    return [Finding(node.name, check, False, what, fix)]
