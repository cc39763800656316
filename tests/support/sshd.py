"""A private SSH server on loopback, with its own port, host key and home directory.

It touches no port 22, no system configuration and no ``~/.ssh``, and runs as root or as anyone.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hadar_cli.node.agent import processes

_START_S = 15.0


class LabError(Exception):
    """What was asked cannot be done; the message says what to do."""


@dataclass(kw_only=True)
class Sshd:
    """One server and its directory; ``pid`` is 0 while it is stopped."""

    directory: str
    port: int
    pid: int = 0
    started: int = 0
    options: dict[str, str] = field(default_factory=dict)  # of sshd_config, in place of ours
    address: str = "127.0.0.1"
    namespace: str = ""  # of the network, if it lives in one of its own

    @property
    def path(self) -> Path:
        return Path(self.directory)

    @property
    def home(self) -> Path:
        """What sessions see as ``~``."""
        return self.path / "home"

    @property
    def log(self) -> str:
        with suppress(OSError):
            return (self.path / "sshd.log").read_text(errors="replace")
        return ""

    @property
    def is_up(self) -> bool:
        return self.pid > 0 and processes.is_alive(self.pid, self.started)

    def host_key(self) -> str:
        """The public host key as known_hosts writes it: ``ssh-ed25519 AAAA…``."""
        return " ".join((self.path / "host_key.pub").read_text().split()[:2])

    def sessions(self) -> list[int]:
        """Pids of everything that was started through this server and still lives."""
        return processes.tagged("HADAR_LAB", self.directory)

    def furnish(self) -> None:
        """Makes the directory: home, host key, login."""
        self.home.mkdir(parents=True, mode=0o700)
        make_key(self.path / "host_key")
        self.use_shell("bash" if shutil.which("bash") else "sh")

    def use_shell(self, shell: str) -> None:
        """From now on sessions run the command asked for in this shell: ``fish``, ``dash`` …

        SHLVL is unset so that bash takes itself for a login's first shell and reads the home's
        ``.bashrc``, as it does on a real node.
        """
        path = shutil.which(shell)
        if not path:
            raise LabError(f"there is no {shell} on this computer")
        script = f"""#!/bin/sh
export HOME={shlex.quote(str(self.home))} SHELL={path} HADAR_LAB={shlex.quote(self.directory)}
unset SHLVL
cd "$HOME"
[ -n "$SSH_ORIGINAL_COMMAND" ] || exec "$SHELL" -i
exec "$SHELL" -c "$SSH_ORIGINAL_COMMAND"
"""
        part = self.path / "login.part"
        part.write_text(script)
        part.chmod(0o700)
        part.replace(self.path / "login")

    def start(self, authorized_key: Path) -> None:
        """Starts the server; ``await_up`` tells when it answers."""
        (self.path / "sshd_config").write_text(self._config(authorized_key))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's empty cage
        with (self.path / "sshd.log").open("ab") as log:
            words = ["ip", "netns", "exec", self.namespace] if self.namespace else []
            process = subprocess.Popen(
                [*words, find_sshd(), "-D", "-e", "-f", str(self.path / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        process.returncode = 0  # ``end`` reaps it: it may outlive the Python that started it
        self.pid, self.started = process.pid, processes.start_time(process.pid) or 0

    def await_up(self) -> None:
        """Returns when the server greets."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.is_up:
            with suppress(OSError), socket.create_connection((self.address, self.port), 1.0) as tcp:
                tcp.settimeout(max(0.1, deadline - time.monotonic()))
                if tcp.recv(4) == b"SSH-":
                    return
            time.sleep(0.01)
        raise LabError(f"sshd on port {self.port} did not come up:\n{self.log[-1000:]}")

    def end(self, sessions: bool = True) -> None:
        """Kills the server; with its sessions also whatever was started through it."""
        if self.is_up:
            os.kill(self.pid, signal.SIGSTOP)  # no new sessions while the old ones are listed
            _kill(self.pid, *(descendants(self.pid) if sessions else ()))
            processes.wait_gone([(self.pid, self.started)], 5.0)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        self.pid = self.started = 0
        deadline = time.monotonic() + 5.0
        while sessions and (left := self.sessions()) and time.monotonic() < deadline:
            _kill(*left)
            time.sleep(0.02)

    def _config(self, authorized_key: Path) -> str:
        keys = str(authorized_key).replace("%", "%%")
        lines = [
            f"ListenAddress {self.address}",
            f"Port {self.port}",
            f'HostKey "{self.path / "host_key"}"',
            f'AuthorizedKeysFile "{keys}"',
            # The user's shell starts the login; away from home it finds no start-up files to run.
            f"ForceCommand {shlex.quote(str(self.path / 'login'))}",
            f'SetEnv "HOME={self.directory}"',
            "PidFile none",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            f"UsePAM {'yes' if _root_is_locked() else 'no'}",
            "UseDNS no",
            "PrintMotd no",
            "PrintLastLog no",
            "AllowAgentForwarding no",
            "X11Forwarding no",
            "MaxSessions 100",
            "MaxStartups 100",
            "LogLevel VERBOSE",
        ]
        for server in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server"):
            if Path(server).exists():
                lines.append(f"Subsystem sftp {server}")
                break
        lines = [line for line in lines if line.split()[0] not in self.options]
        lines += [f"{name} {value}" for name, value in self.options.items() if value]
        return "\n".join(lines) + "\n"


def make_key(path: Path) -> None:
    """Writes a key pair, in place of one that may be there."""
    for old in (path, path.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hadar-lab", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def free_ports(count: int) -> list[int]:
    """Below the range that outgoing connections use, so that a stopped server's port stays free."""
    free: list[int] = []
    for port in random.sample(range(20_000, 32_000), 12_000):
        if len(free) == count:
            break
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            free.append(port)
    return free


def find_sshd() -> str:
    """The SSH server's absolute path, which it insists on being started by; installs it if it can.

    Where systemd runs, installing the package would open port 22: that is for the user to decide.
    """
    path = _installed_sshd()
    if not path and os.geteuid() == 0 and not Path("/run/systemd/system").exists():
        _install_sshd()
        path = _installed_sshd()
    if not path:
        raise LabError(
            "the lab needs OpenSSH's server, sshd. Install it:\n"
            "    Debian, Ubuntu   sudo apt-get install openssh-server\n"
            "    Fedora, RHEL     sudo dnf install openssh-server\n"
            "    Arch             sudo pacman -S openssh\n"
            "The lab starts servers of its own; the system's may stay off:\n"
            "    sudo systemctl disable --now ssh"
        )
    return path


def _installed_sshd() -> str | None:
    places = ("/usr/sbin", "/usr/local/sbin", "/sbin", os.environ.get("PATH", ""))
    return shutil.which("sshd", path=os.pathsep.join(places))


def _install_sshd() -> None:
    apt = shutil.which("apt-get")
    if not apt:
        return
    print("installing openssh-server", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    patient = ["-o", "DPkg::Lock::Timeout=120"]  # somebody else may be installing something
    install = [apt, "-qq", "-y", *patient, "--no-install-recommends", "install", "openssh-server"]
    for words in (install, [apt, "-qq", "update"], install):
        subprocess.run(words, check=False, stdout=sys.stderr, env=environment)
        if _installed_sshd():
            return


def _root_is_locked() -> bool:
    """Without PAM, sshd turns away an account whose password is locked, even with the right key."""
    if os.geteuid():
        return False
    with suppress(OSError):
        for line in Path("/etc/shadow").read_text().splitlines():
            if line.startswith("root:"):
                return line.split(":")[1].startswith("!")
    return False


def descendants(pid: int) -> list[int]:
    """Everything below a process; sshd gives each connection a session of its own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, below = [], [pid]
    while below:
        below = [child for one in below for child in children.get(one, ())]
        found += below
    return found


def _kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
