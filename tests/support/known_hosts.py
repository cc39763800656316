"""Random known_hosts files, and what OpenSSH's ssh and hadar make of them: a stranger's judgement.

python -m tests.support.known_hosts [FILES [FIRST_SEED]]
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from hadar_cli.config.inventory import read_nodes
from hadar_cli.errors import RefusedError
from hadar_cli.ssh.endpoints import endpoint_of
from hadar_cli.ssh.link import SshLink
from tests.support.lab import Lab, LabNode, running

_KINDS = {"ed25519": (), "ecdsa": ("-b", "384"), "rsa": ("-b", "2048")}
# Which host keys each server has, the certified ones marked; "!" for another host's certificate.
_SERVERS = ("ed25519 ecdsa rsa", "ecdsa rsa", "ed25519+ ecdsa+", "rsa+ ed25519", "ecdsa! ed25519")
_HOSTS = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Verdict:
    """Whether each of the two took the server's key, and what they said."""

    file: str
    by_ssh: bool
    by_hadar: bool
    words: str


class Judges:
    """Servers with several host keys, and two who look at them with the same file."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        self._nodes = read_nodes(lab.inventory)
        self._authorities = [_make_key(folder / f"authority_{n}", "ed25519") for n in (1, 2)]
        self._strangers = [_make_key(folder / f"stranger_{kind}", kind) for kind in _KINDS]
        for server, has in zip(lab.nodes, _SERVERS, strict=True):
            self._equip(server, has.split())

    def _equip(self, server: LabNode, has: list[str]) -> None:
        keys, certificates = [], []
        for word in has:
            path = server.path / f"key_{word.rstrip('+!')}"
            _make_key(path, word.rstrip("+!"))
            keys.append(f'"{path}"')
            if word[-1] in "+!":
                names = "elsewhere" if word[-1] == "!" else ",".join(_HOSTS)
                signer = str(self._folder / "authority_1")
                _keygen("-s", signer, "-I", "id", "-h", "-n", names, f"{path}.pub")
                certificates.append(f'"{path}-cert.pub"')
        options = {"HostKey": "\nHostKey ".join(keys)}
        if certificates:
            options["HostCertificate"] = "\nHostCertificate ".join(certificates)
        self._lab.configure(server.name, **options)

    def judge(self, seed: int) -> Verdict:
        dice = Random(f"known hosts {seed}")
        at = dice.randrange(len(_SERVERS))
        server, host = self._lab.nodes[at], dice.choice(_HOSTS)
        lines = [self._line(dice, server, host) for _ in range(dice.randint(1, 5))]
        file = self._folder / "known_hosts"
        file.write_text("".join(lines), newline="")
        by_ssh, words = self._ask_ssh(server, host, file)
        node = replace(self._nodes[at], host=host, known_hosts=str(file))
        try:
            with SshLink(endpoint_of(node), login=False) as link:
                link.open()
            by_hadar, said = True, "taken"
        except RefusedError as error:
            by_hadar, said = False, str(error)
        title = f"seed {seed}, {host}:{server.port}, {_SERVERS[at]}"
        return Verdict(
            "".join(lines), by_ssh, by_hadar, f"{title}\n  ssh: {words}\n  hadar: {said}"
        )

    def _ask_ssh(self, server: LabNode, host: str, file: Path) -> tuple[bool, str]:
        """As far as the login, which is not tried: to be refused there is to have come so far."""
        words = self._lab.ssh(server.name, "true")
        words[words.index("127.0.0.1")] = host
        named = ["-oPreferredAuthentications=none", f'-oUserKnownHostsFile="{file}"']
        done = subprocess.run(
            [words[0], *named, *words[1:]], capture_output=True, text=True, check=False
        )
        return "Permission denied" in done.stderr, done.stderr.strip().splitlines()[-1]

    # -- lines -----------------------------------------------------------------------------------

    def _line(self, dice: Random, server: LabNode, host: str) -> str:
        marker = dice.choice(("", "", "", "", "@cert-authority ", "@revoked "))
        own = [_public(path) for path in sorted(server.path.glob("key_*.pub")) if _is_plain(path)]
        if marker == "@cert-authority ":
            key = dice.choice([*self._authorities, *self._authorities, *own])
        elif marker:
            key = dice.choice([*own, *self._strangers, *self._authorities])
        else:
            key = dice.choice([*own, *own, *self._strangers])
        blank, end = dice.choice("    \t"), dice.choice(("\n", "\n", "\n", "\r\n", " a comment\n"))
        line = f"{marker}{_names(dice, host, server.port)}{blank}{_spoil(dice, key)}{end}"
        return dice.choice(("", "", "", "# a comment\n", " ", "\n")) + line


def _names(dice: Random, host: str, port: int) -> str:
    name = f"[{host}]:{port}"
    plain = (name, name, name, host, name.upper(), f"other,{name}", f"{host},{name}")
    like = ("*", "[*]:*", f"[{host[:-1]}?]:{port}", f"[{host}]:*", f"{host[:4]}*", "?" * len(host))
    unlike = (f"*,!{name}", f"*,!{host}", f"!{name},*", "!*,*", "elsewhere", f"{name},!elsewhere")
    hashed = (_hashed(dice, name), _hashed(dice, host), _hashed(dice, name) + f",{name}")
    return dice.choice(dice.choice((plain, plain, like, unlike, hashed)))


def _hashed(dice: Random, name: str) -> str:
    salt = dice.randbytes(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _spoil(dice: Random, key: str) -> str:
    """Now and then a line that says something else than a key."""
    kind, blob = key.split()
    other = "ssh-rsa" if kind != "ssh-rsa" else "ssh-ed25519"
    broken = (
        f"{other} {blob}",
        f"{kind} {blob[:24]}",
        f"{kind} !{blob}",
        f"unheard-of {blob}",
        kind,
    )
    return dice.choice(broken) if dice.random() < 0.12 else key


def _make_key(path: Path, kind: str) -> str:
    _keygen("-t", kind, *_KINDS[kind], "-N", "", "-f", str(path))
    return _public(path.with_name(f"{path.name}.pub"))


def _keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, stdin=subprocess.DEVNULL)


def _public(path: Path) -> str:
    return " ".join(path.read_text().split()[:2])


def _is_plain(path: Path) -> bool:
    return not path.name.endswith("-cert.pub")


@contextmanager
def judges(folder: Path) -> Iterator[Judges]:
    with running(folder / "lab", count=len(_SERVERS)) as lab:
        yield Judges(lab, folder)


def main() -> int:
    count = int(sys.argv[1]) if sys.argv[1:] else 200
    first = int(sys.argv[2]) if sys.argv[2:] else 1
    with tempfile.TemporaryDirectory() as name, judges(Path(name)) as both:
        verdicts = [both.judge(seed) for seed in range(first, first + count)]
    differ = [one for one in verdicts if one.by_ssh is not one.by_hadar]
    for one in differ:
        print(f"{one.words}\n{one.file}")
    taken = sum(one.by_ssh for one in verdicts)
    print(f"{count} files, {taken} taken by ssh, {len(differ)} judged otherwise by hadar")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
