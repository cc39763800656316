"""What fabric would do by itself, and must not: trust, forward, ask, find gateways."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

import hadar_cli
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Node
from hadar_cli.errors import RefusedError
from hadar_cli.ssh.endpoints import endpoint_of
from hadar_cli.ssh.link import SshLink
from tests.e2e.test_commands import COMMAND, ENVIRONMENT, SCRIPT
from tests.support.lab import Lab, running


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("fabric") / "lab", count=3) as lab:
        yield lab


@pytest.fixture
def config(lab: Lab, tmp_path: Path) -> Path:
    """Two jump hosts to a node, in ssh_config; fabric's own files try all they could do."""
    near, far, node = lab.nodes
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    config = home / ".ssh" / "config"
    hosts = {"near": near, "far": far, "fermi": node}
    config.write_text(
        "".join(
            f"Host {name}\n HostName 127.0.0.1\n Port {machine.port}\n"
            f" IdentityFile {lab.identity_file}\n ForwardAgent yes\n StrictHostKeyChecking no\n"
            for name, machine in hosts.items()
        )
        + "Match originalhost fermi\n ProxyJump near,far\n"
    )
    (home / ".fabric.yml").write_text(
        "forward_agent: true\ngateway: near\nload_ssh_configs: true\n"
        "connect_kwargs: {password: secret, look_for_keys: true}\n"
    )
    return config


@pytest.fixture
def fermi(lab: Lab, config: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))
    monkeypatch.setenv("HOME", str(config.parents[1]))
    monkeypatch.setenv("FABRIC_FORWARD_AGENT", "1")
    node = read_nodes(lab.inventory)[2]
    return Node("fermi", "fermi", known_hosts=str(lab.known_hosts), python=node.python)


def hops(link: SshLink) -> list[SshLink]:
    return [link, *hops(link.gateway)] if link.gateway else [link]


def test_jump_hosts_of_ssh_config_are_links_of_ours(
    fermi: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted_blindly: list[str] = []
    monkeypatch.setattr(
        paramiko.AutoAddPolicy,
        "missing_host_key",
        lambda self, client, hostname, key: trusted_blindly.append(hostname),
    )
    with SshLink(endpoint_of(fermi)) as link:
        link.open()
        assert len(hops(link)) == 3
        for hop in hops(link):
            assert type(hop) is SshLink and hop.is_connected
            assert not isinstance(hop.client._policy, paramiko.AutoAddPolicy)
            assert hop.forward_agent is False and "password" not in hop.connect_kwargs
    assert trusted_blindly == []


def test_without_a_jump_host_there_is_no_gateway(lab: Lab, fermi: Node) -> None:
    assert SshLink(endpoint_of(replace(fermi, proxy_jump="none"))).gateway is None


def test_no_key_of_ours_is_offered_under_another_policy(lab: Lab) -> None:
    """As if a later fabric put its own policy back."""
    node = replace(read_nodes(lab.inventory)[0], known_hosts=os.devnull)
    link = SshLink(endpoint_of(node))
    link.client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    before = lab.nodes[0].log.count("Accepted publickey")
    with pytest.raises(RefusedError, match="not checked"), link:
        link.open()
    assert lab.nodes[0].log.count("Accepted publickey") == before


@pytest.mark.parametrize("stranger", [0, 1, 2], ids=["first hop", "second hop", "node"])
def test_an_unknown_key_on_any_hop_ends_a_run_with_4(
    lab: Lab, config: Path, fermi: Node, tmp_path: Path, stranger: int
) -> None:
    port = lab.nodes[stranger].port
    known = [n for n in lab.known_hosts.read_text().splitlines() if f":{port} " not in n]
    (tmp_path / "known").write_text("\n".join(known) + "\n")
    (tmp_path / "nodes.toml").write_text(
        f'[[node]]\nname = "fermi"\nhost = "fermi"\nknown_hosts = "{tmp_path / "known"}"\n'
        f'python = "{fermi.python}"\nemulate = {{ speed = 1 }}\n'
    )
    shutil.copy(SCRIPT, tmp_path)
    job = "{script: plain_script.py, name: one, steps: 10}"
    (tmp_path / "mix.yaml").write_text(f"name: m\nslot_s: 2\njobs:\n  - {job}\n")
    before = [node.log.count("publickey") for node in lab.nodes]
    done = subprocess.run(
        [*COMMAND, "run", "mix.yaml", "-n", "nodes.toml", "--no-live"],
        cwd=tmp_path,
        env=ENVIRONMENT | {k: os.environ[k] for k in ("HADAR_SSH_CONFIG", "HOME")},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 4, said
    assert f"[127.0.0.1]:{port} is not known" in said
    # Neither the stranger nor whoever is behind it was shown a key of ours.
    after = [node.log.count("publickey") for node in lab.nodes]
    assert after[stranger:] == before[stranger:]


def test_fabric_is_imported_in_one_file_and_only_for_ssh() -> None:
    root = Path(hadar_cli.__file__).parent
    found = [
        p
        for p in root.rglob("*.py")
        if re.search(r"^\s*(import|from) fabric\b", p.read_text(), re.M)
    ]
    assert found == [root / "ssh" / "link.py"]
    code = (
        "import sys, hadar_cli.cli.main; sys.exit(bool({'fabric', 'paramiko'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
