"""A whole mix on five nodes of an engine that does what engines do of their own accord.

    python -m tests.faults --engine slurm --mix mixes/m3.yaml

The head is killed and goes on; then Slurm reaches a time limit and preempts, a Ray cluster loses an
actor, a bridge and a raylet, AWS takes two instances away, an SSH server dies. Of copies that were
told to leave no trained step may be lost. Afterwards all steps count once, and nothing is left.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from hadar_cli.core import events
from hadar_cli.core.reasons import Loss
from hadar_cli.core.state import RunState
from tests.faults.engines import PLACES, ROOT, Run, add, check
from tests.faults.sections import Findings, Size, section

#: A device that the trouble takes away, or "" where all stay.
Trouble: TypeAlias = Callable[[Run, Any], str]
# A copy that was sent ahead, sent too late, or still starting has no step to lose.
_UNTRAINED = {Loss.PROCESS_GONE, Loss.ORDER_REFUSED, Loss.TERMINATED}
_NODES = 5


def strike_mix(engine: str, mix: Path) -> Findings:
    findings = Findings(trials=1)
    with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name, ExitStack() as stack:
        folder = Path(name)
        try:
            place = PLACES[engine](folder, stack, _NODES)
            if engine == "slurm":
                _limit_first(place.inventory)
            run = Run(folder, place, mix.read_text())
            stack.callback(run.head.kill)
            _strike(run, engine, findings)
            check(run, findings)
            findings.steps = sum(len(job.done) for job in _state(run).jobs.values())
        except Exception as error:
            findings.violations.append(f"{engine}: {error}")
    return findings


def _strike(run: Run, engine: str, findings: Findings) -> None:
    run.await_merges(1, "the first merge")
    run.head.kill()
    run.head.wait()
    run.start("resume", "r", *(_outside(run) if engine == "ray" else ()))
    run.await_merges(run.merges() + 1, "a merge after: head killed")
    findings.fired[f"{engine}: head killed"] += 1
    since = len(run.events())
    for what, trouble in _TROUBLES[engine].items():
        began, before = time.monotonic(), len(run.events())
        if device := trouble(run, run.place.lab):
            run.await_that(lambda: _left_and_back(run, device, before), f"{device} back: {what}")  # noqa: B023
        run.await_merges(run.merges() + 1, f"a merge after: {what}")
        assert run.head.poll() is None, f"{what}: the head ended"
        findings.fired[f"{engine}: {what}"] += 1
        findings.recoveries_s.append(time.monotonic() - began)
    if engine in ("slurm", "aws"):  # whose machines are told before they are taken
        lost = [e for e in run.events()[since:] if isinstance(e, events.CopyLost)]
        trained = [event for event in lost if event.reason not in _UNTRAINED]
        assert not trained, f"what was told to leave lost steps: {trained}"
        findings.checked += 1


def _state(run: Run) -> RunState:
    state = RunState(run.store.facts.mix.jobs)
    for event in run.events():
        state.apply(event)
    return state


def _left_and_back(run: Run, device: str, since: int) -> bool:
    """Whether it was lost since then, and is there again."""
    lost = (e for e in run.events()[since:] if isinstance(e, events.DeviceLost))
    return any(e.device == device for e in lost) and device not in _state(run).lost_devices


# -- what befalls whom ---------------------------------------------------------------------------


def _limit_first(inventory: Path) -> None:
    """The first node's allocations end after a minute each, from the beginning."""
    text = inventory.read_text()
    inventory.write_text(text.replace('time = "1:00:00"', 'time = "1"', 1))


def _reach_limit(run: Run, lab: Any) -> str:
    return str(lab.names[0])  # by itself


def _preempt(run: Run, lab: Any) -> str:
    """By somebody more important, whose job takes a second."""
    asked = ["--partition=urgent", "--output=/dev/null", "--exclusive", "--wrap=sleep 1"]
    lab.run("sbatch", f"--nodelist={lab.names[3]}", *asked)
    return str(lab.names[3])


def _outside(run: Run) -> tuple[str, ...]:
    """The same cluster, by Ray Client: ``ray://``."""
    lab, path = run.place.lab, run.folder / "client.toml"
    there = f"ray://127.0.0.2:{lab.client_port}"
    path.write_text(lab.inventory.read_text().replace(f"ray:{lab.address}", there))
    return "-n", str(path)


def _kill_actor(run: Run, lab: Any) -> str:
    """As anybody in the cluster may; its workers live on for a while."""
    keepers = set(lab.keepers())
    code = (
        f"import ray; ray.init('{lab.address}', namespace='hadar', log_to_driver=False)\n"
        "from ray.util import list_named_actors\n"
        "ray.kill(ray.get_actor(sorted(list_named_actors())[0]))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    run.await_that(lambda: set(lab.keepers()) - keepers, "a new actor")
    return ""


def _kill_bridge(run: Run, lab: Any) -> str:
    """All streams at once."""
    bridges = list(run.place.streams(run.head.pid))
    assert bridges, "there is a bridge"
    for pid in bridges:
        subprocess.run(["kill", "-9", str(pid)], check=True)
    return ""


def _end_raylet(run: Run, lab: Any) -> str:
    """A machine is gone with all that ran there, and comes back."""
    name = str(lab.names[-1])
    lab.end(name)
    run.await_that(lambda: name in _state(run).lost_devices, f"{name} is missed")
    lab.start(name)
    return name


def _take(notice: str, number: int) -> Trouble:
    def trouble(run: Run, lab: Any) -> str:
        lab.give_notice(lab.names[number], notice)
        return str(lab.names[number])

    return trouble


_TROUBLES: dict[str, dict[str, Trouble]] = {
    "ssh": {},
    "slurm": {"preempted": _preempt, "time limit": _reach_limit},
    "ray": {"actor killed": _kill_actor, "bridge killed": _kill_bridge, "raylet gone": _end_raylet},
    "aws": {"spot notice": _take("spot-notice", 3), "rebalance": _take("rebalance", 1)},
    "kubectl": {},
}


@section("whole mixes", waits=True)
def run_mixes(size: Size) -> Findings:
    """Only in ``--full``: minutes each."""
    whole = Findings()
    for engine in (name for name, troubles in _TROUBLES.items() if troubles):
        add(whole, strike_mix(engine, ROOT / "mixes" / "m3.yaml"))
    return whole
