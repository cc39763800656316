"""What steps, starts and merges cost on the lab: measured once, in a real run of each workload.

    python -m bench.quality --costs

Five sshd nodes on this computer, paced as the paper's lab, train one job at a time, merged. The
times say nothing of bytes: a loopback is faster than any wire. Those are reckoned with in clock.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.quality.scheduled import STEPS
from bench.round_overhead import gaps
from hadar_cli.core import events
from hadar_cli.runs.store import find_run, read_journal
from hadar_cli.weights.safetensors_file import DTYPES, Checkpoint
from tests.support.lab import running

KEPT = Path(__file__).parents[2] / "bench/results/costs.json"
FASTEST = "rtx3090"
MIX = """
name: lone
slot_s: 10
merge: {{warmup: 0.1, solo: 0.1}}
jobs:
  - {{workload: {workload}, steps: {steps}, mode: merge}}
"""


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one workload's ``tiny`` preset on the lab."""

    start_s: float  # from the command to the first step
    step_s: float  # of the fastest device
    merge_s: float  # from a copy's last step before a merge to its first one after it
    checkpoint: int  # bytes of weights and the optimizer's state
    gradients: int  # bytes


def kept(path: Path = KEPT) -> dict[str, Costs]:
    rows = json.loads(path.read_text()) if path.exists() else {}
    return {workload: Costs(**row) for workload, row in rows.items()}


def measure() -> None:
    """Runs every workload once and keeps what its run says."""
    found = {}
    for workload, steps in STEPS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[workload] = _measured(workload, steps, Path(folder))
        print(workload, found[workload], flush=True)
    KEPT.write_text(json.dumps({name: asdict(row) for name, row in found.items()}, indent=1) + "\n")


def _measured(workload: str, steps: int, folder: Path) -> Costs:
    (folder / "mix.yaml").write_text(MIX.format(workload=workload, steps=steps))
    with running(folder / "lab", 5) as lab:
        words = [sys.executable, "-m", "hadar_cli.cli.main", "run", "mix.yaml", "--no-live"]
        words += ["-n", str(lab.inventory)]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    store = find_run(folder / "runs", None)
    happened = read_journal(store.journal_path)
    with Checkpoint(next((folder / "runs").glob("*/models/*.safetensors"))) as checkpoint:
        tensors = [tensor for tensor in checkpoint.tensors.values() if tensor.is_float]
        gradients = sum(t.size * DTYPES[t.dtype].itemsize for t in tensors)
    return of_journal(happened, gaps(store.journal_path), gradients)


def of_journal(happened: list[events.Event], gaps_s: list[float], gradients: int) -> Costs:
    started = {e.attempt: e for e in happened if isinstance(e, events.CopyStarted)}
    finished = [e for e in happened if isinstance(e, events.CopyFinished) if e.steps]
    merges = [e for e in happened if isinstance(e, events.WeightsMerged)]
    first = min(finished, key=lambda done: started[done.attempt].t)
    own = [done for done in finished if started[done.attempt].device.partition(":")[0] == FASTEST]
    return Costs(
        start_s=started[first.attempt].t + first.start_s,
        step_s=sum(done.train_s for done in own) / sum(done.steps for done in own),
        merge_s=median(gaps_s),
        checkpoint=max(merge.bytes for merge in merges),
        gradients=gradients,
    )
