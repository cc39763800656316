"""Real trainings: a few steps on every device, then a run whose head is killed and comes back."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hadar_cli import __version__
from hadar_cli.core.events import DeviceLost, WeightsMerged
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.runs.store import RunFacts, RunStore, read_journal, read_state
from hadar_cli.selftest.findings import ALL, Finding
from hadar_cli.trial.speeds import Measured, measure, measuring, train_exactly, train_together
from hadar_cli.visits.visit import DEADLINE_S, on_all, tidy, visiting
from hadar_cli.workloads import CATALOG

_WORKLOAD = CATALOG["weather"]
_MANY_STEPS = 10**6
_EXACT_STEPS = 16
_TRAIN_S = 120.0  # for both, on all devices at once
_RUN_S = 10.0  # of training, by the speeds measured; long enough to be killed in the middle
_SLOT_S = 3.0
_HEAD_S = 120.0  # for each of the two heads, beside
_SLOWER = 4.0  # times as long as all steps take at the speeds measured
_GONE_S = 20.0
_LOOK_EVERY_S = 0.05
_RUN, _LEFT = "kill and resume", "left running"
_FIX = "send the file of this self-test to the maintainers"
_HEAD = [sys.executable, "-m", "hadar_cli.cli.main"]


class _TooLateError(Exception):
    pass


def train(nodes: Sequence[Node], devices: Sequence[str]) -> tuple[list[Finding], float]:
    """Whether a worker on every device does just its steps; and their steps a second, in all."""
    job = _job(_MANY_STEPS)
    give_up_at = time.monotonic() + _TRAIN_S

    def tick() -> None:
        if time.monotonic() > give_up_at:
            raise _TooLateError

    speeds: list[Measured] = []
    exact: list[Measured] = []
    shared: dict[str, Measured | None] = {}  # by node
    try:
        with measuring(nodes, [job]) as executor:
            speeds = measure(executor, job, devices, tick)
            ready = [one.device for one in speeds if one.steps_per_s]
            exact = train_exactly(executor, job, ready, _EXACT_STEPS, tick)
            for node in nodes:
                gang = [device.name for device in node.devices if device.name in ready]
                if len(gang) > 1:
                    shared[node.name] = None
                    shared[node.name] = train_together(executor, job, gang, _EXACT_STEPS, tick)
    except _TooLateError:
        pass
    told = {one.device: one for one in (*speeds, *exact)}
    trained = {one.device for one in exact}
    findings = [_trained(device, told.get(device), device in trained) for device in devices]
    findings += [_shared(node, one) for node, one in shared.items()]
    return findings, sum(one.steps_per_s or 0.0 for one in speeds)


def _trained(device: str, one: Measured | None, is_exact: bool) -> Finding:
    if one and one.steps_per_s and is_exact and not one.problem:
        what = f"a forked worker did {_EXACT_STEPS} of {_EXACT_STEPS} steps"
        return Finding(device, "training", True, f"{what}, at {one.steps_per_s:.3g}/s")
    what = (one and one.problem) or f"it was not done within {_TRAIN_S:.0f} s"
    return Finding(device, "training", False, what, "see its words; hadar check tells more")


def _shared(node: str, one: Measured | None) -> Finding:
    """Of devices that exchange gradients at every step: by NCCL, where all are NVIDIA's."""
    if one and one.steps_per_s and not one.problem:
        what = f"its devices shared each of {_EXACT_STEPS} steps, at {one.steps_per_s:.3g}/s"
        return Finding(node, "shared steps", True, what)
    what = (one and one.problem) or f"it was not done within {_TRAIN_S:.0f} s"
    return Finding(
        node, "shared steps", False, what, "mode: merge in the mix does without; " + _FIX
    )


@dataclass(frozen=True, slots=True)
class _Killed:
    """A run whose first head was killed in the middle, and why that could not be tried."""

    steps: int = 0
    problem: str = ""
    was_over: bool = False


def kill_and_resume(
    nodes: Sequence[Node], runs: Path, steps_per_s: float, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """A real run over all nodes: its head is killed after the first merge, and another goes on."""
    job = _job(max(4 * _EXACT_STEPS, round(_RUN_S * steps_per_s)))
    patience_s = _HEAD_S + _SLOWER * job.target_steps / steps_per_s
    name = f"selftest-{secrets.token_hex(4)}"
    mix = Mix("selftest", (job,), slot_s=_SLOT_S)
    token = secrets.token_hex(8)
    store = RunStore.create(runs, RunFacts(name, mix, tuple(nodes), "", __version__, token=token))
    try:
        tell("training a small run, to kill its head in the middle")
        killed = _kill(store, patience_s)
        if killed.problem:
            holds = None if killed.was_over else False
            yield Finding(ALL, _RUN, holds, killed.problem, "" if killed.was_over else _FIX)
            return
        tell(f"killed at step {killed.steps:,}; resuming it")
        yield _resume(store, killed, patience_s)
        yield from _lost_devices(store)
        yield from find_left_running(nodes, store)
    finally:
        remove(nodes, store)


def _kill(store: RunStore, patience_s: float) -> _Killed:
    head = _start_head(store)
    give_up_at = time.monotonic() + patience_s
    try:
        while head.poll() is None and time.monotonic() < give_up_at:
            if any(isinstance(event, WeightsMerged) for event in read_journal(store.journal_path)):
                break
            time.sleep(_LOOK_EVERY_S)
        else:
            why = f"ended with {head.returncode}" if head.poll() is not None else "merged nothing"
            return _Killed(problem=f"its first head {why} within {patience_s:.0f} s{_words(store)}")
    finally:
        head.kill()
        head.wait()
    state = read_state(store)
    steps = sum(len(job.done) for job in state.jobs.values())
    if state.finished or not state.unfinished:
        return _Killed(steps, "not tried: the run was over before it could be killed", True)
    return _Killed(steps)


def _resume(store: RunStore, killed: _Killed, patience_s: float) -> Finding:
    head = _start_head(store)
    try:
        code = head.wait(patience_s)
    except subprocess.TimeoutExpired:
        done = sum(len(job.done) for job in read_state(store).jobs.values())
        what = f"not at its end {patience_s:.0f} s after resuming: {done:,} steps done"
        return Finding(ALL, _RUN, False, what, _FIX)
    finally:
        head.kill()
        head.wait()
    state = read_state(store)
    [job] = state.jobs.values()
    done, wanted = len(job.done), job.job.target_steps
    what = f"killed at step {killed.steps:,}, resumed, {done:,} of {wanted:,} done at the end"
    if code == 0 and state.finished and done == wanted:
        return Finding(ALL, _RUN, True, f"{what}, each once")
    return Finding(ALL, _RUN, False, f"{what}; exit code {code}{_words(store)}", _FIX)


def _lost_devices(store: RunStore) -> Iterator[Finding]:
    """The others may have done its steps: what a device could not do is told all the same."""
    lost = {e.device: e for e in read_journal(store.journal_path) if isinstance(e, DeviceLost)}
    for device, event in lost.items():
        holds = None if event.reason.is_polite else False
        yield Finding(device, _RUN, holds, f"it was lost on the way: {event.why}", _FIX)


def find_left_running(nodes: Sequence[Node], store: RunStore) -> Iterator[Finding]:
    run, runs = store.directory.name, store.directory.parent

    def count(node: Node) -> int:
        give_up_at = time.monotonic() + _GONE_S
        with visiting(node, runs) as visit:
            while left := visit.leftovers(run).processes:
                if time.monotonic() > give_up_at:
                    break
                time.sleep(0.5)
        return left

    for node, left in on_all(nodes, count, _GONE_S + DEADLINE_S):
        if left == 0:
            yield Finding(node.name, _LEFT, True, "no process of the run is left there")
        elif isinstance(left, Exception):
            yield Finding(node.name, _LEFT, False, str(left), "see hadar check")
        else:
            what = f"processes of the run that were left there, and are ended now: {left}"
            yield Finding(node.name, _LEFT, False, what, _FIX)


def remove(nodes: Sequence[Node], store: RunStore) -> None:
    """Takes away all that the run put on the nodes."""
    run = store.directory.name
    list(tidy(nodes, store.directory.parent, "remove", run, [run], DEADLINE_S))


def _job(steps: int) -> Job:
    return Job(
        id=0,
        name="selftest",
        target_steps=steps,
        batch_size=_WORKLOAD.batch_size["tiny"],
        model_size=_WORKLOAD.model_size["tiny"],
        dataset_size=_WORKLOAD.dataset_size,
        workload=_WORKLOAD.name,
        launch=Launch(workload=_WORKLOAD.name, preset="tiny"),
    )


def _start_head(store: RunStore) -> subprocess.Popen[bytes]:
    """A head in a process of its own, as a user would start it."""
    runs, run = store.directory.parent, store.directory.name
    words = ["resume", run, "--runs-dir", str(runs), "--no-live"]
    env = {**os.environ, "PYTHONSAFEPATH": "1"}  # modules of the current folder are not ours
    with (store.directory / "head.log").open("ab") as log:
        return subprocess.Popen(
            [*_HEAD, *words], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _words(store: RunStore) -> str:
    lines = (store.directory / "head.log").read_text(errors="replace").strip().splitlines()
    return f": {' / '.join(lines[-3:])}" if lines else ""
