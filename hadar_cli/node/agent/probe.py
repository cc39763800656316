"""What a node is and whether it can train, as plain facts. Imports torch only when asked to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hadar_cli.node.gpus.asking import Facts
from hadar_cli.node.gpus.cards import CardLock
from hadar_cli.node.gpus.reading import read_gpus
from hadar_cli.node.user_site import add_user_site

if TYPE_CHECKING:
    import torch

_KERNEL_SIZE = 512
_FILLED = 0.8  # of a card's free memory
_PIECE_BYTES = 1 << 26
_ROUNDING = 0.02  # of a card's memory, that its driver may keep for the process


def facts(workdir: str, ours: set[int]) -> Facts:
    """All that can be told in milliseconds. ``ours`` are hadar's own processes: no one else's."""
    now = time.time()
    local = time.localtime(now)
    return {
        "now": now,
        "minute_of_day": 60 * local.tm_hour + local.tm_min,
        "hostname": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "executable": sys.executable,
        "cores": os.cpu_count(),
        "disk": _disk(workdir),
        **_gpus(workdir, ours),
    }


def _gpus(workdir: str, ours: set[int]) -> Facts:
    """With each, the run of another workdir that trains on it; those of this one go by ``ours``."""
    found = read_gpus(ours)
    here = os.path.realpath(Path(workdir).expanduser())
    for gpu in found["gpus"]:
        lock = CardLock(gpu["uuid"] or f"gpu-{gpu['index']}")
        at = os.path.realpath(str(lock.note().get("at", "")))
        if lock.is_held() and not at.startswith(here + os.sep):
            gpu["others"] = [lock.holder()]
    return found


def _disk(workdir: str) -> Facts:
    """Free space where the workdir really is: behind links, or where it would be made."""
    path = Path(os.path.realpath(Path(workdir).expanduser()))
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    return {"path": str(path), "free_bytes": usage.free, "total_bytes": usage.total}


# -- torch ---------------------------------------------------------------------------------------


def import_torch() -> Facts:
    """Imports what training needs. A file server may take its time over it."""
    # nvidia-smi and CUDA count GPUs alike only in this order.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    add_user_site()
    found: Facts = {"torch": None, "safetensors": None, "accelerator": None, "problem": None}
    try:
        import torch

        found["torch"] = str(torch.__version__)
        found["accelerator"] = accelerator(torch)
        import safetensors.torch  # noqa: F401

        found["safetensors"] = importlib.metadata.version("safetensors")
    except Exception as error:  # a broken installation may raise anything
        found["problem"] = f"{type(error).__name__}: {error}"[:300]
    return found


def accelerator(torch: ModuleType) -> str | None:
    """What this torch computes on here, beside the processor."""
    if torch.cuda.is_available():  # so says a torch for AMD's cards, too
        return f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return "MPS" if torch.backends.mps.is_available() else None


def gpu_names(torch: ModuleType) -> list[str]:
    """The GPUs that it sees, as it calls them; an Apple chip has one."""
    if torch.cuda.is_available():
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["mps"] if torch.backends.mps.is_available() else []


def try_gpus() -> list[Facts]:
    """Runs a real kernel on every GPU that torch sees."""
    import torch

    return [_run_kernel(index, name) for index, name in enumerate(gpu_names(torch))]


def _run_kernel(index: int, name: str) -> Facts:
    """A matrix product on the GPU, compared with the CPU's."""
    import torch

    try:
        one = torch.randn(_KERNEL_SIZE, _KERNEL_SIZE, generator=torch.Generator().manual_seed(0))
        there = (one.to(name) @ one.to(name)).cpu()
        error = float((there - one @ one).abs().max() / (one @ one).abs().max())
        problem = None if error < 0.01 else f"computes wrongly: off by {error:.0%}"
    except Exception as failure:  # CUDA errors are RuntimeErrors of many kinds
        problem = f"{type(failure).__name__}: {failure}".splitlines()[0][:300]
    return {"index": index, "problem": problem}


def _free_memory(device: torch.device) -> tuple[int, int]:
    """Bytes that are free on a card, and all it has."""
    import torch

    if device.type == "mps":
        total = torch.mps.recommended_max_memory()
        return total - torch.mps.driver_allocated_memory(), total
    return torch.cuda.mem_get_info(device)


def fill_memory(index: int) -> Facts:
    """Holds most of a card's free memory, reads it back, and sees whether all of it is returned."""
    add_user_site()
    import torch

    held, free, problem = 0, 0, None
    try:
        device = torch.device(dict(enumerate(gpu_names(torch))).get(index, f"cuda:{index}"))
        torch.zeros(1, device=device)  # what the process itself takes is not counted
        free, total = _free_memory(device)
        pieces: list[torch.Tensor] = []
        while held < _FILLED * free:
            number = len(pieces) % 251
            pieces.append(torch.full((_PIECE_BYTES,), number, dtype=torch.uint8, device=device))
            held += _PIECE_BYTES
        # Smallest and largest of a piece: a comparison would need as much memory again.
        kept = [piece.aminmax() for piece in pieces]
        wrong = sum({int(a), int(b)} != {i % 251} for i, (a, b) in enumerate(kept))
        pieces.clear()
        (torch.mps if device.type == "mps" else torch.cuda).empty_cache()
        after = _free_memory(device)[0]
        if wrong:
            problem = f"{wrong} pieces of its memory did not keep what was written"
        elif after < free - _ROUNDING * total:
            problem = f"{(free - after) / 1e9:.1f} GB were not given back"
    except Exception as failure:  # out of memory, and CUDA errors of many kinds
        problem = f"{type(failure).__name__}: {failure}".splitlines()[0][:300]
    return {"index": index, "held": held, "free": free, "problem": problem}
