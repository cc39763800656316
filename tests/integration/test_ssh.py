"""Nodes behind real SSH servers: odd shells, wrong keys, cut connections, jump hosts."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.core.reasons import Absence
from hadar_cli.engine.ports import Failed, HandedIn, NodeBack, NodeGone, Progressed, Report
from hadar_cli.errors import InputError, RefusedError
from hadar_cli.node.agent.bootstrap import COMMAND
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.remote import RemoteAccess, RemoteConnection, command_of
from hadar_cli.nodes.session import decisions, returning
from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.wire import AgentError, LinkLostError, Stream
from hadar_cli.project.packing import CodePacker
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.ssh.endpoints import endpoint_of
from hadar_cli.ssh.link import SshLink
from hadar_cli.ssh.transport import SshTransport
from hadar_cli.transports import access_to
from tests.contract.test_executor import SCRIPT, collect, order
from tests.integration.test_local_nodes import LINKS, PLAIN, TRAINS
from tests.support.lab import Lab, running

NOISE = "echo -n 'Welcome to the lab! '; echo '{\"answer\": 1}'; echo mail for you >&2\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("ssh") / "lab", count=2) as lab:
        yield lab


@pytest.fixture
def nodes(lab, tmp_path) -> tuple[Node, ...]:
    workdir = str(tmp_path / "workdir")
    found = read_nodes(lab.inventory)
    return tuple(replace(node, workdir=workdir, gpus=()) for node in found)


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore.create(tmp_path / "runs", RunFacts("r", Mix("m", ()), (), "", ""))


@contextmanager
def files_on(node: Node, cut_after: int | None = None) -> Iterator[TransferSession]:
    with closing(access_to(node)) as access:
        wire = access.open("transfer", 60.0)
        if cut_after is not None:
            wire._stream = Cut(wire._stream, cut_after)
        yield TransferSession(wire)


def connection_to(node: Node, store: RunStore) -> RemoteConnection:
    access = RemoteAccess(node, SshTransport(node))
    return RemoteConnection(access, store, CodePacker(store.directory / "code"))


def knock(node: Node) -> None:
    """Connects as far as the host key."""
    with SshLink(endpoint_of(node), login=False) as link:
        link.open()


class Cut:
    """A connection that breaks after so many bytes of a file, in either direction."""

    def __init__(self, stream: Stream, after: int) -> None:
        self._stream, self._left = stream, after

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            self.close()
            raise LinkLostError("cut")

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._count(len(content))
        return content

    def write(self, content: bytes | memoryview) -> None:
        self._stream.write(content)
        self._count(len(content))

    def close(self) -> None:
        self._stream.close()


def stored(store: RunStore, content: bytes) -> str:
    source = store.directory / "source"
    source.write_bytes(content)
    return store.take_in(source)


# -- logins --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "fish", "tcsh", "dash"])
def test_every_login_shell_will_do(lab, nodes, store, tmp_path, shell):
    assert shutil.which(shell), f"install {shell}: apt-get install {shell}, or scripts/check"
    node = nodes[0]
    lab.use_shell(node.name, shell)
    lab[node.name].home.joinpath(".bashrc").write_text(NOISE)
    lab[node.name].home.joinpath(".tcshrc").write_text("echo noise\n")
    try:
        digest = stored(store, os.urandom(100_000))
        with files_on(node) as files:
            path, sent = files.put(store.object_path(digest), digest, str(tmp_path / "there"))
            assert sent
            assert files.get(path, tmp_path / "back") == digest
    finally:
        lab.use_shell(node.name, "bash")
        lab[node.name].home.joinpath(".bashrc").unlink()


def test_what_is_sent_is_private(nodes, store, tmp_path):
    with files_on(nodes[0]) as files:
        digest = stored(store, b"weights")
        path, _ = files.put(store.object_path(digest), digest, str(tmp_path / "workdir" / "o"))
    for below in (tmp_path / "workdir").rglob("*"):
        assert below.stat().st_mode & 0o077 == 0, below
    assert Path(path).read_bytes() == b"weights"


def test_a_workdir_that_others_may_write_to_is_refused(nodes, tmp_path):
    (tmp_path / "workdir").mkdir()
    (tmp_path / "workdir").chmod(0o777)
    with pytest.raises(AgentError, match="others may write"), files_on(nodes[0]):
        pass


def test_a_missing_python_is_told_with_its_shells_words(nodes, store):
    connection = connection_to(replace(nodes[0], python="/no/python"), store)
    with pytest.raises(LinkLostError, match=r"/no/python.*[Nn]o such file"):
        connection.open_agent(lambda message: None, lambda link: None)
    connection.close()


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("3.9.18 (main, Jan  1 2024, 00:00:00) \n[GCC 11.4.1]", "3.9.18"),
        ("Unknown option: -I", "2"),
    ],
)
def test_a_python_that_is_too_old_is_told_with_its_version(nodes, store, tmp_path, says, version):
    """The first words that are sent to it make it say so: it could read nothing else."""
    old = tmp_path / "python3"
    old.write_text(f"#!/bin/sh\necho motd >&2; printf '{says}\\n' >&2\nexit 1\n")
    old.chmod(0o700)
    connection = connection_to(replace(nodes[0], python=str(old)), store)
    with pytest.raises(LinkLostError, match=rf"is Python {version} there: hadar needs 3\.10"):
        connection.open_agent(lambda message: None, lambda link: None)
    connection.close()


def test_the_first_words_to_a_python_make_an_old_one_tell_its_version():
    """With an interpreter that takes itself for an old one: those are rare where tests run."""
    words = shlex.split(COMMAND)
    assert "sys.version_info<(3,10)" in words[2]
    aged = words[2].replace("sys.version_info<", "(3,6)<")
    done = subprocess.run([sys.executable, *words[:2], aged], capture_output=True, text=True)
    assert (done.returncode, done.stderr.split()[0]) == (1, sys.version.split()[0])


@pytest.mark.parametrize("python", ["python3; rm -rf /", "$(id)", "a b", "py'thon"])
def test_no_path_is_passed_on_that_a_shell_would_read(nodes, python):
    with pytest.raises(InputError, match="shells"):
        command_of(replace(nodes[0], python=python))


# -- host keys -----------------------------------------------------------------------------------


def fingerprint_of(public: str, tmp_path: Path) -> str:
    path = tmp_path / "key.pub"
    path.write_text(public + "\n")
    shown = subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True)
    return shown.stdout.split()[1]


def test_a_changed_host_key_stops_the_node_and_shows_both(tmp_path, store):
    with running(tmp_path / "lab", count=1) as lab:
        [node] = read_nodes(lab.inventory)
        before = fingerprint_of(lab[node.name].host_key(), tmp_path)
        lab.change_host_key(node.name)
        after = fingerprint_of(lab[node.name].host_key(), tmp_path)
        executor = NodeExecutor(connect([node], store), 1, 0.0)
        executor.adopt([])
        [report] = executor.wait(30.0)
        executor.stop(0.0)
    assert isinstance(report, NodeGone)
    assert report.reason is Absence.REFUSED
    assert before in report.why and after in report.why and "nodes trust" in report.why


def test_an_unknown_host_key_is_refused(nodes, tmp_path):
    (tmp_path / "nobody").touch()
    node = replace(nodes[0], known_hosts=str(tmp_path / "nobody"))
    with pytest.raises(RefusedError, match=r"not known: ssh-ed25519 SHA256:"):
        knock(node)


def test_a_pin_decides_alone(lab, nodes, tmp_path):
    key, other = lab[nodes[0].name].host_key(), lab[nodes[1].name].host_key()
    for pin in (key, fingerprint_of(key, tmp_path)):
        knock(replace(nodes[0], host_key=pin, known_hosts=None))
    with pytest.raises(RefusedError, match="CHANGED"):
        knock(replace(nodes[0], host_key=other))


def test_aes_gcm_is_chosen_and_no_agent_is_forwarded(lab, nodes):
    with files_on(nodes[0]), SshLink(endpoint_of(nodes[0])) as link:
        link.open()
        assert "gcm" in link.transport.local_cipher
        stream = link.start("env; echo; true")
        said = b""
        with suppress(LinkLostError):
            while chunk := stream.read(1 << 16):
                said += chunk
    assert b"SSH_CONNECTION" in said
    assert b"SSH_AUTH_SOCK" not in said


# -- ways there ----------------------------------------------------------------------------------


def test_a_jump_host_leads_to_the_node(lab, nodes, store, tmp_path):
    gate, node = nodes
    digest = stored(store, os.urandom(1_000_000))
    with files_on(replace(node, proxy_jump=f"{gate.host}:{gate.port}")) as files:
        path, _ = files.put(store.object_path(digest), digest, str(tmp_path / "there"))
        assert files.get(path, tmp_path / "back") == digest


def test_a_jump_hosts_key_is_checked_as_well(nodes, tmp_path):
    gate, node = nodes
    known = tmp_path / "known_hosts"
    lines = Path(node.known_hosts).read_text().splitlines()
    known.write_text("\n".join(line for line in lines if f":{gate.port} " not in line) + "\n")
    node = replace(node, known_hosts=str(known))
    knock(node)
    with pytest.raises(RefusedError, match=f"{gate.port} is not known"):
        knock(replace(node, proxy_jump=f"{gate.host}:{gate.port}"))


def test_names_mean_what_ssh_config_says(nodes, tmp_path, monkeypatch):
    gate, node = nodes
    config = tmp_path / "config"
    config.write_text(f"""
Host gate
    HostName {gate.host}
    Port {gate.port}
Host fermi
    HostName {node.host}
    Port {node.port}
    User {node.user}
    IdentityFile {node.identity_file}
    ProxyJump gate
    ForwardAgent yes
""")
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))
    fermi = Node("fermi", "fermi", known_hosts=node.known_hosts)
    endpoint = endpoint_of(fermi)
    assert (endpoint.host, endpoint.port, endpoint.user) == (node.host, node.port, node.user)
    assert endpoint.via and endpoint.via.port == gate.port
    fermi = replace(fermi, identity_file=node.identity_file)
    with SshLink(endpoint_of(fermi)) as link:
        link.open()
        assert link.is_connected
    assert endpoint_of(replace(fermi, proxy_jump="none")).via is None


def test_tokens_in_a_jump_are_of_the_node_behind_it(nodes, tmp_path, monkeypatch):
    gate, node = nodes
    config = tmp_path / "config"
    config.write_text(f"""
Host fermi-gate
    HostName {gate.host}
    Port {gate.port}
Host fermi
    HostName {node.host}
    ProxyJump %r@%n-gate
""")
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))
    endpoint = endpoint_of(replace(node, host="fermi", user="ada"))
    assert endpoint.via
    assert (endpoint.via.host, endpoint.via.port, endpoint.via.user) == (
        gate.host,
        gate.port,
        "ada",
    )
    knock(replace(node, host="fermi"))


# -- files ---------------------------------------------------------------------------------------


def test_a_file_that_is_there_is_not_sent_again(nodes, store):
    digest = stored(store, os.urandom(300_000))
    times = []
    for _ in range(2):
        connection = connection_to(nodes[0], store)
        connection.open_agent(lambda message: None, lambda link: None)
        times.append(os.stat(connection.push(digest, "weights", tuple)).st_mtime_ns)
        connection.close()
    assert times[0] == times[1]


def test_a_push_goes_on_where_it_was_cut(nodes, store, tmp_path):
    content = os.urandom(20_000_000)
    digest = stored(store, content)
    there = tmp_path / "there"
    with pytest.raises(LinkLostError), files_on(nodes[0], cut_after=12_000_000) as files:
        files.put(store.object_path(digest), digest, str(there))
    assert not (there / digest).exists()
    deadline = time.monotonic() + 10
    while (there / f"{digest}.part").stat().st_size < 5_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)
    kept = (there / f"{digest}.part").stat().st_size
    assert 0 < kept < len(content)
    # The rest goes through a wire that would not take the whole file.
    with files_on(nodes[0], cut_after=len(content) - kept + 100_000) as files:
        files.put(store.object_path(digest), digest, str(there))
    assert (there / digest).read_bytes() == content


def test_a_damaged_part_is_found_out(nodes, store, tmp_path):
    digest = stored(store, os.urandom(300_000))
    there = tmp_path / "there"
    there.mkdir()
    (there / f"{digest}.part").write_bytes(b"not the beginning")
    with pytest.raises(AgentError, match="damaged"), files_on(nodes[0]) as files:
        files.put(store.object_path(digest), digest, str(there))
    with files_on(nodes[0]) as files:
        files.put(store.object_path(digest), digest, str(there))


def test_a_pull_goes_on_where_it_was_cut(nodes, store, tmp_path):
    content = os.urandom(20_000_000)
    digest = stored(store, content)
    back = tmp_path / "back"
    source = str(store.object_path(digest))
    with pytest.raises(LinkLostError), files_on(nodes[0], cut_after=12_000_000) as files:
        files.get(source, back)
    kept = back.stat().st_size
    assert 5_000_000 < kept < len(content)
    with files_on(nodes[0], cut_after=len(content) - kept + 100_000) as files:
        assert files.get(source, back) == digest
    assert back.read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_plain_files_are_fetched(nodes, tmp_path, kind):
    path = tmp_path / "odd"
    {
        "link": lambda: path.symlink_to("/etc/passwd"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()
    with files_on(nodes[0]) as files, pytest.raises(AgentError):
        files.get(str(path), tmp_path / "back")


def test_a_link_in_the_way_of_a_file_is_not_followed(nodes, store, tmp_path):
    digest = stored(store, b"weights")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    there = tmp_path / "there"
    there.mkdir()
    (there / f"{digest}.part").symlink_to(victim)
    with files_on(nodes[0]) as files:
        files.put(store.object_path(digest), digest, str(there))
    assert victim.read_text() == "precious"


def test_a_job_s_code_folder_goes_along_without_what_it_ignores(nodes, store, tmp_path):
    code = tmp_path / "project"
    (code / "lib").mkdir(parents=True)
    (code / "data").mkdir()
    shutil.copy(SCRIPT, code / "train.py")
    (code / "lib" / "part.py").write_text("x = 1")
    (code / "data" / "big.bin").write_bytes(bytes(1000))
    (code / "secret.key").write_text("secret")
    (code / "lib" / "notes.txt").write_text("notes")
    (code / ".gitignore").write_text("data/\n*.txt\n")
    (code / ".hadarignore").write_text("*.key\n!notes.txt\n")
    launch = Launch(script=str(code / "train.py"), sync=str(code), args=("train",))
    connection = connection_to(nodes[0], store)
    connection.open_agent(lambda message: None, lambda link: None)
    placed = connection.place(Job(0, "placed", 100, 8, launch=launch))
    connection.close()
    assert placed.sync and placed.script == f"{placed.sync}/train.py"
    found = {p.relative_to(placed.sync).as_posix() for p in Path(placed.sync).rglob("*")}
    assert found - {"lib"} == {
        "train.py",
        "lib/part.py",
        "lib/notes.txt",
        ".gitignore",
        ".hadarignore",
    }


# -- bad luck ------------------------------------------------------------------------------------


@pytest.fixture
def executor(nodes, store) -> Iterator[NodeExecutor]:
    executor = NodeExecutor(connect(nodes, store), 1, 0.0)
    executor.adopt([])
    yield executor
    executor.stop(0.0)


def job(tmp_path: Path, source: str) -> Job:
    script = tmp_path / "script.py"
    script.write_text(source)
    return Job(0, "script", 10_000, 8, launch=Launch(script=str(script)))


def wait_for(executor: NodeExecutor, kind: type, within: float = 60.0) -> list[Report]:
    """All reports up to the first of that kind."""
    reports: list[Report] = []
    deadline = executor.now() + within
    while executor.now() < deadline:
        reports += executor.wait(executor.now() + 0.5)
        if any(isinstance(report, kind) for report in reports):
            return reports
    raise AssertionError(f"no {kind.__name__} within {within} s, only {reports}")


def connections_of(server: int) -> list[int]:
    """The sshd processes that serve connections of this server."""
    pids = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(server)], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in pids.stdout.split()]


def test_a_copy_outlives_its_connection_and_counts_once(lab, nodes, executor, tmp_path):
    name = nodes[0].name
    long = order("a", (0, 10_000_000), job=job(tmp_path, TRAINS), device=name, seconds=15)
    executor.start(long)
    wait_for(executor, Progressed)
    cut = connections_of(lab[name].pid)
    assert cut
    for pid in cut:
        os.kill(pid, signal.SIGKILL)
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn)
    assert report.result.steps > 0
    assert connections_of(lab[name].pid) and not set(connections_of(lab[name].pid)) & set(cut)
    assert collect(executor, 1, within=1.0) == []


def test_a_node_that_stays_away_is_gone_and_welcome_back(tmp_path, store, monkeypatch):
    monkeypatch.setattr(decisions, "LEASE_S", 5.0)
    monkeypatch.setattr(returning, "RETURN_EVERY_S", 0.5)
    # Well within the short lease, or copies die of a late renewal.
    monkeypatch.setattr(decisions, "LOOK_EVERY_S", 0.5)
    with running(tmp_path / "lab", count=2) as lab:
        nodes = [replace(n, gpus=(), emulated_speed=None) for n in read_nodes(lab.inventory)]
        away, here = (node.name for node in nodes)
        executor = NodeExecutor(connect(nodes, store), 1, 0.0)
        executor.adopt([])
        try:
            task = job(tmp_path, TRAINS)
            executor.start(order("a", (0, 10_000_000), job=task, device=away, seconds=300))
            wait_for(executor, Progressed)
            lab.stop(away)
            reports = wait_for(executor, NodeGone)
            assert [r.devices for r in reports if isinstance(r, NodeGone)] == [(away,)]
            [lost] = [r for r in reports if isinstance(r, Failed)]
            assert (lost.attempt, lost.reason.is_node_fault) == ("a", True)
            executor.start(order("b", (0, 20), job=task, device=here))
            [report] = collect(executor, 1)
            assert isinstance(report, HandedIn)
            lab.start(away)
            wait_for(executor, NodeBack)
            executor.start(order("c", (0, 20), job=task, device=away))
            [report] = collect(executor, 1)
            assert isinstance(report, HandedIn)
        finally:
            executor.stop(0.0)


def test_a_result_that_is_a_link_is_refused(nodes, executor, tmp_path):
    executor.start(order("a", (0, 10), job=job(tmp_path, LINKS), device=nodes[0].name))
    [report] = collect(executor, 1)
    assert isinstance(report, Failed)
    assert "its result cannot be taken" in report.why


def test_a_hung_server_delays_no_one(lab, nodes, store, tmp_path):
    lab.pause(nodes[0].name)
    executor = NodeExecutor(connect(nodes, store), 1, 0.0)
    try:
        executor.adopt([])
        executor.start(order("a", (0, 20), job=job(tmp_path, TRAINS), device=nodes[1].name))
        [report] = [r for r in wait_for(executor, HandedIn) if isinstance(r, HandedIn)]
        assert report.attempt == "a"
    finally:
        lab.unpause(nodes[0].name)
        executor.stop(0.0)


def test_progress_arrives_while_a_copy_trains(nodes, executor, tmp_path):
    long = order("a", (0, 10_000_000), job=job(tmp_path, TRAINS), device=nodes[0].name, seconds=6)
    executor.start(long)
    reports = wait_for(executor, HandedIn)
    steps = [r.steps for r in reports if isinstance(r, Progressed)]
    assert steps and steps == sorted(steps)


def test_the_end_of_a_run_leaves_no_checkpoints_on_the_node(nodes, store, tmp_path):
    weights = stored(store, save({"model/0/weight": np.zeros(4, np.float32)}))
    executor = NodeExecutor(connect(nodes[:1], store), 1, 0.0)
    executor.adopt([])
    name = nodes[0].name
    try:
        executor.start(order("a", (0, 5), job=job(tmp_path, PLAIN), device=name, weights=weights))
        [report] = collect(executor, 1)
        assert isinstance(report, HandedIn)
        assert list(tmp_path.glob("workdir/**/objects/*"))
    finally:
        executor.stop(0.0)
    assert not list(tmp_path.glob("workdir/**/objects*"))


def test_a_node_keeps_two_checkpoints_of_a_job_and_what_orders_go_by(nodes, store, tmp_path):
    connection = connection_to(nodes[0], store)
    connection.open_agent(lambda message: None, lambda link: None)
    ours = [stored(store, os.urandom(100)) for _ in range(5)]
    other = stored(store, os.urandom(100))
    connection.push(other, "weights of 1", tuple)
    for digest in ours:
        connection.push(digest, "weights of 0", lambda: [ours[0]])
    connection.close()
    there = {path.name for path in tmp_path.glob("workdir/**/objects/*")}
    assert there == {ours[0], *ours[-2:], other}
