"""Who of a run is still alive: told by its files, its tag, and its command lines."""

from __future__ import annotations

import json
import time
from pathlib import Path

from hadar_cli.node.agent import processes


def living(directory: Path) -> set[int]:
    """Pids of workers, supervisors, and whatever they started, of runs below ``directory``."""
    found: set[int] = set()
    for path in directory.glob("**/worker.json"):
        known = json.loads(path.read_text()).values()
        found |= {pid for pid, started in known if processes.is_alive(pid, started)}
    tag = f"HADAR_WORKER={directory.resolve()}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if tag in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def all_gone(directory: Path, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while living(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
