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
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
_TOOL_S = 10.0
_COLUMNS = "index,uuid,name,memory.total,memory.used,pcie.link.gen.max,pci.bus_id"
_APP_CELLS = 3
_UUID = re.compile(r"(GPU|MIG)-\S+")  # anything else, as ``[N/A]`` on a Jetson, is no name
_PCI = Path("/sys/bus/pci/devices")
# GT/s, as the kernel tells it, to PCIe generation.
_GENERATION = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_CARD_LINE = re.compile(r"GPU (\d+):")
_INSTANCE_LINE = re.compile(
    r"\s+MIG (?P<profile>\S+)\s+Device\s+(?P<number>\d+):\s+\(UUID: (?P<uuid>MIG-[^)]+)\)"
)
_INSTANCE_GB = re.compile(r"\.(\d+)gb")
_ROCM_TOOL = "/opt/rocm/bin/rocm-smi"  # which no PATH may name
_ON_CARDS = re.compile(r"^PID (\d+) is using \d+ DRM device\(s\):?\s*\n([\d ]+)$", re.MULTILINE)
_hung: dict[str, subprocess.Popen[bytes]] = {}  # by tool: a broken driver lets none of them die


def read_gpus(ours: Collection[int]) -> Facts:
    """All GPUs, or why nothing is known of them. ``ours`` are processes that count as nobody's."""
    readers = (
        ("nvidia-smi", "/usr/bin/nvidia-smi", _nvidia),
        ("rocm-smi", "/usr/bin/rocm-smi", _amd),
        ("rocm-smi", _ROCM_TOOL, _amd),
    )
    for name, usual, read in readers:
        tool = shutil.which(name) or usual
        if Path(tool).exists():
            try:
                return {"gpus": read(tool, set(ours)), "gpu_problem": None}
            except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
                return {"gpus": [], "gpu_problem": f"{name}: {_last_words(error)}"}
    return {"gpus": list(_apple()), "gpu_problem": None}


def _last_words(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {_TOOL_S:g} s"
    said = (getattr(error, "stdout", None) or b"") + (getattr(error, "stderr", None) or b"")
    text = said.decode(errors="replace").strip() or f"{type(error).__name__}: {error}"
    return str(text)[:300]


def _ask(*words: str) -> str:
    """Asked once more only when an earlier question that got no answer is out of the way: behind a
    broken driver, questions can neither be ended nor waited for."""
    if words[0] in _hung and _hung[words[0]].poll() is None:
        raise subprocess.TimeoutExpired(words, _TOOL_S)
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        said, complaint = process.communicate(timeout=_TOOL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _hung[words[0]] = process
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, said, complaint)
    return said.decode(errors="replace")


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
        "uuid": uuid if _UUID.fullmatch(uuid) else None,
        "model": name.removeprefix("NVIDIA ").removeprefix("GeForce "),
        "memory_mb": _number(total) or 0.0,
        "pcie": int(_number(generation) or 0) or _generation(bus, _PCI),
        **_others(_number(used), _held(apps, uuid), ours),
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
        lines = _ask(tool, "-L").splitlines()
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
        report = ElementTree.fromstring(_ask(tool, "-q", "-x"))  # noqa: S314 - the driver's own
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
    return _number((text or "").removesuffix("MiB").strip())


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
    rest = _others(used, held, ours)
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


# -- AMD -----------------------------------------------------------------------------------------


def _amd(tool: str, ours: set[int]) -> list[Facts]:
    """rocm-smi names its cards ``card0`` and so on; the words of its fields vary by version."""
    cards = _json(tool, "--showproductname", "--showuniqueid", "--showmeminfo", "vram")
    held, on = dict(_amd_processes(tool)), _amd_cards(tool)
    names = Counter(str(raw.get("Unique ID")) for raw in cards.values())
    found = []
    for name, raw in cards.items():
        if not name.startswith("card"):
            continue
        told = {field.lower(): value for field, value in raw.items() if value != "N/A"}
        index = int(name.removeprefix("card"))
        here = {pid: size for pid, size in held.items() if index in on.get(pid, ())}
        used = _number(told.get("vram total used memory (b)"))
        uuid = str(told.get("unique id", ""))
        # Integrated GPUs have none, and the partitions of one card share it.
        has_name = uuid.startswith("0x") and int(uuid, 16) and names[uuid] == 1
        found.append(
            {
                "index": index,
                "uuid": uuid if has_name else None,
                "model": _amd_model(told),
                "memory_mb": (_number(told.get("vram total memory (b)")) or 0.0) / (1 << 20),
                "pcie": None,
                **_others(None if used is None else used / (1 << 20), here, ours),
            }
        )
    return found


def _amd_model(told: Facts) -> str:
    """The marketing name, which may stand in brackets behind the chip's."""
    name = str(told.get("card series") or told.get("card model") or "AMD GPU")
    return name.rpartition("[")[2].rstrip("]")


def _json(tool: str, *words: str) -> dict[str, dict[str, Any]]:
    """What it prints among its warnings; nothing at all where there is nothing to tell."""
    _, brace, rest = _ask(tool, *words, "--json").partition("{")
    told = json.JSONDecoder().raw_decode(brace + rest)[0] if brace else {}
    return {name: raw for name, raw in told.items() if isinstance(raw, dict)}


def _amd_processes(tool: str) -> Iterator[tuple[int, float | None]]:
    """Pid and megabytes; several versions say 0 of every process."""
    for name, cells in _json(tool, "--showpids").get("system", {}).items():
        pid = name.removeprefix("PID")
        if pid.isdigit():
            # Name, cards, memory, two more: a name may have commas of its own.
            size = _number(str(cells).rsplit(", ", 3)[1])
            yield int(pid), size / (1 << 20) if size else None


def _amd_cards(tool: str) -> dict[int, set[int]]:
    """Which cards each process is on: that is never told as JSON."""
    said = _ask(tool, "--showpidgpus")
    return {int(pid): {int(n) for n in cards.split()} for pid, cards in _ON_CARDS.findall(said)}


# -- Apple ---------------------------------------------------------------------------------------


def _apple() -> Iterator[Facts]:
    """The GPU of an Apple chip shares the machine's memory; nobody tells who uses it."""
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        chip = _ask("sysctl", "-n", "machdep.cpu.brand_string").strip()
        memory_mb = int(_ask("sysctl", "-n", "hw.memsize")) / (1 << 20)
        shared = {"others": [], "others_mb": 0.0, "sees_processes": False}
        base = {"index": 0, "uuid": None, "model": chip, "memory_mb": memory_mb, "pcie": None}
        yield {**base, **shared}
