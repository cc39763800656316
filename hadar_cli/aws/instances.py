"""What instance types hold, and what they cost."""

from __future__ import annotations

PRICED_ON = "2024-12-01"  # on demand, Linux, us-east-1, in dollars an hour
PRICED_IN = "us-east-1"

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
