"""Whether a script seems to know of hadar, and that several processes train the same steps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hadar_cli.node.contract import PREFIX

# By any of these a script shares its steps with the other processes of a gang: by ``training`` and
# its adapters, or by torch.distributed and what stands on it.
_WORDS = (
    *("hadar_cli", "torch.distributed", "DistributedDataParallel", "RANK"),
    *("accelerate", "lightning", "Trainer", "deepspeed", "horovod"),
)
_OF_HADAR = ("hadar_cli", PREFIX)
_MOST_BYTES = 1 << 20  # of one file; no script that people write is longer


def seems_to_share(files: Iterable[Path]) -> bool:
    """Whether a Python file among these speaks of it. Others cannot be judged, and pass."""
    return _speak_of(files, _WORDS)


def seems_ported(files: Iterable[Path]) -> bool:
    """Whether one speaks of hadar at all: else it cannot hand in what it trains."""
    return _speak_of(files, _OF_HADAR)


def _speak_of(files: Iterable[Path], words: tuple[str, ...]) -> bool:
    scripts = [path for path in files if path.suffix == ".py"]
    return not scripts or any(_speaks_of(path, words) for path in scripts)


def _speaks_of(path: Path, words: tuple[str, ...]) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return False
    return any(word in text for word in words)
