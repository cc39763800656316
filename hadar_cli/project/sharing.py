"""Whether a script seems to know that several processes train the same steps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# By any of these a script shares its steps with the other processes of a gang: by ``training`` and
# its adapters, or by torch.distributed and what stands on it.
_WORDS = (
    *("hadar_cli", "torch.distributed", "DistributedDataParallel", "RANK"),
    *("accelerate", "lightning", "Trainer", "deepspeed", "horovod"),
)
_MOST_BYTES = 1 << 20  # of one file; no script that people write is longer


def seems_to_share(files: Iterable[Path]) -> bool:
    """Whether a Python file among these speaks of it. Others cannot be judged, and pass."""
    scripts = [path for path in files if path.suffix == ".py"]
    return not scripts or any(_speaks_of_it(path) for path in scripts)


def _speaks_of_it(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return False
    return any(word in text for word in _WORDS)
