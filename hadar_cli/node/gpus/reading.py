"""The GPUs of this machine, as its own tools tell of them: NVIDIA's (MIG included), AMD's, Apple's.

A GPU is named as ``CUDA_VISIBLE_DEVICES`` would name it: by its index and, where it has one, by its
UUID. What others hold of its memory is None where nobody can tell.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.node.gpus.amd import by_amd_smi, by_rocm_smi
from hadar_cli.node.gpus.asking import Facts, ask, last_words, number, others_on

_COLUMNS = "index,uuid,name,memory.total,memory.used,pcie.link.gen.max,pci.bus_id"
_APP_CELLS = 3
_UUID = re.compile(r"(GPU|MIG)-\S+")  # anything else, as ``[N/A]`` on a Jetson, is no name
_PCI = Path("/sys/bus/pci/devices")
_DISPLAY = "0x03"  # by class: what computes without a display is of it, too
# GT/s, as the kernel tells it, to PCIe generation.
_GENERATION = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_CARD_LINE = re.compile(r"GPU (\d+):")
_INSTANCE_LINE = re.compile(
    r"\s+MIG (?P<profile>\S+)\s+Device\s+(?P<number>\d+):\s+\(UUID: (?P<uuid>MIG-[^)]+)\)"
)
_INSTANCE_GB = re.compile(r"\.(\d+)gb")
_DRIVERS = {  # where it is loaded, and no tool lists a card: nobody is to take that for no GPU
    "/proc/driver/nvidia/version": "NVIDIA's driver is loaded there, and no nvidia-smi lists a GPU",
    "/etc/nv_tegra_release": "it is a Jetson, whose system has no nvidia-smi yet",
    "/dev/dxg": "WSL shows it a GPU of Windows, and no nvidia-smi lists it",
    "/dev/kfd": "AMD's driver is loaded there, and neither rocm-smi nor amd-smi lists a GPU",
}


@dataclass(frozen=True)
class _Tool:
    """``places``: where it is as well, whatever PATH a server gives to those who come in."""

    name: str
    maker: str  # by the PCI bus's number
    places: tuple[str, ...]
    read: Callable[[str, set[int]], list[Facts]]

    def find(self) -> str | None:
        places = (place for place in self.places if Path(place).exists())
        return shutil.which(self.name) or next(places, None)


def read_gpus(ours: Collection[int]) -> Facts:
    """All GPUs, or why nothing is known of them. ``ours`` are processes that count as nobody's."""
    problem, maker = None, ""
    for tool in _tools():
        if not (found := tool.find()):
            continue
        if tool.maker != maker and _has_card(maker):
            break  # the number of one maker's card would be taken for another's
        maker = maker or tool.maker
        try:
            if gpus := tool.read(found, set(ours)):
                return {"gpus": gpus, "gpu_problem": None}
        except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            problem = problem or f"{tool.name}: {last_words(error)}"
    gpus = [] if problem else list(_apple())
    if not gpus and not problem:
        problem = next((words for path, words in _DRIVERS.items() if Path(path).exists()), None)
    return {"gpus": gpus, "gpu_problem": problem}


def _tools() -> Iterator[_Tool]:
    nvidia = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
    yield _Tool("nvidia-smi", "0x10de", nvidia, _nvidia)
    yield _Tool("rocm-smi", "0x1002", ("/usr/bin/rocm-smi", "/opt/rocm/bin/rocm-smi"), by_rocm_smi)
    yield _Tool("amd-smi", "0x1002", ("/usr/bin/amd-smi", "/opt/rocm/bin/amd-smi"), by_amd_smi)


def _has_card(maker: str) -> bool:
    """Whether the PCI bus has a display or compute card of that maker."""
    for device in _PCI.glob("*"):
        with suppress(OSError):
            kind = (device / "class").read_text()
            if kind.startswith(_DISPLAY) and (device / "vendor").read_text().strip() == maker:
                return True
    return False


# -- NVIDIA --------------------------------------------------------------------------------------


def _nvidia(tool: str, ours: set[int]) -> list[Facts]:
    rows = [row for row in _table(tool, f"--query-gpu={_COLUMNS}") if _is_card(row)]
    apps = _table(tool, "--query-compute-apps=gpu_uuid,pid,used_memory")
    parts = _parts(tool)
    uses = _uses_of_parts(tool) if parts else {}
    found: list[Facts] = []
    for row in rows:
        card, divided = _card(row, apps, ours), parts.get(int(row[0]), ())
        found += [_instance(card, part, row[1], uses, apps, ours) for part in divided] or [card]
    return found


def _is_card(row: list[str]) -> bool:
    """A card that fell off the bus has a row of complaints, ``[GPU is lost]``."""
    return len(row) == _COLUMNS.count(",") + 1 and row[0].isdigit() and not row[2].startswith("[")


def _table(tool: str, what: str) -> list[list[str]]:
    lines = ask(tool, what, "--format=csv,noheader,nounits").splitlines()
    return [[cell.strip() for cell in row] for row in csv.reader(lines) if row]


def _held(apps: list[list[str]], uuid: str) -> dict[int, float | None]:
    """Megabytes by process; a driver that does not tell says so in place of a row, or of cells."""
    mine = (row for row in apps if len(row) == _APP_CELLS and row[0] == uuid)
    return {int(pid) if pid.isdigit() else 0: number(size) for _, pid, size in mine}


def _card(row: list[str], apps: list[list[str]], ours: set[int]) -> Facts:
    index, uuid, name, total, used, generation, bus = row
    return {
        "index": int(index),
        "uuid": uuid if _UUID.fullmatch(uuid) else None,
        "model": name.removeprefix("NVIDIA ").removeprefix("GeForce "),
        "memory_mb": number(total) or 0.0,
        "pcie": int(number(generation) or 0) or _generation(bus, _PCI),
        **others_on(number(used), _held(apps, uuid), ours),
    }


@dataclass(frozen=True)
class _Part:
    """A MIG instance, by ``nvidia-smi -L``; ``number`` is its place among those of its card."""

    profile: str
    uuid: str
    number: int


@dataclass(frozen=True)
class _PartUse:
    """Of its memory in MB, and what processes hold of it."""

    used_mb: float | None
    held_mb: dict[int, float | None]


def _parts(tool: str) -> dict[int, list[_Part]]:
    """The MIG instances of each card, by its index; most machines have none."""
    found: dict[int, list[_Part]] = {}
    try:
        lines = ask(tool, "-L").splitlines()
    except (OSError, subprocess.SubprocessError):
        return found
    card = -1
    for line in lines:
        if head := _CARD_LINE.match(line):
            card = int(head[1])
        elif part := _INSTANCE_LINE.match(line):
            one = _Part(part["profile"], part["uuid"], int(part["number"]))
            found.setdefault(card, []).append(one)
    return found


def _uses_of_parts(tool: str) -> dict[tuple[str, int], _PartUse]:
    """By the card's UUID and the instance's number. Lists of processes name the card alone, so who
    is on which instance stands only in the whole report."""
    found: dict[tuple[str, int], _PartUse] = {}
    with suppress(OSError, subprocess.SubprocessError, ElementTree.ParseError):
        report = ElementTree.fromstring(ask(tool, "-q", "-x"))  # noqa: S314 - the driver's own
        for card in report.iter("gpu"):
            for part in card.iter("mig_device"):
                home = _place(part)
                held = {
                    int(process.findtext("pid", "0")): _megabytes(process.findtext("used_memory"))
                    for process in card.iter("process_info")
                    if _place(process) == home and process.findtext("pid", "").isdigit()
                }
                used = _megabytes(part.findtext("fb_memory_usage/used"))
                key = (card.findtext("uuid", "").strip(), int(part.findtext("index", "-1")))
                found[key] = _PartUse(used, held)
    return found


def _place(told: ElementTree.Element) -> tuple[str, str]:
    return told.findtext("gpu_instance_id", "?"), told.findtext("compute_instance_id", "?")


def _megabytes(text: str | None) -> float | None:
    return number((text or "").removesuffix("MiB").strip())


def _instance(
    card: Facts,
    part: _Part,
    whole: str,
    uses: dict[tuple[str, int], _PartUse],
    apps: list[list[str]],
    ours: set[int],
) -> Facts:
    """A part of a card, with memory of its own: ``3g.20gb`` has 20 GB."""
    size = _INSTANCE_GB.search(part.profile)
    memory_mb = 1024.0 * int(size[1]) if size else 0.0
    held = _held(apps, part.uuid)
    used: float | None = sum((size or 0.0 for size in held.values()), 0.0)
    use = uses.get((whole, part.number), _PartUse(None, {}))
    if use.used_mb is not None:
        used, held = use.used_mb, use.held_mb or held
    elif not held and _held(apps, whole):
        used = None  # somebody is on the card, and nobody says on which part
    model = f"{card['model']} MIG {part.profile}"
    rest = others_on(used, held, ours)
    return {**card, "uuid": part.uuid, "model": model, "memory_mb": memory_mb, **rest}


def _generation(bus: str, devices: Path) -> int | None:
    """What the card and the port it sits in can both do, from sysfs. ``bus`` is nvidia-smi's."""
    domain, _, rest = bus.lower().partition(":")
    card = Path(os.path.realpath(devices / f"{domain[-4:]}:{rest}"))
    speeds = [_GENERATION.get(_speed(place)) for place in (card, card.parent)]
    return min((speed for speed in speeds if speed), default=None)


def _speed(device: Path) -> str:
    try:
        return (device / "max_link_speed").read_text().split()[0]
    except (OSError, IndexError):
        return ""


# -- Apple ---------------------------------------------------------------------------------------


def _apple() -> Iterator[Facts]:
    """The GPU of an Apple chip shares the machine's memory; nobody tells who uses it."""
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        chip = ask("sysctl", "-n", "machdep.cpu.brand_string").strip()
        memory_mb = int(ask("sysctl", "-n", "hw.memsize")) / (1 << 20)
        shared = {"others": [], "others_mb": 0.0, "sees_processes": False}
        base = {"index": 0, "uuid": None, "model": chip, "memory_mb": memory_mb, "pcie": None}
        yield {**base, **shared}
