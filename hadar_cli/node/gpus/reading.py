"""The GPUs of this machine, as its own tools tell of them: NVIDIA's (MIG included), AMD's, Apple's.

A GPU is named as ``CUDA_VISIBLE_DEVICES`` would name it: by its index and, where it has one, by its
UUID. What others hold of its memory is None where nobody can tell.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import pwd
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
_TOOL_S = 10.0
_COLUMNS = "index,uuid,name,memory.total,memory.used,pcie.link.gen.max,pci.bus_id"
_APP_CELLS = 3
_PCI = Path("/sys/bus/pci/devices")
# GT/s, as the kernel tells it, to PCIe generation.
_GENERATION = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_CARD_LINE = re.compile(r"GPU (\d+):")
_INSTANCE_LINE = re.compile(r"\s+MIG (?P<profile>\S+)\s.*\(UUID: (?P<uuid>MIG-[^)]+)\)")
_INSTANCE_GB = re.compile(r"\.(\d+)gb")


def read_gpus(ours: Collection[int]) -> Facts:
    """All GPUs, or why nothing is known of them. ``ours`` are processes that count as nobody's."""
    readers = (("nvidia-smi", _nvidia), ("rocm-smi", _amd))
    for name, read in readers:
        tool = shutil.which(name) or f"/usr/bin/{name}"
        if Path(tool).exists():
            try:
                return {"gpus": read(tool, set(ours)), "gpu_problem": None}
            except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
                return {"gpus": [], "gpu_problem": f"{name}: {_last_words(error)}"}
    return {"gpus": list(_apple()), "gpu_problem": None}


def _last_words(error: Exception) -> str:
    said = getattr(error, "stdout", None) or b""
    text = said.decode(errors="replace").strip() or f"{type(error).__name__}: {error}"
    return str(text)[:300]


def _ask(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, check=True, timeout=_TOOL_S)
    return done.stdout.decode(errors="replace")


def _number(text: object) -> float | None:
    """A cell of a tool's, which says ``[N/A]`` where it does not know."""
    try:
        return float(str(text))
    except ValueError:
        return None


def _owner(pid: int) -> str:
    try:
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    except (OSError, KeyError):
        return "someone"


def _others(used_mb: float | None, held_mb: dict[int, float | None], ours: set[int]) -> Facts:
    """Who else is on a GPU, and with how much of its memory: what is used, less what is ours."""
    mine = [held_mb[pid] for pid in held_mb.keys() & ours]
    known = used_mb is not None and None not in mine
    return {
        "others": sorted({_owner(pid) for pid in held_mb.keys() - ours}),
        "sees_processes": any(Path(f"/proc/{pid}").exists() for pid in held_mb.keys() - {0}),
        "others_mb": max(0.0, (used_mb or 0.0) - sum(m or 0.0 for m in mine)) if known else None,
    }


# -- NVIDIA --------------------------------------------------------------------------------------


def _nvidia(tool: str, ours: set[int]) -> list[Facts]:
    rows = _table(tool, f"--query-gpu={_COLUMNS}")
    apps = _table(tool, "--query-compute-apps=gpu_uuid,pid,used_memory")
    instances = _instances(tool)
    found: list[Facts] = []
    for row in rows:
        card = _card(row, apps, ours)
        parts = instances.get(card["index"], ())
        found += [_instance(card, *part, apps, ours) for part in parts] if parts else [card]
    return found


def _table(tool: str, what: str) -> list[list[str]]:
    lines = _ask(tool, what, "--format=csv,noheader,nounits").splitlines()
    return [[cell.strip() for cell in row] for row in csv.reader(lines) if row]


def _held(apps: list[list[str]], uuid: str) -> dict[int, float | None]:
    """Megabytes by process; a driver that does not tell says so in place of a row, or of cells."""
    mine = (row for row in apps if len(row) == _APP_CELLS and row[0] == uuid)
    return {int(pid) if pid.isdigit() else 0: _number(size) for _, pid, size in mine}


def _card(row: list[str], apps: list[list[str]], ours: set[int]) -> Facts:
    index, uuid, name, total, used, generation, bus = row
    return {
        "index": int(index),
        "uuid": uuid,
        "model": name.removeprefix("NVIDIA ").removeprefix("GeForce "),
        "memory_mb": _number(total) or 0.0,
        "pcie": int(_number(generation) or 0) or _generation(bus, _PCI),
        **_others(_number(used), _held(apps, uuid), ours),
    }


def _instances(tool: str) -> dict[int, list[tuple[str, str]]]:
    """Profile and UUID of each MIG instance, by the index of its card; most machines have none."""
    found: dict[int, list[tuple[str, str]]] = {}
    try:
        lines = _ask(tool, "-L").splitlines()
    except (OSError, subprocess.SubprocessError):
        return found
    card = -1
    for line in lines:
        if head := _CARD_LINE.match(line):
            card = int(head[1])
        elif part := _INSTANCE_LINE.match(line):
            found.setdefault(card, []).append((part["profile"], part["uuid"]))
    return found


def _instance(card: Facts, profile: str, uuid: str, apps: list[list[str]], ours: set[int]) -> Facts:
    """A part of a card, with memory of its own: ``3g.20gb`` has 20 GB."""
    size = _INSTANCE_GB.search(profile)
    memory_mb = 1024.0 * int(size[1]) if size else 0.0
    held = _held(apps, uuid)
    used = 0.0 if not held else sum(size or 0.0 for size in held.values())
    model = f"{card['model']} MIG {profile}"
    rest = _others(used, held, ours)
    return {**card, "uuid": uuid, "model": model, "memory_mb": memory_mb, **rest}


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


# -- AMD -----------------------------------------------------------------------------------------


def _amd(tool: str, ours: set[int]) -> list[Facts]:
    """rocm-smi names its cards ``card0`` and so on; the words of its fields vary by version."""
    cards = json.loads(
        _ask(tool, "--showproductname", "--showuniqueid", "--showmeminfo", "vram", "--json")
    )
    held = dict(_amd_processes(tool))
    found = []
    for name, raw in cards.items():
        if not name.startswith("card"):
            continue
        told = {field.lower(): value for field, value in raw.items()}
        index = int(name.removeprefix("card"))
        here = {pid: size for pid, (size, on) in held.items() if index in on}
        used = _number(told.get("vram total used memory (b)"))
        found.append(
            {
                "index": index,
                "uuid": told.get("unique id"),
                "model": told.get("card series") or told.get("card model") or "AMD GPU",
                "memory_mb": (_number(told.get("vram total memory (b)")) or 0.0) / (1 << 20),
                "pcie": None,
                **_others(None if used is None else used / (1 << 20), here, ours),
            }
        )
    return found


def _amd_processes(tool: str) -> Iterator[tuple[int, tuple[float | None, set[int]]]]:
    """Pid, megabytes, and the cards it is on."""
    told = json.loads(_ask(tool, "--showpids", "--json") or "{}")
    for name, cells in told.get("system", {}).items():
        pid = name.removeprefix("PID")
        if pid.isdigit():
            size = _number(str(cells).split(", ")[2])
            yield int(pid), (None if size is None else size / (1 << 20), _amd_cards(tool, pid))


def _amd_cards(tool: str, pid: str) -> set[int]:
    lines = _ask(tool, "--showpidgpus", pid, "--json")
    return {int(number) for number in re.findall(r"\b\d+\b", lines.partition(pid)[2])}


# -- Apple ---------------------------------------------------------------------------------------


def _apple() -> Iterator[Facts]:
    """The GPU of an Apple chip shares the machine's memory; nobody tells who uses it."""
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        chip = _ask("sysctl", "-n", "machdep.cpu.brand_string").strip()
        memory_mb = int(_ask("sysctl", "-n", "hw.memsize")) / (1 << 20)
        shared = {"others": [], "others_mb": 0.0, "sees_processes": False}
        base = {"index": 0, "uuid": None, "model": chip, "memory_mb": memory_mb, "pcie": None}
        yield {**base, **shared}
