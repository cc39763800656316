"""Finds out whether nodes can train, each on its own and within its deadline."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hadar_cli.core.availability import GpuUse, Unavailable, why_unavailable
from hadar_cli.core.model import Node
from hadar_cli.errors import HadarError, RefusedError
from hadar_cli.nodes.wire import AgentError, read_as
from hadar_cli.transports import check_request
from hadar_cli.visits.links import Link, measure_links
from hadar_cli.visits.visit import DEADLINE_S, Leftovers, Visit, on_all, visiting

_PAYLOADS = (256 << 10, 1 << 20, 4 << 20, 4 << 20)
_SLOW_S = 0.25
_LINKS_S = 8.0  # for what is good to know before a run, and no more
_LEAST_FREE_BYTES = 2 * 10**9
_SKEW_S = 5.0
_IMPORTING = "importing torch"


@dataclass(frozen=True, slots=True)
class Disk:
    path: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What ``node.probe`` tells at once."""

    now: float
    minute_of_day: int
    hostname: str
    system: str
    python: str
    executable: str
    cores: int | None
    disk: Disk
    gpus: tuple[GpuUse, ...]
    gpu_problem: str | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A real computation on one GPU, and what went wrong with it."""

    index: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class _Kernels:
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a GPU held of what it had free, in bytes, and what went wrong with it."""

    index: int
    held: int
    free: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class Torch:
    torch: str | None
    safetensors: str | None
    accelerator: str | None  # CUDA, ROCm or MPS, with its version
    problem: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a node cannot be used, and what to do about it."""

    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """What `hadar check` found out about one node."""

    node: str
    host: str
    usable: bool
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    left_alone: dict[str, str]  # device: why nobody shall train on it now
    round_trip_s: float | None
    up_bytes_per_s: float | None
    down_bytes_per_s: float | None
    clock_skew_s: float | None
    facts: Facts | None
    torch: Torch | None
    kernels: tuple[Kernel, ...]
    leftovers: Leftovers | None
    links: tuple[Link, ...] = ()  # to the others of its network


@dataclass(slots=True)
class Inspection:
    """One node as far as it is known; filled in while its answers arrive."""

    node: Node
    stage: str = "connecting"
    round_trip_s: float | None = None
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    facts: Facts | None = None
    clock_skew_s: float | None = None
    leftovers: Leftovers | None = None
    torch: Torch | None = None
    kernels: tuple[Kernel, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)  # by device
    links: tuple[Link, ...] = ()
    refused: bool = False  # for security

    @property
    def is_done(self) -> bool:
        return self.stage == "done"

    @property
    def is_usable(self) -> bool:
        return self.is_done and not self.problems


def inspect(
    nodes: Sequence[Node], runs: Path, deadline_s: float = DEADLINE_S
) -> tuple[list[Inspection], Iterator[Inspection]]:
    """All nodes' inspections, still empty, and those that are complete, as they come to be."""
    all_of_them = {node.name: Inspection(node) for node in nodes}

    def complete() -> Iterator[Inspection]:
        def look(node: Node) -> None:
            _inspect(all_of_them[node.name], runs, deadline_s)

        for node, result in on_all(nodes, look, deadline_s):
            seen = all_of_them[node.name]
            if isinstance(result, Exception):
                _explain(seen, result)
            seen.stage = "done"
            yield seen
        able = [node for node in nodes if all_of_them[node.name].is_usable]
        for link in measure_links(able, runs, deadline_s):
            all_of_them[link.start].links += (link,)

    return list(all_of_them.values()), complete()


def find_objections(
    nodes: Sequence[Node],
    runs: Path,
    deadline_s: float = DEADLINE_S,
    links: dict[str, float] | None = None,
) -> dict[str, Unavailable]:
    """Devices that a run which starts now should leave to others, and why.

    Asks only nodes that have something to say: real GPUs, or hours. A node that cannot be
    reached is not judged here; the run will find out by itself. ``links``, if given, takes by node
    how many bytes a second come from it; other machines are asked for that, too, but not waited for
    as long.
    """

    def look(node: Node) -> dict[str, Unavailable]:
        with visiting(node, runs, deadline_s) as visit:
            objections = _objections(node, read_facts(visit)) if _has_a_say(node) else {}
            if links is not None and not node.is_local:
                links[node.name] = _bytes_per_s(visit.fetch_s)
            return objections

    asked = [node for node in nodes if not node.is_allotted and _has_a_say(node)]
    others = [n for n in nodes if links is not None and n not in asked and _has_a_link(n)]
    found: dict[str, Unavailable] = {}
    answers = on_all([*asked, *others], look, deadline_s if asked else _LINKS_S)
    for _, result in answers:
        if not isinstance(result, Exception):
            found |= result
    return found


def _has_a_say(node: Node) -> bool:
    return bool(node.hours or (node.gpus and not node.emulated_speed))


def _has_a_link(node: Node) -> bool:
    return not (node.is_local or node.is_allotted or node.emulated_speed)


def fill_memory(node: Node, cards: Sequence[int], runs: Path, patience_s: float) -> list[Memory]:
    """Has each of the node's cards hold most of its free memory for a moment."""
    with visiting(node, runs, patience_s) as visit:
        return [read_as(visit.ask("memory", index=card), Memory) for card in cards]


def _inspect(seen: Inspection, runs: Path, deadline_s: float) -> None:
    if seen.node.aws:  # it is not there yet
        seen.stage = "asking AWS"
        seen.notes.append(check_request(seen.node))
        return
    # Of Slurm at last: its login node is a machine to look at, whatever the queue says.
    told = "" if seen.node.slurm else check_request(seen.node)
    with visiting(seen.node, runs, deadline_s) as visit:
        seen.stage = "measuring"
        seen.round_trip_s = min(visit.echo_s() for _ in range(3))
        if not seen.node.is_local:
            seen.up_bytes_per_s = _bytes_per_s(visit.send_s)
            seen.down_bytes_per_s = _bytes_per_s(visit.fetch_s)
        seen.stage = "looking around"
        asked_at = time.time()
        seen.facts = read_facts(visit)
        seen.clock_skew_s = seen.facts.now - (asked_at + time.time()) / 2
        seen.leftovers = visit.leftovers()
        _judge(seen, seen.facts)
        seen.stage = _IMPORTING
        seen.torch = read_as(visit.ask("torch"), Torch)
        if seen.node.ray:
            seen.notes.append(f"it is Ray's {told}")
        elif seen.node.slurm:
            seen.stage = "asking for an allocation"
            told = check_request(seen.node)
            seen.notes.append(f"seen from its login node; it would start at {told}")
        elif seen.torch.accelerator:
            seen.stage = "computing on its GPUs"
            seen.kernels = read_as(visit.ask("kernels"), _Kernels).kernels
    seen.problems += [*_torch_problems(seen.node, seen.torch), *_gpu_problems(seen)]


def _bytes_per_s(move: Callable[[int], float]) -> float:
    """By the largest of a few transfers: buffers on the way swallow small ones, a fast link needs
    some to get going, a slow one is spared the rest."""
    by_size: dict[int, float] = {}
    for size in _PAYLOADS:
        seconds = move(size)
        by_size[size] = max(by_size.get(size, 0.0), size / seconds)
        if seconds > _SLOW_S:
            break
    return by_size[max(by_size)]


def read_facts(visit: Visit) -> Facts:
    """What the node tells of itself at once."""
    return read_as(visit.ask("facts"), Facts)


def _explain(seen: Inspection, error: Exception) -> None:
    """Turns whatever stopped the inspection into a problem with a fix."""
    seen.refused = isinstance(error, RefusedError)
    if isinstance(error, TimeoutError) and seen.stage == _IMPORTING:
        seen.notes.append(f"torch took more than {error} to import; rounds will start late")
        return
    seen.problems.append(problem_of(error, seen.stage))


def problem_of(error: Exception, stage: str) -> Problem:
    """Whatever stopped a visit, in words, with what to do about it."""
    if isinstance(error, TimeoutError):
        what = f"no answer within {error}; it was {stage}"
        return Problem(
            what, "see whether the machine hangs or is overloaded; --timeout gives it longer"
        )
    if isinstance(error, AgentError):
        return Problem(str(error), error.fix or "it was reached, and says so itself")
    if isinstance(error, HadarError):
        return Problem(str(error), error.fix or _fix_for(error.__cause__))
    what = f"{type(error).__name__} while {stage}: {error}"
    return Problem(what, "its answers make no sense; is its `python` setting right?")


def _fix_for(cause: BaseException | None) -> str:
    """What usually helps when a machine cannot be reached."""
    match cause:
        case socket.gaierror():
            return "check the spelling of host, or give it a Host entry in ~/.ssh/config"
        case ConnectionRefusedError():
            return "start its SSH server, or correct host and port"
        case TimeoutError():
            return "switch it on, or connect to its network; a gateway goes into proxy_jump"
    return "see whether `ssh` reaches it; the same settings work here"


# -- judging what was found ----------------------------------------------------------------------


def _judge(seen: Inspection, facts: Facts) -> None:
    if facts.disk.free_bytes < _LEAST_FREE_BYTES:
        free = facts.disk.free_bytes / 1e9
        what = f"only {free:.1f} GB are free at {facts.disk.path}"
        seen.problems.append(Problem(what, "make room there, or name another disk: workdir = ..."))
    if seen.clock_skew_s is not None and abs(seen.clock_skew_s) > _SKEW_S:
        ahead = "ahead" if seen.clock_skew_s > 0 else "behind"
        seen.notes.append(f"its clock is {abs(seen.clock_skew_s):.0f} s {ahead}; training is fine")
    if seen.leftovers and seen.leftovers.processes:
        seen.notes.append(f"processes of runs that live there: {seen.leftovers.processes}")
    if facts.gpu_problem and is_open(seen.node):
        seen.notes.append(f"it would train on its CPU: {facts.gpu_problem}")
    seen.left_alone = {d: one.why for d, one in _objections(seen.node, facts).items()}


def is_open(node: Node) -> bool:
    """Whether the inventory leaves the node's GPUs to be found. A stand-in needs none, and what is
    allotted has what was asked for."""
    return not node.gpus and not node.emulated_speed and not node.is_allotted


def _torch_problems(node: Node, torch: Torch) -> Iterator[Problem]:
    if torch.problem:
        python = node.python or "its python"
        missing = "safetensors" if torch.torch else "torch"
        yield Problem(
            f"{python} cannot import {missing}: {torch.problem}",
            "pip install torch safetensors there, or name a Python that has them: python = ...",
        )


def kernel_problem(kernel: Kernel) -> Problem | None:
    if not kernel.problem:
        return None
    return Problem(
        f"GPU {kernel.index} does not compute: {kernel.problem}",
        "install a torch build for its driver (nvidia-smi or rocm-smi shows it), or leave it out",
    )


def _gpu_problems(seen: Inspection) -> Iterator[Problem]:
    """Whether the GPUs of the inventory are there and compute; stand-ins need none."""
    yield from filter(None, map(kernel_problem, seen.kernels))
    node = seen.node
    wanted = 0 if node.emulated_speed or node.is_allotted else len(node.gpus)
    if len(seen.kernels) < wanted and seen.torch and not seen.torch.problem and seen.facts:
        listed = seen.facts.gpu_problem or f"the machine itself lists {len(seen.facts.gpus)}"
        yield Problem(
            f"torch {seen.torch.torch} sees {len(seen.kernels)} of {wanted} GPUs; {listed}",
            "install a torch build for its GPUs and their driver (CUDA or ROCm), "
            "or correct gpus = [...]",
        )


def _objections(node: Node, facts: Facts) -> dict[str, Unavailable]:
    found = {
        device.name: why_unavailable(
            node, device, facts.gpus, facts.minute_of_day, facts.gpu_problem
        )
        for device in node.devices
    }
    return {name: why for name, why in found.items() if why}
