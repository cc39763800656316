"""Logins as ssh does them: identities, agents, tokens and proxies that people have set up."""

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Mix, Node
from hadar_cli.engine.ports import NodeBack, NodeGone
from hadar_cli.errors import InputError
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.remote import RemoteAccess
from hadar_cli.nodes.session import returning
from hadar_cli.nodes.wire import LinkLostError, LoginRefusedError
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.ssh.endpoints import endpoint_of
from hadar_cli.ssh.link import SshLink
from hadar_cli.ssh.transport import SshTransport
from tests.integration.test_ssh import wait_for
from tests.support.lab import Lab, running
from tests.support.sshd import make_key


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("logins") / "lab", count=1) as lab:
        yield lab


@pytest.fixture
def node(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    """A node that says nothing of identities."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "nothing").touch()
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(tmp_path / "nothing"))
    return replace(read_nodes(lab.inventory)[0], identity_file=None)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    socket = str(tmp_path / "agent sock")
    words = ["ssh-agent", "-D", "-a", socket]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not os.path.exists(socket):
        assert process.poll() is None
    yield socket
    process.send_signal(signal.SIGTERM)
    process.wait()


def add(agent: str, *keys: Path) -> None:
    environment = {**os.environ, "SSH_AUTH_SOCK": agent}
    words = ["ssh-add", "-q", *map(str, keys)]
    subprocess.run(words, check=True, env=environment, capture_output=True)


def strangers(folder: Path, count: int) -> list[Path]:
    """Keys that open no door."""
    keys = [folder / f"stranger{number}" for number in range(count)]
    for key in keys:
        make_key(key)
    return keys


def own_key(lab: Lab, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    shutil.copy(lab.identity_file, path)
    shutil.copy(f"{lab.identity_file}.pub", f"{path}.pub")
    return path


def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    config = tmp_path / "config"
    config.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))


def log_in(node: Node) -> str:
    with SshLink(endpoint_of(node)) as link:
        link.open()
        assert link.transport.is_authenticated()
        return str(link.identity)


def turned_away(lab: Lab) -> int:
    return lab.nodes[0].log.count("Failed publickey")


# -- identities ----------------------------------------------------------------------------------


def test_identity_files_have_tokens_and_blanks(lab, node, tmp_path, monkeypatch):
    key = own_key(lab, tmp_path / "my keys" / f"id_127.0.0.1_box_{node.port}_{node.user}_%")
    monkeypatch.setenv("KEYS", str(tmp_path / "my keys"))
    configure(
        tmp_path,
        monkeypatch,
        "Host box",
        "  HostName 127.0.0.1",
        '  IdentityFile "${KEYS}/id_%h_%n_%p_%r_%%"',
    )
    assert str(key) in log_in(replace(node, host="box"))


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_a_key_that_openssl_wrote(lab, node, tmp_path, kind):
    """``BEGIN PRIVATE KEY``: ssh reads it, as it does those of its own."""
    key = tmp_path / "key.pem"
    words = ["ssh-keygen", "-q", "-t", kind, "-m", "PKCS8", "-N", "", "-f", str(key)]
    subprocess.run(words, check=True)
    assert key.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    allowed = Path(f"{lab.identity_file}.pub")
    before = allowed.read_text()
    allowed.write_text(before + key.with_name("key.pem.pub").read_text())
    try:
        chosen = replace(node, identity_file=str(key))
        assert str(key) in log_in(chosen)
        access = RemoteAccess(chosen, SshTransport(chosen))
        assert access.open_bulk("transfer")
        access.close()
    finally:
        allowed.write_text(before)


def test_a_key_that_only_a_security_key_can_use_does_not_keep_others_out(
    lab, node, agent, tmp_path, monkeypatch
):
    """``id_ed25519_sk``, which ssh -G lists before other keys."""
    token = tmp_path / "id_ed25519_sk"
    token.write_text(security_key_file())
    key = own_key(lab, tmp_path / "mine")
    configure(tmp_path, monkeypatch, f"IdentityFile {token}", f"IdentityFile {key}")
    assert str(key) in log_in(node)
    configure(tmp_path, monkeypatch, f"IdentityFile {token}")
    with pytest.raises(LoginRefusedError, match="sk-ssh-ed25519") as refused:
        log_in(node)
    assert "ssh-agent" in refused.value.fix


def security_key_file() -> str:
    """As ``ssh-keygen -t ed25519-sk`` writes it, of a token that nobody has."""

    def field(content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + content

    public = field(b"sk-ssh-ed25519@openssh.com") + field(os.urandom(32)) + field(b"ssh:")
    check = os.urandom(4)
    private = check + check + public + b"\x01" + field(os.urandom(64)) + field(b"") + field(b"me")
    private += bytes(range(1, 1 + -len(private) % 8))
    whole = b"openssh-key-v1\0" + field(b"none") + field(b"none") + field(b"")
    whole += (1).to_bytes(4, "big") + field(public) + field(private)
    lines = base64.encodebytes(whole).decode()
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}-----END OPENSSH PRIVATE KEY-----\n"


def test_a_hash_of_all_of_it_names_a_key(lab, node, tmp_path, monkeypatch):
    """``%C``, which people have of their ControlPath."""
    words = ["ssh", "-F", "none", "-G", "-o", "ControlPath=%C", "-p", str(node.port)]
    told = subprocess.run([*words, node.host], capture_output=True, text=True, check=True).stdout
    mixed = next(line.split()[1] for line in told.splitlines() if line.startswith("controlpath "))
    key = own_key(lab, tmp_path / "keys" / mixed)
    configure(tmp_path, monkeypatch, f"IdentityFile {key.parent}/%C", "ControlPath ~/of-%r")
    assert str(key) in log_in(node)


def test_an_unknown_token_is_told(node, tmp_path, monkeypatch):
    configure(tmp_path, monkeypatch, "IdentityFile /nowhere/%q")
    with pytest.raises(InputError, match="%q"):
        endpoint_of(node)


def test_match_user_goes_by_the_inventory(lab, node, tmp_path, monkeypatch):
    key = own_key(lab, tmp_path / "keys" / "for_me")
    configure(tmp_path, monkeypatch, f"Match user {node.user}", f"  IdentityFile {key}")
    assert str(key) in log_in(node)


def test_the_known_hosts_file_may_have_blanks(lab, node, tmp_path, monkeypatch):
    mine = tmp_path / "known by me"
    shutil.copy(lab.known_hosts, mine)
    configure(
        tmp_path,
        monkeypatch,
        f"IdentityFile {lab.identity_file}",
        f'UserKnownHostsFile /nowhere "{mine}"',
    )
    node = replace(node, known_hosts=None)
    assert mine in endpoint_of(node).known_hosts
    log_in(node)


def test_a_certificate_opens_the_door(lab, node, tmp_path, monkeypatch):
    make_key(tmp_path / "ca")
    [key] = strangers(tmp_path, 1)
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "me", "-n", node.user]
    subprocess.run([*sign, f"{key}.pub"], check=True)
    lab.configure(lab.nodes[0].name, TrustedUserCAKeys=f'"{tmp_path / "ca.pub"}"')
    try:
        assert "certified" in log_in(replace(node, identity_file=str(key)))
        elsewhere = tmp_path / "else where-cert.pub"
        (tmp_path / "stranger0-cert.pub").rename(elsewhere)
        with pytest.raises(LoginRefusedError):
            log_in(replace(node, identity_file=str(key)))
        configure(tmp_path, monkeypatch, f'CertificateFile "{elsewhere}"')
        assert "certified" in log_in(replace(node, identity_file=str(key)))
        bulk = RemoteAccess(node, SshTransport(replace(node, identity_file=str(key))))
        assert bulk.open_bulk("transfer")
        bulk.close()
    finally:
        lab.configure(lab.nodes[0].name)


# -- agents --------------------------------------------------------------------------------------


def test_configured_identities_come_before_the_agents(lab, node, agent, tmp_path, monkeypatch):
    add(agent, *strangers(tmp_path, 7), own_key(lab, tmp_path / "mine"))
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    before = turned_away(lab)
    log_in(replace(node, identity_file=str(lab.identity_file)))
    assert turned_away(lab) == before
    # Without a word which it is, the server hangs up first, and the user is told what to do.
    with pytest.raises(LoginRefusedError, match="then it hung up") as refused:
        log_in(node)
    assert "identity_file" in refused.value.fix


def test_an_agent_has_the_key_to_an_encrypted_file(lab, node, agent, tmp_path, monkeypatch):
    key = own_key(lab, tmp_path / "locked")
    add(agent, *strangers(tmp_path, 7), key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    before = turned_away(lab)
    for leftover in (f"{key}.pub", None):  # its public half is in a file beside it, or in it
        assert "agent" in log_in(replace(node, identity_file=str(key)))
        if leftover:
            os.unlink(leftover)
    assert turned_away(lab) == before


def test_the_public_half_names_a_key_that_never_leaves_its_agent(
    lab, node, agent, tmp_path, monkeypatch
):
    key = own_key(lab, tmp_path / "token")
    add(agent, *strangers(tmp_path, 7), key)
    key.unlink()
    configure(
        tmp_path,
        monkeypatch,
        f"IdentityFile {key}.pub",
        "IdentitiesOnly yes",
        f'IdentityAgent "{agent}"',
    )
    before = turned_away(lab)
    assert "agent" in log_in(node)
    access = RemoteAccess(node, SshTransport(node))
    assert access.open_bulk("transfer")
    access.close()
    assert turned_away(lab) == before


def test_an_agent_in_the_home_is_found_whatever_ssh_makes_of_the_tilde(node, tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'identityagent ~/.1password/agent.sock'\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert endpoint_of(node).agent_socket == str(Path.home() / ".1password/agent.sock")


def test_identities_only_leaves_the_agent_alone(lab, node, agent, tmp_path, monkeypatch):
    add(agent, own_key(lab, tmp_path / "mine"))
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    log_in(node)
    [stranger] = strangers(tmp_path, 1)
    configure(tmp_path, monkeypatch, f"IdentityFile {stranger}", "IdentitiesOnly yes")
    with pytest.raises(LoginRefusedError, match="stranger0"):
        log_in(node)
    configure(tmp_path, monkeypatch, "IdentityAgent none")
    with pytest.raises(LoginRefusedError):
        log_in(node)


def test_a_certificate_in_the_agent(lab, node, agent, tmp_path, monkeypatch):
    make_key(tmp_path / "ca")
    [key] = strangers(tmp_path, 1)
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "me", "-n", node.user]
    subprocess.run([*sign, f"{key}.pub"], check=True)
    add(agent, key)
    for file in tmp_path.glob("stranger0*"):
        file.unlink()
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    lab.configure(lab.nodes[0].name, TrustedUserCAKeys=f'"{tmp_path / "ca.pub"}"')
    try:
        assert "agent" in log_in(node)
    finally:
        lab.configure(lab.nodes[0].name)


@pytest.mark.parametrize("where", ["beside the locked key", "in ssh_config", "to a key by name"])
def test_a_certificate_in_a_file_for_a_key_in_the_agent(
    lab, node, agent, tmp_path, monkeypatch, where
):
    """As step-ca and Vault leave it: they sign for a day what the agent holds for longer."""
    make_key(tmp_path / "ca")
    [key] = strangers(tmp_path, 1)
    add(agent, key)
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "me", "-n", node.user]
    subprocess.run([*sign, f"{key}.pub"], check=True)
    certificate = tmp_path / "stranger0-cert.pub"
    settings = [f"IdentityAgent {json.dumps(agent)}"]
    if where == "beside the locked key":
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True)
        settings += [f"IdentityFile {key}", "IdentitiesOnly yes"]
    else:
        certificate = certificate.rename(tmp_path / "of today.pub")
        settings += [f'CertificateFile "{certificate}"']
        if where == "to a key by name":
            settings += [f"IdentityFile {key}.pub", "IdentitiesOnly yes"]
        key.unlink()
    configure(tmp_path, monkeypatch, *settings)
    lab.configure(lab.nodes[0].name, TrustedUserCAKeys=f'"{tmp_path / "ca.pub"}"')
    try:
        assert log_in_by_ssh(lab, node) == 0
        assert "certified" in log_in(node)
        access = RemoteAccess(node, SshTransport(node))
        assert access.open_bulk("transfer")
        access.close()
    finally:
        lab.configure(lab.nodes[0].name)


def log_in_by_ssh(lab: Lab, node: Node) -> int:
    """The exit code of ssh itself, with the same file."""
    words = ["ssh", "-F", os.environ["HADAR_SSH_CONFIG"], "-oBatchMode=yes"]
    words += [f"-oUserKnownHostsFile={lab.known_hosts}", "-p", str(node.port)]
    return subprocess.run([*words, node.host, "true"], capture_output=True, check=False).returncode


def test_an_agent_that_is_gone_is_told(node, tmp_path, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    with pytest.raises(LoginRefusedError, match="gone does not answer"):
        log_in(node)


def test_a_refused_login_is_not_tried_again_within_seconds(lab, node, tmp_path, monkeypatch):
    """Where fail2ban watches, a head that knocks and knocks locks its user out."""
    monkeypatch.setattr(returning, "RETURN_EVERY_S", 0.1)
    node = replace(node, identity_file=str(lab.identity_file), gpus=(), emulated_speed=None)
    store = RunStore.create(tmp_path / "runs", RunFacts("r", Mix("m", ()), (), "", ""))
    lab.configure(lab.nodes[0].name, AuthorizedKeysFile="none")
    before = turned_away(lab)
    executor = NodeExecutor(connect([node], store), 1, 0.0)
    try:
        executor.adopt([])
        [gone] = wait_for(executor, NodeGone)
        assert "refuses the login" in gone.why and "tried again, but rarely" in gone.why
        executor.wait(executor.now() + 3.0)  # as good as thirty tries for any other reason
        assert turned_away(lab) == before + 1
    finally:
        executor.stop(0.0)
        lab.configure(lab.nodes[0].name)


def test_whoever_is_let_in_again_is_back(lab, node, tmp_path, monkeypatch):
    monkeypatch.setattr(returning, "LOGIN_AGAIN_S", (0.2,))
    node = replace(node, identity_file=str(lab.identity_file), gpus=(), emulated_speed=None)
    store = RunStore.create(tmp_path / "runs", RunFacts("r", Mix("m", ()), (), "", ""))
    lab.configure(lab.nodes[0].name, AuthorizedKeysFile="none")
    executor = NodeExecutor(connect([node], store), 1, 0.0)
    try:
        executor.adopt([])
        wait_for(executor, NodeGone)
        lab.configure(lab.nodes[0].name)
        wait_for(executor, NodeBack)
    finally:
        executor.stop(0.0)


# -- proxies -------------------------------------------------------------------------------------

RELAY = """
import os, socket, sys, threading
end = socket.create_connection((sys.argv[1], int(sys.argv[2])))
with open(sys.argv[3], "w") as file:
    file.write(" ".join(sys.argv[4:]))
def back():
    while chunk := end.recv(65536):
        os.write(1, chunk)
threading.Thread(target=back, daemon=True).start()
while chunk := os.read(0, 65536):
    end.sendall(chunk)
"""


def test_a_proxy_command_is_the_shells(lab, node, tmp_path, monkeypatch):
    relay = tmp_path / "re lay.py"
    relay.write_text(RELAY)
    monkeypatch.setenv("PY", node.python)
    configure(
        tmp_path,
        monkeypatch,
        "Host box",
        "  HostName 127.0.0.1",
        f'  ProxyCommand $PY "{relay}" %h %p "{tmp_path}/said it" %r %n %% 2>/dev/null',
    )
    node = replace(node, host="box", identity_file=str(lab.identity_file))
    access = RemoteAccess(node, SshTransport(node))
    access.open("visits", 30.0)
    assert (tmp_path / "said it").read_text() == f"{node.user} box %"
    children = subprocess.run(["pgrep", "-f", str(relay)], capture_output=True, check=False)
    assert children.stdout
    access.close()
    children = subprocess.run(["pgrep", "-f", str(relay)], capture_output=True, check=False)
    assert not children.stdout


def test_a_proxy_command_that_fails(node, tmp_path, monkeypatch):
    configure(tmp_path, monkeypatch, "ProxyCommand exit 1")
    with pytest.raises(LinkLostError, match="cannot be reached"):
        log_in(node)


def test_no_name_can_slip_a_command_into_the_proxy(node, tmp_path, monkeypatch):
    configure(tmp_path, monkeypatch, "ProxyCommand nc -u %r %h %p")
    with pytest.raises(InputError):  # by us, or by an ssh that is new enough
        endpoint_of(replace(node, user="me;touch x"))


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "-Fnothing"])
def test_no_host_is_an_option_of_ssh(node, host):
    with pytest.raises(InputError):
        endpoint_of(replace(node, host=host))
