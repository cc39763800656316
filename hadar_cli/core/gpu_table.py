"""What spec sheets say about the GPUs that labs and clouds have, found by any usual spelling."""

from __future__ import annotations

import re
from dataclasses import replace

from hadar_cli.core.model import Gpu
from hadar_cli.errors import nearest

# Dense FP16 tensor TFLOPS from NVIDIA's data sheets (never the doubled "with sparsity" figures);
# plain FP16, or FP32 where FP16 is slower, for GPUs without tensor cores. The K80 and M60 boards
# hold two GPUs: these are figures of one, which is what a cloud machine or a process gets.
#   model: (TFLOPS, VRAM GB, PCIe generation)
_SPECS: dict[str, tuple[float, float, int]] = {
    # Data centre
    "B200": (2250, 180, 5),
    "H200": (989, 141, 5),
    "H100": (989, 80, 5),
    "A100": (312, 40, 4),
    "A100 80GB": (312, 80, 4),
    "A40": (149.7, 48, 4),
    "A30": (165, 24, 4),
    "A16": (18, 16, 4),
    "A10": (125, 24, 4),
    "A10G": (70, 24, 4),
    "A2": (18, 16, 4),
    "L40S": (362, 48, 4),
    "L40": (181, 48, 4),
    "L4": (121, 24, 4),
    "T4": (65, 16, 3),
    "V100": (125, 16, 3),
    "V100 32GB": (125, 32, 3),
    "P100": (21.2, 16, 3),
    "P40": (11.8, 24, 3),
    "P4": (5.5, 8, 3),
    "M60": (4.8, 8, 3),
    "K80": (4.4, 12, 3),
    # Workstation
    "RTX 6000 Ada": (364, 48, 4),
    "RTX 5000 Ada": (261, 32, 4),
    "RTX 4000 Ada": (107, 20, 4),
    "RTX 2000 Ada": (48, 16, 4),
    "RTX A6000": (154.8, 48, 4),
    "RTX A5000": (111.1, 24, 4),
    "RTX A4500": (94.6, 20, 4),
    "RTX A4000": (76.7, 16, 4),
    "RTX A2000": (31.9, 6, 4),
    "Quadro RTX 8000": (130.5, 48, 3),
    "Quadro RTX 6000": (130.5, 24, 3),
    "Quadro RTX 5000": (89.2, 16, 3),
    "Quadro RTX 4000": (57, 8, 3),
    "T1000": (5.0, 4, 3),
    "T600": (3.4, 4, 3),
    "T400": (2.2, 4, 3),
    # Consumer
    "RTX 5090": (419, 32, 5),
    "RTX 5080": (225, 16, 5),
    "RTX 5070 Ti": (176, 16, 5),
    "RTX 5070": (123, 12, 5),
    "RTX 4090": (330, 24, 4),
    "RTX 4080 Super": (209, 16, 4),
    "RTX 4080": (195, 16, 4),
    "RTX 4070 Ti": (160, 12, 4),
    "RTX 4070": (117, 12, 4),
    "RTX 4060 Ti": (88, 8, 4),
    "RTX 4060": (60, 8, 4),
    "RTX 3090 Ti": (160, 24, 4),
    "RTX 3090": (142, 24, 4),
    "RTX 3080 Ti": (136, 12, 4),
    "RTX 3080": (119, 10, 4),
    "RTX 3070": (81, 8, 4),
    "RTX 3060 Ti": (65, 8, 4),
    "RTX 3060": (51, 12, 4),
    "RTX 2080 Ti": (108, 11, 3),
    "RTX 2080": (81, 8, 3),
    "RTX 2070": (60, 8, 3),
    "RTX 2060": (52, 6, 3),
    "TITAN RTX": (130.5, 24, 3),
    "TITAN V": (110, 12, 3),
    "TITAN Xp": (12.1, 12, 3),
    "GTX 1660 Ti": (11, 6, 3),
    "GTX 1080 Ti": (11.3, 11, 3),
    "GTX 1080": (8.9, 8, 3),
    "GTX 1070": (6.5, 8, 3),
    "GTX 1060": (4.4, 6, 3),
    # AMD: dense FP16 matrix TFLOPS from its data sheets; of the MI250X, one of its two GPUs
    "MI300X": (1307, 192, 5),
    "MI250X": (191.5, 64, 4),
    "MI210": (181, 64, 4),
    "MI100": (184.6, 32, 4),
    "RX 7900 XTX": (122.8, 24, 4),
    "RX 6900 XT": (46, 16, 4),
    # Apple: FP32, which its GPUs do as fast as FP16; memory is the machine's
    "M1": (2.6, 16, 4),
    "M1 Max": (10.4, 32, 4),
    "M2": (3.6, 16, 4),
    "M2 Max": (13.6, 32, 4),
    "M3": (4.1, 16, 4),
    "M3 Max": (14.2, 36, 4),
    "M4": (4.6, 16, 4),
    "M4 Max": (18.4, 36, 4),
}

KNOWN_GPUS = {model: Gpu(model, *figures) for model, figures in _SPECS.items()}

# One AVX2 core at 3 GHz. Memory does not bound a CPU the way VRAM bounds a GPU: counted as 1.
CPU = Gpu("CPU", tflops=0.1, vram_gb=1)

_MAKER = {"nvidia", "corporation", "tesla", "geforce", "graphics", "gpu", "generation"}
_MAKER |= {"amd", "instinct", "radeon", "apple"}
_FAMILY = re.compile(r"quadro|rtx|gtx|rx")
_FORM_FACTOR = re.compile(r"sxm\d?|pcie?|nvl|hbm\d?e?")
_MEMORY = re.compile(r"\b(\d+)\s*gb?\b")
_INSTANCE = re.compile(r"(?P<card>.+?) MIG (?P<slices>[1-7])g\.(?P<gb>\d+)gb", re.IGNORECASE)
_SLICES = 7  # of computing, in a card that can be divided (MIG)


def find_gpu(name: str) -> Gpu | None:
    """The known GPU meant by ``name``, as nvidia-smi, a shop or a hurried person would write it.

    A memory size in the name wins over the table's: ``RTX 3080 12GB`` has 12 GB.
    """
    if name.strip().upper() == "CPU":
        return CPU
    if part := _INSTANCE.match(name.strip()):
        return _instance(name, part)
    words = _words(name)
    if gpu := _by_key("".join(words)):
        return gpu
    memory = _MEMORY.fullmatch(words[-1]) if words else None
    gpu = _by_key("".join(words[:-1])) if memory else None
    return replace(gpu, vram_gb=float(memory[1])) if gpu and memory else None


def _instance(name: str, part: re.Match[str]) -> Gpu | None:
    """A part of a card: ``A100 MIG 3g.20gb`` has three sevenths of its computing, and 20 GB."""
    card = find_gpu(part["card"])
    tflops = card.tflops * int(part["slices"]) / _SLICES if card else 0.0
    return card and replace(card, model=name, tflops=tflops, vram_gb=float(part["gb"]))


def nearest_gpu(name: str) -> str | None:
    """The known GPU whose name looks most like ``name``, for "did you mean" messages."""
    spelling = nearest("".join(_words(name)), _BY_KEY)
    return _BY_KEY[spelling].model if spelling else None


def _words(name: str) -> list[str]:
    words = re.findall(r"[a-z0-9]+", _MEMORY.sub(r"\1gb", name.lower()))
    return [word for word in words if word not in _MAKER and not _FORM_FACTOR.fullmatch(word)]


def _by_key(key: str) -> Gpu | None:
    return _BY_KEY.get(key) or _BY_SHORT_KEY.get(_FAMILY.sub("", key))


_BY_KEY = {"".join(_words(model)): gpu for model, gpu in KNOWN_GPUS.items()}
# "3090" and "a2000" mean one GPU only. "titan" would not.
_BY_SHORT_KEY = {
    _FAMILY.sub("", key): gpu for key, gpu in _BY_KEY.items() if not key.startswith("titan")
}


# Instance types of AWS: what they hold, and what they cost on demand, Linux, in dollars an hour.
PRICED_ON, PRICED_IN = "2024-12", "us-east-1"  # the prices are kept by hand
# Families whose sizes all have the same number of GPUs for their size: (GPU, {size: count}).
_ONE_TO_FOUR = {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1, "12xlarge": 4}
_G5 = {**_ONE_TO_FOUR, "24xlarge": 4, "48xlarge": 8}
_FAMILIES: dict[str, tuple[str, dict[str, int]]] = {
    "p2": ("K80", {"xlarge": 1, "8xlarge": 8, "16xlarge": 16}),
    "p3": ("V100", {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8}),
    "p3dn": ("V100 32GB", {"24xlarge": 8}),
    "p4d": ("A100", {"24xlarge": 8}),
    "p4de": ("A100 80GB", {"24xlarge": 8}),
    "p5": ("H100", {"4xlarge": 1, "48xlarge": 8}),
    "p5e": ("H200", {"48xlarge": 8}),
    "p5en": ("H200", {"48xlarge": 8}),
    "p6-b200": ("B200", {"48xlarge": 8}),
    "g3": ("M60", {"4xlarge": 1, "8xlarge": 2, "16xlarge": 4}),
    "g3s": ("M60", {"xlarge": 1}),
    "g4dn": ("T4", {**_ONE_TO_FOUR, "metal": 8}),
    "g5": ("A10G", _G5),
    "g6": ("L4", _G5),
    "g6e": ("L40S", _G5),
}
_PRICES: dict[str, float] = {
    "p2.xlarge": 0.90,
    "p2.8xlarge": 7.20,
    "p2.16xlarge": 14.40,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p3.16xlarge": 24.48,
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.4xlarge": 1.204,
    "g4dn.8xlarge": 2.176,
    "g4dn.12xlarge": 3.912,
    "g4dn.16xlarge": 4.352,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096,
    "g5.24xlarge": 8.144,
    "g5.48xlarge": 16.288,
}


def gpus_of(kind: str) -> tuple[str, int] | None:
    """The model and number of an instance type's GPUs; None for one that has none we know."""
    family, _, size = kind.partition(".")
    model, counts = _FAMILIES.get(family, ("", {}))
    return (model, counts[size]) if size in counts else None


def price_of(kind: str, region: str) -> float | None:
    """On demand; None where the table does not tell."""
    return _PRICES.get(kind) if region == PRICED_IN else None
