"""A real Ray cluster on this computer: runs in actors, and all that befalls them and their head."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.core import events
from hadar_cli.core.state import RunState
from hadar_cli.node.agent import processes
from hadar_cli.ray_cluster.transport import RayTransport, keeper_name
from hadar_cli.runs.store import find_run
from hadar_cli.transports import label_of
from hadar_cli.visits.inspection import inspect
from tests.integration.test_slurm import (
    MIX,
    STARTED,
    STEPS,
    command,
    hadar,
    journal,
    merges_on,
    start,
    trainers,
    wait_until,
)
from tests.support.raylets import RayLab, running_ray
from tests.support.sshd import descendants
from tests.support.strays import all_gone, living

CLIENT = "import ray, sys; ray.kill(ray.get_actor(sys.argv[2]))"


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[RayLab]:
    with running_ray(tmp_path_factory.mktemp("ray") / "lab", count=2, has_client=True) as lab:
        yield lab
        family = {pid for node in lab.nodes for pid in (node.pid, *descendants(node.pid))}
        known = [(pid, processes.start_time(pid) or 0) for pid in family | set(lab.processes())]
    assert not [pid for pid, started in known if processes.is_alive(pid, started)]
    assert not lab.directory.exists() and not Path(lab.temp).exists()


@pytest.fixture(autouse=True)
def no_head_outlives_its_test() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().kill()


def words_of_a_run(lab: RayLab) -> tuple[str, ...]:
    return ("run", "mix.yaml", "-n", str(lab.inventory), "--name", "r")


def from_outside(lab: RayLab, path: Path) -> Path:
    """The same machines, reached by Ray Client."""
    text = lab.inventory.read_text()
    path.write_text(text.replace(f"ray:{lab.address}", f"ray://127.0.0.2:{lab.client_port}"))
    return path


def kill_actor(lab: RayLab, name: str) -> None:
    """As anybody in the cluster may."""
    code = (
        f"import ray; ray.init('{lab.address}', namespace='hadar', log_to_driver=False)\n{CLIENT}"
    )
    subprocess.run([sys.executable, "-c", code, "-", name], check=True, capture_output=True)


def kill_bridge(head: int) -> None:
    """All streams at once."""
    [bridge] = [pid for pid in descendants(head) if b"bridge" in command(pid)]
    os.kill(bridge, signal.SIGKILL)


@pytest.mark.timeout(900)
def test_a_run_survives_what_befalls_actors_streams_workers_and_its_head(lab, tmp_path):
    """The last head comes from outside, by Ray Client: ``ray://``."""
    gate = tmp_path / "gate"
    (tmp_path / "mix.yaml").write_text(MIX.replace("GATE", str(gate)))
    one, two = lab.names
    head = start(tmp_path, *words_of_a_run(lab))
    wait_until((tmp_path / "runs" / "r" / "journal.jsonl").exists)
    merges_on(tmp_path)
    keepers = set(lab.keepers())
    assert len(keepers) == 2

    wait_until(lambda: trainers(lab.workdir, one))
    os.kill(min(trainers(lab.workdir, one)), signal.SIGKILL)
    merges_on(tmp_path)
    for keeper in keepers:  # agents and transfers; workers are no longer its children
        for pid in descendants(keeper):
            os.kill(pid, signal.SIGKILL)
    merges_on(tmp_path, 2)
    kill_bridge(head.pid)
    merges_on(tmp_path, 2)
    assert set(lab.keepers()) == keepers, "the keepers were found again"

    wait_until(lambda: trainers(lab.workdir, two))
    label = label_of(find_run(tmp_path / "runs", "r"))
    kill_actor(lab, keeper_name(label, two))
    wait_until(lambda: len(set(lab.keepers()) - keepers) == 1)
    merges_on(tmp_path, 2)
    assert head.poll() is None, head.communicate()[1]
    keepers = set(lab.keepers())
    head.send_signal(signal.SIGKILL)
    head.wait()

    inventory = from_outside(lab, tmp_path / "client.toml")
    head = start(tmp_path, "resume", "r", "-n", str(inventory))
    merges_on(tmp_path)
    kill_bridge(head.pid)  # joining the cluster anew takes longer here
    merges_on(tmp_path)
    assert head.poll() is None, head.communicate()[1]
    assert set(lab.keepers()) == keepers, "the keepers were found again, by Ray Client"
    gate.touch()
    assert head.wait(240) == 0, head.communicate()[1]
    assert lab.keepers() == [], "the end of a run is the end of its actors"
    state = RunState(find_run(tmp_path / "runs", "r").facts.mix.jobs)
    for event in journal(tmp_path):
        state.apply(event)
    state.validate()
    assert [len(job.done) for job in state.jobs.values()] == [STEPS] * 3
    assert len({e.epoch for e in journal(tmp_path) if isinstance(e, events.HeadStarted)}) == 2
    hadar(tmp_path, "clean", "r", "--yes")
    assert not (lab.workdir / "runs").exists()
    assert not living(lab.workdir)


@pytest.mark.timeout(600)
def test_workers_of_a_killed_actor_and_head_end_with_the_lease(lab, tmp_path):
    (tmp_path / "mix.yaml").write_text(MIX.replace("GATE", str(tmp_path / "gate")))
    head = start(tmp_path, *words_of_a_run(lab), lease_s=5.0)
    wait_until(lambda: all(trainers(lab.workdir, name) for name in lab.names))
    head.send_signal(signal.SIGKILL)
    head.wait()
    for keeper in lab.keepers():
        os.kill(keeper, signal.SIGKILL)
    assert living(lab.workdir), "an actor's end is not the end of what it started"
    assert all_gone(lab.workdir, 120.0)
    hadar(tmp_path, "clean", "r", "--yes")
    wait_until(lambda: lab.keepers() == [])  # that of the visit was told to end
    assert not (lab.workdir / "runs").exists()


def test_what_ray_can_never_give_is_refused_before_anything_is_started(lab, tmp_path):
    (tmp_path / "mix.yaml").write_text(MIX)
    entry = f'[[node]]\nname = "a"\nhost = "ray:{lab.address}"\nray = {{ num_gpus = 8 }}\n'
    (tmp_path / "nodes.toml").write_text(entry)
    complaint = " ".join(hadar(tmp_path, "run", "mix.yaml", expect=2).split())
    assert "0 of 1 machines have 8 GPU: t4 (127.0.0.2) has 4 CPU" in complaint
    assert "ray status" in complaint
    assert lab.keepers() == [] and not (tmp_path / "runs").exists()


def test_a_cluster_that_is_not_there_is_told_with_what_to_do(tmp_path):
    (tmp_path / "mix.yaml").write_text(MIX)
    (tmp_path / "nodes.toml").write_text('[ray]\nname = "a"\nhost = "ray:127.0.0.2:1"\n')
    complaint = " ".join(hadar(tmp_path, "run", "mix.yaml", expect=2).split())
    assert "no Ray at ray:127.0.0.2:1" in complaint and "ray start --head" in complaint
    _, checked = inspect(read_nodes(tmp_path / "nodes.toml"), tmp_path, 60.0)
    [seen] = checked
    assert "no Ray at ray:127.0.0.2:1" in seen.problems[0].what
    assert "ray start --head" in seen.problems[0].fix


def test_a_copy_is_shown_the_actor_s_own_card(lab):
    """Ray numbers the cards of an actor; the command that it starts sees no others."""
    node = replace(read_nodes(lab.inventory)[0], name="card")
    transport = RayTransport(node, "cards", str(lab.workdir / "runs" / "cards"))
    try:
        stream = transport.open("sh -c 'echo $CUDA_VISIBLE_DEVICES; command -v python3'")
        told = b""
        while piece := stream.read(1 << 16):
            told += piece
    finally:
        transport.close()
        transport.give_back()
    card, python = told.decode().split()
    assert card == "0"
    assert Path(python).parent == Path(sys.executable).parent
