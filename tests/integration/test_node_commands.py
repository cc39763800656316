"""The commands that look after machines, against real ones: this computer and the lab's."""

import getpass
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.availability import Unavailable
from hadar_cli.core.model import Gpu, Job, Mix, Node
from hadar_cli.node.agent import processes
from hadar_cli.node.lease import Lease
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.visits.inspection import find_objections
from tests.support.lab import running

PATIENT = ("--timeout", "90")  # where the time that torch takes to import does not matter


@pytest.fixture
def hadar(tmp_path):
    """Runs the command line in an empty directory; gives exit code, stdout and stderr."""

    def run(*words, stdin=""):
        command = [sys.executable, "-m", "hadar_cli.cli.main", *map(str, words)]
        env = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, input=stdin, capture_output=True, text=True, timeout=120
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


def write_nodes(path, *tables):
    path.write_text("\n".join(f"[[node]]\n{table}\n" for table in tables))


# -- this computer -------------------------------------------------------------------------------


def test_check_finds_this_computer_usable_though_not_its_gpus(hadar, tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho no driver\nexit 9\n")
    smi.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_nodes(tmp_path / "nodes.toml", 'name = "me"\nhost = "local"')
    code, out, _ = hadar("check", "--json", *PATIENT)
    [found] = json.loads(out)
    assert code == 0
    assert found["usable"] and not found["problems"]
    assert found["torch"]["torch"] and found["torch"]["safetensors"]
    assert found["facts"]["disk"]["free_bytes"] > 0
    assert abs(found["clock_skew_s"]) < 1
    assert "it would train on its CPU: nvidia-smi: no driver" in found["notes"]


def test_check_prints_the_fix_and_goes_on_to_the_others(hadar, tmp_path):
    bare = tmp_path / "bare-python"  # an interpreter without torch
    bare.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n')
    bare.chmod(0o700)
    write_nodes(
        tmp_path / "nodes.toml",
        'name = "good"\nhost = "local"',
        f'name = "bare"\nhost = "local"\npython = "{bare}"',
        'name = "gone"\nhost = "local"\npython = "/no/such/python"',
    )
    code, out, _ = hadar("check", *PATIENT)
    assert code == 3
    assert "1 of 3 machines can be used" in out
    assert "pip install torch safetensors there" in out
    assert "name a Python that is there" in out


def test_a_busy_gpu_is_left_alone_and_a_free_one_is_not(tmp_path, monkeypatch):
    """No GPU here: an executable that answers as nvidia-smi does stands for two of them."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"""#!/bin/sh
case "$1" in
*query-gpu*)
    echo "0, GPU-a, NVIDIA GeForce RTX 3090, 24576, 12288, 4, 00000000:01:00.0"
    echo "1, GPU-b, NVIDIA GeForce RTX 3090, 24576, 300, 4, 00000000:02:00.0";;
*) echo "GPU-a, {os.getpid()}, 12000";;
esac
"""
    )
    smi.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rtx = Gpu("RTX 3090", 71, 24)
    node = Node("lab", "local", gpus=(rtx, rtx))
    me = getpass.getuser()
    assert find_objections([node], tmp_path, 30) == {
        "lab:0": Unavailable(f"{me} holds 50% of its memory, more than 10%")
    }


# -- machines reached by SSH ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("ssh") / "lab", 3) as lab:
        yield lab


@pytest.fixture
def bare(lab, tmp_path):
    """The lab's inventory with a Python that has no torch to import: it answers at once."""
    path = tmp_path / "nodes.toml"
    text = lab.inventory.read_text()
    assert sys.executable in text
    path.write_text(text.replace(sys.executable, sys._base_executable))
    return path


def test_check_measures_a_healthy_node(hadar, lab, tmp_path):
    inventory = tmp_path / "one.toml"
    head, _, nodes = lab.inventory.read_text().partition("[[node]]")
    inventory.write_text(f"{head}[[node]]{nodes.partition('[[node]]')[0]}")
    code, out, _ = hadar("check", "-n", inventory, "--json", *PATIENT)
    [found] = json.loads(out)
    assert (code, found["problems"]) == (0, [])
    assert found["usable"]
    assert found["round_trip_s"] > 0
    assert found["up_bytes_per_s"] > 0 and found["down_bytes_per_s"] > 0
    assert found["facts"]["disk"]["path"].startswith(str(lab.nodes[0].home))
    assert found["leftovers"]["processes"] == 0


def test_a_hung_a_stopped_and_a_good_node_are_told_apart(hadar, lab, bare):
    hung, stopped, good = lab.names
    lab.pause(hung)
    lab.stop(stopped)
    try:
        code, out, _ = hadar("check", "-n", bare, "--json", "--timeout", "8")
    finally:
        lab.unpause(hung)
        lab.start(stopped)
    found = {node["node"]: node for node in json.loads(out)}
    assert code == 3
    assert found[hung]["problems"][0]["what"] == "no answer within 8 s; it was connecting"
    assert found[stopped]["problems"][0]["fix"] == "start its SSH server, or correct host and port"
    assert found[good]["facts"]["python"]
    assert "torch" in found[good]["problems"][0]["what"]


def test_a_changed_host_key_is_refused_with_both_fingerprints(hadar, lab, bare):
    name = lab.names[0]
    before = fingerprint(lab[name])
    lab.change_host_key(name)
    only(bare, lab[name].port)
    try:
        code, out, _ = hadar("check", "-n", bare)
        assert code == 4
        words = " ".join(out.split())
        assert "CHANGED" in words and before in words and fingerprint(lab[name]) in words
        known = lab.known_hosts.read_text()
        code, _, err = hadar("nodes", "trust", "-n", bare, "--yes")
        assert code == 4 and "CHANGED" in err
        assert lab.known_hosts.read_text() == known
    finally:
        lab.trust()


def test_trust_records_exactly_the_key_it_showed(hadar, lab, bare, tmp_path):
    node = lab.nodes[0]
    known_hosts = tmp_path / "new" / "known_hosts"
    text = only(bare, node.port).replace(str(lab.known_hosts), str(known_hosts))
    bare.write_text(text)
    code, out, _ = hadar("check", "-n", bare)
    assert code == 4 and "is not known" in out
    code, out, err = hadar("nodes", "trust", "-n", bare)
    assert (code, known_hosts.exists()) == (2, False)  # nobody was there to ask
    assert fingerprint(node) in out and "--yes" in err
    code, out, _ = hadar("nodes", "trust", node.name, "-n", bare, "--yes")
    assert code == 0 and fingerprint(node) in out
    assert known_hosts.read_text() == f"[127.0.0.1]:{node.port} {node.host_key()}\n"
    assert known_hosts.stat().st_mode & 0o777 == 0o600
    code, out, _ = hadar("check", "-n", bare, "--json")
    assert json.loads(out)[0]["facts"]["python"]


def fingerprint(node):
    words = ["ssh-keygen", "-lf", str(node.path / "host_key.pub")]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]


def only(inventory, port):
    """Leaves in the inventory the node with this port."""
    head, *nodes = inventory.read_text().split("[[node]]")
    text = head + "".join(f"[[node]]{node}" for node in nodes if f"port = {port}\n" in node)
    inventory.write_text(text)
    return text


# -- what runs leave there -----------------------------------------------------------------------


@pytest.fixture
def run(lab, bare, tmp_path):
    """A run as its head and its nodes know it, with a copy left over on the first node."""
    mix = Mix("m", (Job(0, "weather", 100, 8),))
    facts = RunFacts("r1", mix, read_nodes(bare), "2026-01-01", "0")
    store = RunStore.create(tmp_path / "runs", facts)
    home = lab.nodes[0].home
    worker = home / ".hadar" / "runs" / "r1" / lab.names[0] / "workers" / "0-0-1-e1"
    worker.mkdir(parents=True, mode=0o700)
    for directory in (home / ".hadar", home / ".hadar" / "runs"):
        directory.chmod(0o700)
    (worker / "log").write_text("epoch 1\r\x1b[31mepoch 2\x1b[0m\n  indented\x07\n")
    mark = f"HADAR_WORKER={worker.parents[1]}/0-0-1-e1"
    start = f"{mark} setsid sleep 600 </dev/null >/dev/null 2>&1 & true"
    subprocess.run(lab.ssh(lab.names[0], start), check=True, timeout=30)
    while not (strays := processes.tagged(*mark.split("="))):
        time.sleep(0.01)
    yield store, strays[0]
    lab.stop(lab.names[0])
    lab.start(lab.names[0])
    shutil.rmtree(home / ".hadar", ignore_errors=True)


def test_clean_leaves_zero_bytes_and_no_process(hadar, lab, bare, run, tmp_path):
    _, stray = run
    code, _, err = hadar("clean", "-n", bare)
    assert code == 2 and "--yes" in err and processes.start_time(stray)
    code, out, _ = hadar("clean", "-n", bare, "--yes", "--json")
    found = json.loads(out)
    assert code == 0 and set(found) == set(lab.names)
    first = found[lab.names[0]]
    assert first["before"]["processes"] == 1 and first["before"]["bytes"] > 1000
    assert all(f["after"] == {"bytes": 0, "processes": 0, "code_bytes": 0} for f in found.values())
    assert processes.start_time(stray) is None
    assert [list(node.home.iterdir()) for node in lab.nodes] == [[], [], []]
    assert (tmp_path / "runs" / "r1" / "run.json").exists()


def test_clean_keeps_away_from_a_run_at_work(hadar, lab, bare, run):
    store, stray = run
    with store.locked():
        for words in (("r1",), ("-n", bare)):
            code, _, err = hadar("clean", *words, "--yes")
            assert code == 5 and "hadar cancel r1" in err
    lease = lab.nodes[0].home / ".hadar" / "runs" / "r1" / lab.names[0] / "lease"
    Lease(lease).renew()
    code, _, err = hadar("clean", "-n", bare, "--runs-dir", "another", "--yes")
    assert code == 3 and "another hadar uses this node, for run r1" in err
    assert processes.start_time(stray)


def test_cancel_ends_what_a_dead_head_left(hadar, run):
    _, stray = run
    code, _, err = hadar("cancel")
    assert (code, processes.start_time(stray)) == (0, None)
    assert "1 processes, 0 left" in err and "hadar resume r1" in err


def test_cancel_winds_up_the_head_that_drives_the_run(hadar, run):
    store, _ = run
    source = (
        "import signal; from pathlib import Path; from hadar_cli.runs.store import RunStore\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        f"with RunStore(Path({str(store.directory)!r})).locked():\n"
        "    print('locked', flush=True); signal.sigwait([signal.SIGTERM])"
    )
    head = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert head.stdout.readline() == b"locked\n"
    code, _, err = hadar("cancel", "r1")
    assert (code, head.wait(10)) == (0, 0)
    assert f"asked process {head.pid} to wind up" in err


def test_logs_are_read_from_the_node_and_made_harmless(hadar, lab, run):
    code, out, _ = hadar("logs", "weather", "--node", lab.names[0])
    assert code == 0
    assert out.splitlines() == [f"── {lab.names[0]} · 0-0-1-e1 ", "epoch 2", "  indented"]
    assert hadar("logs", "r1", "weather", "--node", lab.names[0])[1] == out
    code, _, err = hadar("logs", "wether")
    assert code == 2 and "did you mean 'weather'?" in err
