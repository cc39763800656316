"""The lab itself: real servers come up, behave as asked, and leave nothing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.node.agent import processes
from tests.support.lab import PROFILES, Lab, LabError, running

SCRIPT = Path(__file__).parents[2] / "scripts" / "lab"


def ssh(lab, name, command, **options):
    words = lab.ssh(name, command)
    return subprocess.run(words, capture_output=True, text=True, timeout=30, **options)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("with space") / "lab", 2) as lab:
        yield lab


def test_each_node_has_a_home_of_its_own(lab):
    homes = [ssh(lab, name, "echo ~; pwd; touch mine").stdout.split("\n")[:2] for name in lab.names]
    assert homes == [[str(node.home)] * 2 for node in lab.nodes]
    assert all((node.home / "mine").exists() for node in lab.nodes)


def test_sessions_run_in_the_chosen_shell_after_its_start_up_files(lab):
    name = lab.names[0]
    (lab[name].home / ".bashrc").write_text("echo noise\n")
    assert re.fullmatch(r"noise\n\d.*\n", ssh(lab, name, "echo $BASH_VERSION").stdout)
    lab.use_shell(name, "dash")
    assert ssh(lab, name, "echo $0").stdout.endswith("/dash\n")
    lab.use_shell(name, "bash")
    (lab[name].home / ".bashrc").unlink()


def test_a_changed_host_key_is_noticed_by_ssh(lab):
    name = lab.names[0]
    before = lab[name].host_key()
    lab.change_host_key(name)
    assert lab[name].host_key() != before
    refused = ssh(lab, name, "echo in")
    assert (refused.returncode, refused.stdout) == (255, "")
    lab.trust()
    assert ssh(lab, name, "echo in").stdout == "in\n"


def test_a_stopped_node_refuses_and_comes_back_on_its_port(lab):
    name = lab.names[1]
    lab.stop(name)
    assert "refused" in ssh(lab, name, "echo in").stderr
    lab.start(name)
    assert ssh(lab, name, "echo in").stdout == "in\n"


def test_stopping_a_node_ends_what_was_started_through_it(lab):
    name = lab.names[1]
    ssh(lab, name, "setsid sleep 600 </dev/null >/dev/null 2>&1 & true")
    assert len(lab[name].sessions()) == 1
    assert not lab[lab.names[0]].sessions()
    lab.stop(name)
    assert not lab[name].sessions()
    lab.start(name)


def test_its_inventory_reads_as_the_profile(tmp_path):
    with running(tmp_path / "lab", 7, "aws") as lab:
        nodes = read_nodes(lab.inventory)
        assert [node.name for node in nodes][-2:] == ["v100-r2", "k80-1-r2"]
        assert nodes[0].price_per_hour == PROFILES["aws"][0].price_per_hour
        assert sum(node.emulated_speed for node in nodes) < 1.6
        assert {node.port for node in nodes} == {node.port for node in lab.nodes}
        assert nodes[0].known_hosts == str(lab.known_hosts)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_machine_with_two_cores_keeps_the_pace_of_a_profile(profile):
    assert sum(model.speed for model in PROFILES[profile]) <= 1.6


def test_the_script_starts_shows_and_removes_it(tmp_path):
    def run(*words):
        done = subprocess.run(
            [SCRIPT, "--dir", tmp_path / "lab", *words], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout + done.stderr

    assert run("status")[0] == 1
    code, said = run("up", "--nodes", "2")
    lab = Lab.open(tmp_path / "lab")
    servers = [(node.pid, node.started) for node in lab.nodes]
    try:
        assert code == 0 and "nodes.toml" in said
        assert all(processes.is_alive(*server) for server in servers)
        assert run("up")[0] == 1
        ssh(lab, "t4", "setsid sleep 600 </dev/null >/dev/null 2>&1 & true")
        strays = lab["t4"].sessions()
        os.kill(lab["titan-rtx"].pid, signal.SIGSTOP)
    finally:
        code, _ = run("down")
    assert code == 0 and not (tmp_path / "lab").exists()
    assert not any(processes.is_alive(*server) for server in servers)
    assert strays and not any(processes.start_time(pid) for pid in strays)


def test_it_takes_no_directory_that_holds_something_else(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(LabError, match="not empty"):
        Lab.up(tmp_path)
    with pytest.raises(LabError, match="no lab"):
        Lab.open(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_it_needs_nothing_installed():
    code = f"import sys; sys.path.insert(0, {str(SCRIPT.parents[1])!r}); import tests.support.lab"
    bare = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", code]
    assert subprocess.run(bare, check=False).returncode == 0
