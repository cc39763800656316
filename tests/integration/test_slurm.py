"""Real Slurm on this computer: runs in allocations, and all that Slurm does to them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core import events
from hadar_cli.core.model import Job, Launch, Mix
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.state import RunState
from hadar_cli.node.agent import processes
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.runs.store import RunFacts, RunStore, find_run, read_journal
from tests.contract.test_executor import collect, order
from tests.support.lab import running
from tests.support.slurm import SlurmLab, running_slurm
from tests.support.sshd import descendants

SUPPORT = Path(__file__).parents[1] / "support"
STEPS = 400
MIX = f"""
slot_s: 2
merge: paper
jobs:
  - {{script: {SUPPORT}/gated_script.py, args: [GATE], steps: {STEPS}, batch_size: 8, count: 3}}
"""
SHOWS_CARD = """
import os, runpy, sys
open(os.environ["HADAR_OUT"] + "/card", "w").write(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
sys.argv = [sys.argv[1]]
runpy.run_path(sys.argv[0])
"""
# A copy that was sent ahead, sent too late, or still starting has no step to lose.
UNTRAINED = {Loss.PROCESS_GONE, Loss.ORDER_REFUSED, Loss.TERMINATED}
PLAIN = SUPPORT / "plain_script.py"


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[SlurmLab]:
    with running_slurm(tmp_path_factory.mktemp("slurm") / "lab", count=2) as lab:
        yield lab


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_head_outlives_its_test() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().kill()


def start(cwd: Path, *words: str, lease_s: float = 20.0) -> subprocess.Popen[str]:
    code = f"from hadar_cli.nodes.session import decisions; decisions.LEASE_S = {lease_s}\n"
    code += "from hadar_cli.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def hadar(cwd: Path, *words: str, expect: int = 0) -> str:
    process = start(cwd, *words)
    _, complaint = process.communicate(timeout=240)
    assert process.returncode == expect, complaint
    return complaint


def wait_until(condition: Callable[[], object], within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def journal(cwd: Path) -> list[events.Event]:
    return read_journal(cwd / "runs" / "r" / "journal.jsonl")


def counted(cwd: Path, kind: type) -> int:
    return sum(isinstance(event, kind) for event in journal(cwd))


def merges_on(cwd: Path, more: int = 1) -> None:
    before = counted(cwd, events.WeightsMerged)
    wait_until(lambda: counted(cwd, events.WeightsMerged) >= before + more, 180.0)


def trainers(workdir: Path, node: str) -> set[int]:
    """Pids of the node's workers that live."""
    notes = (workdir / "runs" / "r" / node).glob("workers/*/worker.json")
    found = (json.loads(note.read_text()).get("worker", (0, 0)) for note in notes)
    return {pid for pid, started in found if processes.is_alive(pid, started)}


def command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def running_jobs(lab: SlurmLab) -> dict[str, str]:
    """Job numbers of allocations that run, by the name of their node."""
    rows = lab.run("squeue", "--noheader", "--states=R", "--format=%N %i").splitlines()
    return dict(row.split() for row in rows)


@pytest.mark.timeout(900)
def test_a_run_survives_what_slurm_and_its_user_do_to_it(lab, tmp_path):
    """kill -9 and resume, preemption, the time limit's signal, cancel: all steps count once."""
    gate = tmp_path / "gate"
    (tmp_path / "mix.yaml").write_text(MIX.replace("GATE", str(gate)))
    one, two = lab.names
    head = start(tmp_path, "run", "mix.yaml", "-n", str(lab.inventory), "--name", "r")
    wait_until((tmp_path / "runs" / "r" / "journal.jsonl").exists)
    wait_until(lambda: counted(tmp_path, events.WeightsMerged) >= 1)
    before = running_jobs(lab)
    assert set(before) == {one, two}
    head.send_signal(signal.SIGKILL)
    head.wait()

    head = start(tmp_path, "resume", "r")
    merged = counted(tmp_path, events.WeightsMerged)
    wait_until(lambda: counted(tmp_path, events.WeightsMerged) > merged)
    assert running_jobs(lab) == before, "the allocations were found again"

    asked = ["--partition=urgent", "--output=/dev/null", f"--nodelist={one}", "--exclusive"]
    lab.run("sbatch", *asked, "--wrap=sleep 1")  # by somebody more important
    wait_until(lambda: absences(tmp_path).get(one))
    wait_until(lambda: one not in absences(tmp_path))
    assert running_jobs(lab)[one] != before[one]
    lab.run("scancel", "--signal=USR1", "--batch", before[two])  # as shortly before its time limit
    wait_until(lambda: absences(tmp_path).get(two))
    wait_until(lambda: two not in absences(tmp_path))
    assert running_jobs(lab)[two] != before[two]
    assert head.poll() is None, head.communicate()[1]
    assert reasons_of_losses(tmp_path) <= UNTRAINED

    kept = running_jobs(lab)[one]
    hadar(tmp_path, "nodes", "drain", "r", two)
    wait_until(lambda: running_jobs(lab) == {one: kept})
    assert head.poll() is None

    hadar(tmp_path, "cancel", "r")
    assert head.wait(60) == 130
    assert lab.jobs() == []
    gate.touch()
    hadar(tmp_path, "resume", "r")
    state = RunState(find_run(tmp_path / "runs", "r").facts.mix.jobs)
    for event in journal(tmp_path):
        state.apply(event)
    state.validate()
    assert [len(job.done) for job in state.jobs.values()] == [STEPS] * 3
    assert lab.jobs() == []
    hadar(tmp_path, "clean", "r", "--yes")
    assert not (lab.workdir / "runs").exists()


@pytest.mark.timeout(900)
def test_a_run_survives_what_befalls_its_workers_agents_and_streams(lab, tmp_path):
    """kill -9 of each, then scancel and requeue by somebody else: all steps count once."""
    gate = tmp_path / "gate"
    (tmp_path / "mix.yaml").write_text(MIX.replace("GATE", str(gate)))
    one, two = lab.names
    head = start(tmp_path, "run", "mix.yaml", "-n", str(lab.inventory), "--name", "r")
    wait_until((tmp_path / "runs" / "r" / "journal.jsonl").exists)
    merges_on(tmp_path)
    before = running_jobs(lab)
    wait_until(lambda: trainers(lab.workdir, one))
    os.kill(min(trainers(lab.workdir, one)), signal.SIGKILL)
    merges_on(tmp_path)
    kill_all(pid for pid in lab.steps() if b"import io,json" in command(pid))  # agents, transfers
    merges_on(tmp_path, 2)
    kill_all(pid for pid in descendants(head.pid) if command(pid).startswith(b"srun\0"))
    merges_on(tmp_path, 2)
    assert running_jobs(lab) == before, "none of this cost an allocation"
    lab.run("scancel", before[two])
    wait_until(lambda: running_jobs(lab).get(two, before[two]) != before[two])
    lab.run("scontrol", "requeue", before[one])  # the one that was to follow takes its place
    wait_until(lambda: running_jobs(lab).get(one, before[one]) != before[one])
    merges_on(tmp_path)
    assert head.poll() is None, head.communicate()[1]
    gate.touch()
    assert head.wait(240) == 0, head.communicate()[1]
    state = RunState(find_run(tmp_path / "runs", "r").facts.mix.jobs)
    for event in journal(tmp_path):
        state.apply(event)
    state.validate()
    assert [len(job.done) for job in state.jobs.values()] == [STEPS] * 3
    assert lab.jobs() == []
    hadar(tmp_path, "clean", "r", "--yes")
    assert not (lab.workdir / "runs").exists()


def kill_all(pids: Iterable[int]) -> None:
    found = list(pids)
    assert found
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def absences(cwd: Path) -> dict[str, Absence]:
    state = RunState(find_run(cwd / "runs", "r").facts.mix.jobs)
    for event in journal(cwd):
        state.apply(event)
    return {device: event.reason for device, event in state.lost_devices.items()}


def reasons_of_losses(cwd: Path) -> set[Loss]:
    """Why copies were lost once the second head had its own."""
    starts = [event.t for event in journal(cwd) if isinstance(event, events.HeadStarted)]
    merges = (event.t for event in journal(cwd) if isinstance(event, events.WeightsMerged))
    since = next(t for t in merges if t > starts[1])
    lost = [event for event in journal(cwd) if isinstance(event, events.CopyLost)]
    return {event.reason for event in lost if event.t > since}


@pytest.mark.parametrize(
    ("change", "why", "fix"),
    [
        ('partition = "labs"', "Invalid partition", "did you mean 'lab'?"),
        ('gres = "gpu:h100:8"', "not available", "gpu:titan_rtx:1 with 16 CPUs"),
        ('partition = "brief"', "never start", "scontrol show partition"),
        ('bin = "/nowhere"', "No such file", "slurm.bin"),
    ],
)
def test_what_can_never_start_is_refused_before_anything_is(lab, tmp_path, change, why, fix):
    (tmp_path / "mix.yaml").write_text(MIX)
    fields = {"time": '"10"', "conf": f'"{lab.conf}"', "partition": '"lab"'}
    name, _, value = change.partition(" = ")
    text = "\n".join(f"{key} = {said}" for key, said in {**fields, name: value}.items())
    (tmp_path / "nodes.toml").write_text(f'[slurm]\nname = "a"\n{text}\n')
    complaint = hadar(tmp_path, "run", "mix.yaml", expect=2)
    assert why in complaint and fix in complaint
    assert lab.jobs() == [] and not (tmp_path / "runs").exists()


def test_allocations_that_end_at_once_end_the_run_with_their_last_words(lab, tmp_path):
    (tmp_path / "mix.yaml").write_text(MIX)
    text = lab.inventory.read_text()
    python = next(line for line in text.splitlines() if line.startswith("python"))
    broken = text.replace(python, 'python = "/nowhere/python"').replace(
        str(lab.workdir), str(tmp_path / "workdir")
    )
    (tmp_path / "nodes.toml").write_text(broken)
    complaint = hadar(tmp_path, "run", "mix.yaml", "--name", "r", expect=3)
    assert "/nowhere/python" in complaint and "ended at once" in complaint
    assert lab.jobs() == []


def test_the_head_may_be_far_from_the_login_node(lab, tmp_path):
    """It reaches it by SSH, and the copy is shown the allocation's own card."""
    with running(tmp_path / "ssh", count=1) as login:
        [way] = read_nodes(login.inventory)
        node = replace(
            read_nodes(lab.inventory)[0],
            host=way.host,
            port=way.port,
            user=way.user,
            identity_file=way.identity_file,
            known_hosts=way.known_hosts,
            workdir=str(tmp_path / "workdir"),
            emulated_speed=None,  # a real card, as far as anybody here can tell
        )
        script = tmp_path / "shows_card.py"
        script.write_text(SHOWS_CARD)
        job = Job(0, "card", 1000, 8, launch=Launch(script=str(script), args=(str(PLAIN),)))
        store = RunStore.create(tmp_path, RunFacts("far", Mix("m", (job,)), (node,), "", ""))
        connections = connect([node], store)
        executor = NodeExecutor(connections, 1, 0.0)
        try:
            executor.adopt([])
            executor.start(order("a", (0, 20), job=job, device=node.name))
            [report] = collect(executor, 1)
            assert report.result.steps == 20
            [(name, size, _)], _ = connections[0].list_out(0)
            assert (name, size) == ("card", 1)
        finally:
            executor.stop(1.0)
            connections[0].give_back()
            connections[0].close()
    assert (tmp_path / "workdir/runs/far" / node.name / "out/0/card").read_text() == "0"
    assert lab.jobs() == []


def test_the_lab_s_script_makes_and_removes_such_a_cluster(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "lab"
    where = ["--dir", str(tmp_path / "lab")]
    words = [sys.executable, str(script), *where]
    up = subprocess.run(
        [*words, "up", "--engine", "slurm", "--nodes", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "titan-rtx" in up.stdout and "hadar check" in up.stdout
    status = subprocess.run([*words, "status"], capture_output=True, text=True, check=True)
    assert "runs, pid" in status.stdout
    lab = SlurmLab.open(tmp_path / "lab")
    lab.run("sbatch", "--output=/dev/null", "--wrap=sleep 600")
    wait_until(lambda: lab.steps() and running_jobs(lab))
    left = [(pid, processes.start_time(pid) or 0) for pid in lab.steps()]
    subprocess.run([*words, "down"], capture_output=True, check=True)
    assert processes.wait_gone(left, 10.0), "jobs outlive no lab"
    assert not (tmp_path / "lab").exists()
