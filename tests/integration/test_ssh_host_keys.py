"""Host keys as ssh judges them: files that people have, against a real SSH server."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Node
from hadar_cli.errors import RefusedError
from hadar_cli.nodes.remote import RemoteAccess
from hadar_cli.nodes.wire import LinkLostError
from hadar_cli.ssh.endpoints import endpoint_of
from hadar_cli.ssh.link import SshLink
from hadar_cli.ssh.transport import SshTransport
from tests.support.lab import Lab, LabNode, running
from tests.support.sshd import make_key


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("keys") / "lab", count=1) as lab:
        yield lab


@pytest.fixture
def server(lab: Lab) -> LabNode:
    return lab.nodes[0]


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, stdin=subprocess.DEVNULL)


def public(path: Path) -> str:
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


@pytest.fixture
def stranger(tmp_path: Path) -> str:
    """Some other machine's key."""
    make_key(tmp_path / "stranger")
    return public(tmp_path / "stranger")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_key(tmp_path / "authority")
    return tmp_path / "authority"


class Site:
    """A node whose known_hosts holds what the test writes."""

    def __init__(self, lab: Lab, server: LabNode, folder: Path) -> None:
        self._lab, self.server = lab, server
        self.known_hosts = folder / "known hosts"
        node = read_nodes(lab.inventory)[0]
        self.node = replace(node, known_hosts=str(self.known_hosts))
        self.name = f"[127.0.0.1]:{server.port}"

    def knock(self, *lines: str, node: Node | None = None) -> None:
        """Connects as far as the host key, and sees that ssh decides alike."""
        self.known_hosts.write_text("".join(f"{line}\n" for line in lines))
        by_ssh = subprocess.run(self._ssh(node or self.node), capture_output=True, check=False)
        try:
            with SshLink(endpoint_of(node or self.node), login=False) as link:
                link.open()
        except (RefusedError, LinkLostError):
            assert by_ssh.returncode, "ssh takes it"
            raise
        assert by_ssh.returncode == 0, by_ssh.stderr

    def _ssh(self, node: Node) -> list[str]:
        words = [*self._lab.ssh(self.server.name, "true")]
        at = next(i for i, word in enumerate(words) if word.startswith("-oUserKnownHostsFile"))
        words[at] = f'-oUserKnownHostsFile="{self.known_hosts}"'
        if config := os.environ.get("HADAR_SSH_CONFIG"):
            words[words.index("none")] = config
            words[words.index("127.0.0.1")] = node.host
        return words

    def certify(self, authority: Path, *words: str, names: str = "127.0.0.1") -> None:
        """The server shows a certificate from now on."""
        key = self.server.path / "host_key"
        options = [*words, *(["-n", names] if names else [])]
        keygen("-s", str(authority), "-I", "id", "-h", *options, f"{key}.pub")
        self._lab.configure(self.server.name, HostCertificate=f'"{key}-cert.pub"')


@pytest.fixture
def site(lab: Lab, server: LabNode, tmp_path: Path) -> Iterator[Site]:
    yield Site(lab, server, tmp_path)
    if server.options:
        lab.configure(server.name)


# -- names ---------------------------------------------------------------------------------------


def test_other_lines_are_no_bother(site, stranger):
    site.knock(
        "# a comment",
        "",
        "nonsense",
        f"@cert-authority *.example.com {stranger} somebody's",
        f"@revoked elsewhere.example.com {stranger}",
        f"{site.name} ssh-ed25519 !!!!",
        f"@later {site.name} {stranger}",
        f"{site.name} {site.server.host_key()} a comment",
    )


def test_a_second_key_of_one_kind_is_known_too(site, stranger):
    site.knock(f"{site.name} {stranger}", f"{site.name} {site.server.host_key()}")
    site.knock(f"{site.name} {site.server.host_key()}", f"{site.name} {stranger}")


def test_a_name_without_its_port_will_do_where_there_is_no_other(site, stranger):
    site.knock(f"127.0.0.1 {site.server.host_key()}")
    with pytest.raises(RefusedError, match="not known"):
        site.knock(f"127.0.0.1 {stranger}")
    with pytest.raises(RefusedError, match="CHANGED"):
        site.knock(f"127.0.0.1 {site.server.host_key()}", f"{site.name} {stranger}")


def test_hashed_names(site, tmp_path, stranger):
    hashed = tmp_path / "hashed"
    for key in (site.server.host_key(), stranger):
        hashed.write_text(f"{site.name} {key}\n")
        keygen("-H", "-f", str(hashed))
        assert site.name not in hashed.read_text()
        if key == stranger:
            with pytest.raises(RefusedError, match="CHANGED"):
                site.knock(hashed.read_text())
        else:
            site.knock(hashed.read_text())


def test_an_alias_has_a_name_of_its_own(site, stranger, tmp_path, monkeypatch):
    config = tmp_path / "config"
    config.write_text("Host box\n HostName 127.0.0.1\n HostKeyAlias Lab-Box\n")
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))
    node = replace(site.node, host="box")
    site.knock(f"lab-box {site.server.host_key()}", f"{site.name} {stranger}", node=node)
    with pytest.raises(RefusedError, match="lab-box is not known"):
        site.knock(f"{site.name} {site.server.host_key()}", node=node)


# -- a command that tells ------------------------------------------------------------------------


def test_a_command_tells_what_is_known(site, stranger, tmp_path, monkeypatch):
    """As sssd's does, for labs that keep their host keys in a directory (FreeIPA)."""
    told, config = tmp_path / "what the directory says", tmp_path / "config"
    tell = tmp_path / "tell"
    tell.write_text('#!/bin/sh\n[ "$1" = asked ] && grep -F -- "$2" "$TOLD"; exit "$ENDS"\n')
    tell.chmod(0o755)
    config.write_text(f'KnownHostsCommand "{tell}" asked "%H"\nGlobalKnownHostsFile none\n')
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setenv("ENDS", "0")
    node = replace(site.node, known_hosts=None)
    known = f"{site.name} {site.server.host_key()}"
    told.write_text(f"{known}\n")
    site.knock(node=node)
    with pytest.raises(RefusedError, match="not known"):
        SshLink(endpoint_of(site.node), login=False).open()  # the inventory's file decides alone
    told.write_text(f"127.0.0.1 {site.server.host_key()}\n")
    with pytest.raises(RefusedError, match="not known"):
        site.knock(node=node)  # it is not asked again without the port
    told.write_text(f"{site.name} {stranger}\n")
    with pytest.raises(RefusedError, match="CHANGED"):
        site.knock(node=node)
    told.write_text(f"@revoked {known}\n{known}\n")
    with pytest.raises(RefusedError, match="REVOKED"):
        site.knock(node=node)
    told.write_text(f"{known}\n")
    monkeypatch.setenv("ENDS", "3")
    with pytest.raises(LinkLostError, match="tell ended with 3"):
        site.knock(node=node)


def test_a_command_is_told_of_the_key_that_was_shown(site, tmp_path, monkeypatch):
    tell, config = tmp_path / "tell", tmp_path / "config"
    tell.write_text('#!/bin/sh\necho "$@" >> "$ASKED"\n[ "$2" = NONE ] || echo "$5" "$2" "$3"\n')
    tell.chmod(0o755)
    config.write_text(f"KnownHostsCommand {tell} %I %t %K %f %H %%H %p\n")
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))
    asked = []
    for by in ("ssh", "hadar"):
        monkeypatch.setenv("ASKED", str(tmp_path / by))
        node = replace(site.node, known_hosts=None)
        if by == "ssh":
            assert subprocess.run(site._ssh(node), capture_output=True, check=False).returncode == 0
        else:
            with SshLink(endpoint_of(node), login=False) as link:
                link.open()
        asked.append(set((tmp_path / by).read_text().splitlines()))
    by_ssh, by_hadar = ({line for line in lines if site.name in line} for lines in asked)
    assert by_ssh == {line for line in by_hadar if not line.startswith("ORDER")}
    assert any(line.startswith("HOSTNAME ssh-ed25519 AAAA") for line in by_hadar)


# -- revoked -------------------------------------------------------------------------------------


def test_a_revoked_key_is_refused_although_it_is_known(site):
    known = f"{site.name} {site.server.host_key()}"
    with pytest.raises(RefusedError, match="REVOKED"):
        site.knock(known, f"@revoked * {site.server.host_key()}")
    with pytest.raises(RefusedError, match="REVOKED"):
        site.knock(f"@revoked {site.name} {site.server.host_key()}", known)


@pytest.mark.parametrize("form", ["list", "krl"])
def test_a_list_of_revoked_keys(site, tmp_path, monkeypatch, stranger, form):
    listed, config = tmp_path / "re voked", tmp_path / "config"
    config.write_text(f'RevokedHostKeys "{listed}"\n')
    monkeypatch.setenv("HADAR_SSH_CONFIG", str(config))
    known = f"{site.name} {site.server.host_key()}"
    for key in (stranger, site.server.host_key()):
        listed.write_text(f"{key}\n")
        if form == "krl":
            (tmp_path / "keys").write_text(f"{key}\n")
            keygen("-k", "-f", str(listed), str(tmp_path / "keys"))
        if key == stranger:
            site.knock(known)
            continue
        with pytest.raises(RefusedError, match="REVOKED"):
            site.knock(known)
    listed.unlink()
    with pytest.raises(RefusedError, match="REVOKED"):  # nobody knows what was in it
        site.knock(known)


# -- authorities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_an_authority_vouches_for_the_host(site, tmp_path, kind):
    keygen("-t", kind, "-N", "", "-f", str(tmp_path / "ca"))
    site.certify(tmp_path / "ca", names="127.0.0.1,elsewhere")
    site.knock(f"@cert-authority [127.0.0.1]:* {public(tmp_path / 'ca')}")
    site.knock(f"@cert-authority 127.0.0.* {public(tmp_path / 'ca')}")


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_the_hosts_own_key_may_be_of_any_kind(site, authority, kind, lab):
    key = site.server.path / f"key_{kind}"
    keygen("-t", kind, "-N", "", "-f", str(key))
    keygen("-s", str(authority), "-I", "id", "-h", "-n", "127.0.0.1", f"{key}.pub")
    lab.configure(site.server.name, HostKey=f'"{key}"', HostCertificate=f'"{key}-cert.pub"')
    site.knock(f"@cert-authority * {public(authority)}")


@pytest.mark.parametrize(
    ("words", "names", "why"),
    [
        (["-V", "20200101:20200102"], "127.0.0.1", "expired"),
        (["-V", "+1d:+2d"], "127.0.0.1", "not valid yet"),
        ([], "other.lab,third.lab", "it is for other.lab, third.lab"),
        ([], "127.0.*", "it is for"),  # a name, not a pattern
    ],
)
def test_a_certificate_that_is_not_valid(site, authority, words, names, why):
    site.certify(authority, *words, names=names)
    with pytest.raises(RefusedError, match=why):
        site.knock(f"@cert-authority * {public(authority)}")


def test_a_key_that_is_known_needs_no_valid_certificate(site, authority):
    site.certify(authority, names="other.lab")
    known = f"{site.name} {site.server.host_key()}"
    site.knock(f"@cert-authority * {public(authority)}", known)


def test_a_signature_by_sha_1_is_worth_nothing(site, tmp_path):
    keygen("-t", "rsa", "-N", "", "-f", str(tmp_path / "ca"))
    site.certify(tmp_path / "ca", "-t", "ssh-rsa")
    with pytest.raises(RefusedError, match="SHA-1"):
        site.knock(f"@cert-authority * {public(tmp_path / 'ca')}")


def test_another_authority_vouches_for_nobody(site, authority, stranger):
    site.certify(authority)
    with pytest.raises(RefusedError, match=r"not known.*no authority"):
        site.knock(f"@cert-authority * {stranger}")
    with pytest.raises(RefusedError, match="not known"):
        site.knock(f"@cert-authority other.lab {public(authority)}")
    # A key that is known by itself needs nobody to vouch for it.
    site.knock(f"@cert-authority * {stranger}", f"{site.name} {site.server.host_key()}")


def test_a_revoked_authority_vouches_for_nobody(site, authority):
    site.certify(authority)
    with pytest.raises(RefusedError, match="REVOKED"):
        site.knock(f"@cert-authority * {public(authority)}", f"@revoked * {public(authority)}")


def test_without_a_certificate_an_authority_is_no_help(site, authority):
    with pytest.raises(RefusedError, match=r"not known.*no authority"):
        site.knock(f"@cert-authority * {public(authority)}")


def test_large_files_go_to_a_certified_host_as_well(site, authority):
    site.certify(authority)
    site.known_hosts.write_text(f"@cert-authority * {public(authority)}\n")
    access = RemoteAccess(site.node, SshTransport(site.node))
    try:
        assert access.open_bulk("transfer")
    finally:
        access.close()
