"""What a node is and whether it can train, as plain facts. Imports torch only when asked to."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import platform
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
_SMI_S = 10.0
_KERNEL_SIZE = 512
_COLUMNS = "index,uuid,name,memory.total,memory.used,pcie.link.gen.max,pci.bus_id"
_PCI = Path("/sys/bus/pci/devices")
# GT/s, as the kernel tells it, to PCIe generation.
_GENERATION = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


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
        **_gpus(ours),
    }


def _disk(workdir: str) -> Facts:
    """Free space where the workdir really is: behind links, or where it would be made."""
    path = Path(os.path.realpath(Path(workdir).expanduser()))
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    return {"path": str(path), "free_bytes": usage.free, "total_bytes": usage.total}


# -- GPUs as nvidia-smi tells --------------------------------------------------------------------


def _gpus(ours: set[int]) -> Facts:
    """The GPUs with what others hold of their memory, or why nothing is known of them."""
    tool = shutil.which("nvidia-smi") or "/usr/bin/nvidia-smi"
    if not Path(tool).exists():
        return {"gpus": [], "gpu_problem": None}
    try:
        rows = _query(tool, f"--query-gpu={_COLUMNS}")
        apps = _query(tool, "--query-compute-apps=gpu_uuid,pid,used_memory")
        return {"gpus": [_gpu(row, apps, ours) for row in rows], "gpu_problem": None}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "stdout", None) or b""
        text = said.decode(errors="replace").strip() or f"{type(error).__name__}: {error}"
        return {"gpus": [], "gpu_problem": text[:300]}


def _query(tool: str, what: str) -> list[list[str]]:
    words = [tool, what, "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, check=True, timeout=_SMI_S)
    lines = done.stdout.decode(errors="replace").splitlines()
    return [[cell.strip() for cell in row] for row in csv.reader(lines) if row]


def _gpu(row: list[str], apps: list[list[str]], ours: set[int]) -> Facts:
    index, uuid, name, total, used, generation, bus = row
    pids = {int(pid): _number(size) for gpu, pid, size in apps if gpu == uuid}
    others = sorted({_owner(pid) for pid in pids.keys() - ours})
    return {
        "index": int(index),
        "model": name.removeprefix("NVIDIA ").removeprefix("GeForce "),
        "memory_mb": _number(total),
        "others_mb": max(0.0, _number(used) - sum(pids[pid] for pid in pids.keys() & ours)),
        "others": others,
        "pcie": int(_number(generation)) or _generation(bus, _PCI),
    }


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


def _number(text: str) -> float:
    """A cell of nvidia-smi's, which says ``[N/A]`` where it does not know."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _owner(pid: int) -> str:
    try:
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    except (OSError, KeyError):
        return "someone"


# -- torch ---------------------------------------------------------------------------------------


def import_torch() -> Facts:
    """Imports what training needs. A file server may take its time over it."""
    # nvidia-smi and CUDA count GPUs alike only in this order.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    found: Facts = {"torch": None, "safetensors": None, "cuda": None, "problem": None}
    try:
        import torch

        found["torch"] = str(torch.__version__)
        found["cuda"] = str(torch.version.cuda) if torch.cuda.is_available() else None
        import safetensors.torch  # noqa: F401

        found["safetensors"] = importlib.metadata.version("safetensors")
    except Exception as error:  # a broken installation may raise anything
        found["problem"] = f"{type(error).__name__}: {error}"[:300]
    return found


def try_gpus() -> list[Facts]:
    """Runs a real kernel on every GPU that torch sees."""
    import torch

    return [_run_kernel(index) for index in range(torch.cuda.device_count())]


def _run_kernel(index: int) -> Facts:
    """A matrix product on the GPU, compared with the CPU's."""
    import torch

    try:
        one = torch.randn(_KERNEL_SIZE, _KERNEL_SIZE, generator=torch.Generator().manual_seed(0))
        there = (one.to(f"cuda:{index}") @ one.to(f"cuda:{index}")).cpu()
        error = float((there - one @ one).abs().max() / (one @ one).abs().max())
        problem = None if error < 0.01 else f"computes wrongly: off by {error:.0%}"
    except Exception as failure:  # CUDA errors are RuntimeErrors of many kinds
        problem = f"{type(failure).__name__}: {failure}".splitlines()[0][:300]
    return {"index": index, "problem": problem}
