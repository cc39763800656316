"""AMD's cards by either of its tools: rocm-smi, and amd-smi, which newer releases have alone.

A card's name is its unique id, ``0x`` and hexadecimal digits, whichever tool tells of it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from hadar_cli.node.gpus.asking import Facts, ask, number, others_on

_ON_CARDS = re.compile(r"^PID (\d+) is using \d+ DRM device\(s\):?\s*\n([\d ]+)$", re.MULTILINE)
_JSON_BEGINS = re.compile(r"^[\[{]", re.MULTILINE)  # behind warnings, as of devices we may not open
_MB = {"B": 2.0**-20, "KB": 2.0**-10, "MB": 1.0, "GB": 2.0**10}

# -- rocm-smi --------------------------------------------------------------------------------------


def by_rocm_smi(tool: str, ours: set[int]) -> list[Facts]:
    """rocm-smi names its cards ``card0`` and so on; the words of its fields vary by version."""
    cards = _by_card(tool, "--showproductname", "--showuniqueid", "--showmeminfo", "vram")
    held, on = dict(_rocm_processes(tool)), _rocm_places(tool)
    names = Counter(str(raw.get("Unique ID")) for raw in cards.values())
    found = []
    for name, raw in cards.items():
        if not name.startswith("card"):
            continue
        told = {field.lower(): value for field, value in raw.items() if value != "N/A"}
        index = int(name.removeprefix("card"))
        here = {pid: size for pid, size in held.items() if index in on.get(pid, ())}
        used = number(told.get("vram total used memory (b)"))
        uuid = str(told.get("unique id", ""))
        found.append(
            {
                "index": index,
                "uuid": uuid if _is_name(uuid) and names[uuid] == 1 else None,
                "model": _model(told),
                "memory_mb": (number(told.get("vram total memory (b)")) or 0.0) / (1 << 20),
                "pcie": None,
                **others_on(None if used is None else used / (1 << 20), here, ours),
            }
        )
    return found


def _is_name(uuid: str) -> bool:
    """Integrated GPUs have none; the partitions of one card share theirs, and it names none."""
    return uuid.startswith("0x") and bool(int(uuid, 16))


def _model(told: Facts) -> str:
    """The marketing name, which may stand in brackets behind the chip's."""
    name = str(told.get("card series") or told.get("card model") or "AMD GPU")
    return name.rpartition("[")[2].rstrip("]")


def _by_card(tool: str, *words: str) -> dict[str, dict[str, Any]]:
    """What it prints among its warnings; nothing at all where there is nothing to tell."""
    _, brace, rest = ask(tool, *words, "--json").partition("{")
    told = json.JSONDecoder().raw_decode(brace + rest)[0] if brace else {}
    return {name: raw for name, raw in told.items() if isinstance(raw, dict)}


def _rocm_processes(tool: str) -> Iterator[tuple[int, float | None]]:
    """Pid and megabytes; several versions say 0 of every process."""
    for name, cells in _by_card(tool, "--showpids").get("system", {}).items():
        pid = name.removeprefix("PID")
        if pid.isdigit():
            # Name, cards, memory, two more: a name may have commas of its own.
            size = number(str(cells).rsplit(", ", 3)[1])
            yield int(pid), size / (1 << 20) if size else None


def _rocm_places(tool: str) -> dict[int, set[int]]:
    """Which cards each process is on: that is never told as JSON."""
    said = ask(tool, "--showpidgpus")
    return {int(pid): {int(n) for n in cards.split()} for pid, cards in _ON_CARDS.findall(said)}


# -- amd-smi ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Card:
    """What never changes of a card while its driver is loaded."""

    index: int  # HIP's, by which a worker is shown it
    uuid: str
    model: str


def by_amd_smi(tool: str, ours: set[int]) -> list[Facts]:
    """It numbers cards in an order of its own: HIP's number of each is asked for."""
    cards = _cards(tool)
    names = Counter(card.uuid for card in cards.values())
    held = _held_by_card(tool)
    found = []
    for row in _rows(tool, "metric", "--mem-usage"):
        card, memory = cards[row["gpu"]], row.get("mem_usage")
        told = memory if isinstance(memory, dict) else {}
        rest = others_on(_megabytes(told.get("used_vram"), "MB"), held.get(row["gpu"], {}), ours)
        found.append(
            {
                "index": card.index,
                "uuid": card.uuid if _is_name(card.uuid) and names[card.uuid] == 1 else None,
                "model": card.model,
                "memory_mb": _megabytes(told.get("total_vram"), "MB") or 0.0,
                "pcie": None,
                **rest,
            }
        )
    return found


@cache
def _cards(tool: str) -> dict[int, _Card]:
    """By the tool's own number. Asked once: every question costs it half a second of a core."""
    hip = _hip_numbers(tool)
    found = {}
    for row in _rows(tool, "static", "--asic"):
        asic = row["asic"] if isinstance(row.get("asic"), dict) else {}
        serial = str(asic.get("asic_serial", "")).lower().removeprefix("0x")
        uuid = f"0x{serial}" if re.fullmatch("[0-9a-f]+", serial) else ""
        name = str(asic.get("market_name", "N/A"))
        model = "AMD GPU" if name == "N/A" else name
        number_here: int = row["gpu"]
        found[number_here] = _Card(hip.get(number_here, number_here), uuid, model)
    return found


def _hip_numbers(tool: str) -> dict[int, int]:
    """Before ROCm 6.4 nothing tells them; the two orders are alike on most machines."""
    try:
        rows = _rows(tool, "list", "-e")
    except subprocess.CalledProcessError:
        return {}
    return {row["gpu"]: row["hip_id"] for row in rows if isinstance(row.get("hip_id"), int)}


def _held_by_card(tool: str) -> dict[int, dict[int, float | None]]:
    """Megabytes by process. Where a process is told with 0 on every card, nothing is known."""
    found: dict[int, dict[int, float | None]] = {}
    total = Counter[int]()
    for row in _rows(tool, "process"):
        listed = row.get("process_list")
        for entry in listed if isinstance(listed, list) else ():
            one = entry.get("process_info") if isinstance(entry, dict) else None
            if isinstance(one, dict) and str(one.get("pid")).isdigit():
                pid, size = int(one["pid"]), _held_mb(one)
                found.setdefault(row["gpu"], {})[pid] = size
                total[pid] += round((size or 0.0) * 1024)
    return {
        gpu: {pid: size if total[pid] else None for pid, size in held.items()}
        for gpu, held in found.items()
    }


def _held_mb(process: Facts) -> float | None:
    """Of the card's own memory, where that is told apart from the machine's."""
    told = process.get("memory_usage")
    own = _megabytes(told.get("vram_mem"), "B") if isinstance(told, dict) else None
    return own or _megabytes(process.get("mem_usage"), "B")


def _megabytes(told: object, unit: str) -> float | None:
    """A number of the unit, or with a unit of its own, or ``N/A``."""
    if isinstance(told, dict):
        unit, told = str(told.get("unit")), told.get("value")
    size = number(told)
    return None if size is None or unit not in _MB else size * _MB[unit]


def _rows(tool: str, *words: str) -> list[Facts]:
    """One of each card; some versions put them into an object."""
    said = ask(tool, *words, "--json")
    begin = _JSON_BEGINS.search(said)
    if not begin:
        raise ValueError(said.strip() or f"{words[0]} prints nothing")
    told = json.JSONDecoder().raw_decode(said[begin.start() :])[0]
    rows = told.get("gpu_data", []) if isinstance(told, dict) else told
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("gpu"), int)]
