"""EC2 on this computer: moto's server, and machines that really start and end with its instances.

    lab/nodes.toml                  for hadar: -n lab/nodes.toml
        aws.config                  for boto3 and the aws command: AWS_CONFIG_FILE=lab/aws.config
        lab.json                    what runs: the server, and who stands for each machine
        expired                     as long as it is there, EC2 takes nobody's credentials
        <node>/                     home, sshd.log; spot-notice, once there is one

An instance that is launched for a node, from the template ``lab-NODE``, is the node's private SSH
server: it boots with a new host key, which its console shows, has a metadata service of its own,
and ends with whatever was started on it.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hadar_cli.node.agent import processes
from tests.support.lab import (
    PROFILES,
    ROOT,
    LabError,
    LabFolder,
    LabNode,
    models_of,
    python_with_torch,
    require_no_lab,
)
from tests.support.sshd import find_sshd, free_ports, make_key

__all__ = ["Ec2Lab", "running_ec2"]

REGION = "us-east-1"
_START_S = 60.0
_LOOK_EVERY_S = 0.1
_DEAR = 1.0  # dollars an hour, of machines that the profile gives no price
_PAIR = ("id_ed25519", "id_ed25519.pub")


class Ec2Lab(LabFolder):
    """The lab in one directory. ``up`` makes it, ``open`` finds it again, ``down`` removes it."""

    kind = "ec2"

    def __init__(self, directory: Path) -> None:
        self.path = str(directory.resolve())
        self.config = self.directory / "aws.config"

    @classmethod
    def up(cls, directory: Path, profile: str = "testbed", count: int | None = None) -> Ec2Lab:
        lab = cls(directory)
        require_no_lab(lab.directory)
        _require_moto()
        find_sshd()
        lab.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        models = models_of(profile, count or len(PROFILES[profile]))
        make_key(lab.directory / _PAIR[0])
        ports = free_ports(2 * len(models))
        nodes = [
            LabNode(directory=str(lab.directory / model.name), port=port, **asdict(model))
            for model, port in zip(models, ports, strict=False)
        ]
        _save(lab.directory, nodes, ports[len(models) :])
        try:
            lab._start_server()
            lab._write_inventory(ports[len(models) :])
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def open(cls, directory: Path) -> Ec2Lab:
        return cls(directory)

    def down(self) -> None:
        """Ends every process of the lab and removes its directory."""
        with suppress(OSError, ValueError):
            pid, started = json.loads((self.directory / "server.json").read_text())
            if processes.is_alive(pid, started):
                os.kill(pid, signal.SIGTERM)
                if not processes.wait_gone([(pid, started)], 20.0):
                    os.kill(pid, signal.SIGKILL)
        for node in self.nodes:
            node.end()
        shutil.rmtree(self.directory)

    @property
    def nodes(self) -> list[LabNode]:
        return [LabNode(**row) for row in _read(self.directory)["nodes"]]

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.nodes]

    def __getitem__(self, name: str) -> LabNode:
        return next(node for node in self.nodes if node.name == name)

    @property
    def endpoint(self) -> str:
        return (self.directory / "endpoint").read_text()

    @property
    def client(self) -> Any:
        """EC2's, for a test that looks for itself."""
        import boto3  # type: ignore[import-untyped]

        return boto3.client(
            "ec2",
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id="lab",
            aws_secret_access_key="lab",
        )

    def running(self) -> dict[str, str]:
        """Instances that run or start, by their node."""
        return {
            tag["Value"]: raw["InstanceId"]
            for group in self.client.describe_instances()["Reservations"]
            for raw in group["Instances"]
            if raw["State"]["Name"] in ("pending", "running")
            for tag in raw.get("Tags", ())
            if tag["Key"] == "hadar:node"
        }

    def give_notice(self, name: str, what: str = "spot-notice") -> None:
        """As AWS does two minutes before it takes a spot instance; or ``rebalance``."""
        (self[name].path / what).touch()

    def expire_credentials(self, are_expired: bool = True) -> None:
        """As those of a login do after some hours."""
        if are_expired:
            (self.directory / "expired").touch()
        else:
            (self.directory / "expired").unlink()

    # -- making it ----------------------------------------------------------------------------

    def _start_server(self) -> None:
        with (self.directory / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ec2", str(self.directory)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process.returncode = 0  # ``down`` ends it: it may outlive the Python that started it
        mark = [process.pid, processes.start_time(process.pid) or 0]
        (self.directory / "server.json").write_text(json.dumps(mark))
        deadline = time.monotonic() + _START_S
        while not (self.directory / "endpoint").exists():
            if time.monotonic() > deadline or not processes.is_alive(*mark):
                said = (self.directory / "server.log").read_text(errors="replace")[-1000:]
                raise LabError(f"moto's server did not come up:\n{said}")
            time.sleep(0.05)

    def _write_inventory(self, metadata: list[int]) -> None:
        keys = {"region": REGION, "endpoint_url": self.endpoint}
        keys |= {"aws_access_key_id": "lab", "aws_secret_access_key": "lab"}
        lines = ["[default]", *(f"{key} = {value}" for key, value in keys.items())]
        self.config.write_text("\n".join(lines) + "\n")
        shared = {
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "identity_file": str(self.directory / _PAIR[0]),
            "python": python_with_torch(),
        }
        lines = ["# EC2 as moto plays it on this computer; `scripts/lab down` removes it.", ""]
        lines += ["[defaults]", *(f"{k} = {json.dumps(v)}" for k, v in shared.items() if v), ""]
        lines += ["[aws]", f"config = {json.dumps(str(self.config))}", "budget = 10.0"]
        for node, port in zip(self.nodes, metadata, strict=True):
            lines += ["", "[[aws.instances]]", f'name = "{node.name}"']
            lines += [f'template = "lab-{node.name}"', "spot = true"]
            lines += ['host = "127.0.0.1"', f"port = {node.port}"]
            lines += [f'gpus = [{{ model = "{node.gpu}" }}]']
            lines += [f"emulate = {{ speed = {node.speed:.4g} }}"]
            lines += [f"price_per_hour = {node.price_per_hour or _DEAR}"]
            alive = json.dumps(str(node.path / "alive"))
            there = f'HADAR_METADATA = "http://127.0.0.1:{port}", HADAR_ALIVE = {alive}'
            lines += [f"env = {{ {there} }}"]
        self.inventory.write_text("\n".join(lines) + "\n")


@contextmanager
def running_ec2(directory: Path, count: int = 1, profile: str = "testbed") -> Iterator[Ec2Lab]:
    """A lab for the length of a ``with`` block."""
    lab = Ec2Lab.up(directory, profile, count)
    try:
        yield lab
    finally:
        lab.down()


def _save(directory: Path, nodes: list[LabNode], metadata: list[int]) -> None:
    raw = {"ec2": {"metadata": metadata}, "nodes": [asdict(node) for node in nodes]}
    part = directory / "lab.json.part"
    part.write_text(json.dumps(raw, indent=1))
    part.replace(directory / "lab.json")


def _read(directory: Path) -> Any:
    return json.loads((directory / "lab.json").read_text())


def _require_moto() -> None:
    try:
        import moto.server  # noqa: F401
    except ImportError:
        raise LabError("the lab needs moto: pip install 'moto[ec2,server]' boto3") from None


# -- the server's process ------------------------------------------------------------------------


class _Machines:
    """Has SSH servers follow the instances that stand for them."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.is_over = directory, threading.Event()
        raw = _read(directory)
        self._nodes = {row["name"]: LabNode(**row) for row in raw["nodes"]}
        self._metadata = raw["ec2"]["metadata"]
        self._runs_on: dict[str, str] = {}  # instance -> node
        self.consoles: dict[str, str] = {}
        for node, port in zip(self._nodes.values(), self._metadata, strict=True):
            node.furnish()
            _serve_metadata(node.path, port)

    def follow(self, backend: Any) -> None:
        while not self.is_over.wait(_LOOK_EVERY_S):
            for instance in list(backend.all_instances()):
                tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
                node = self._nodes.get(tags.get("hadar:node", ""))
                is_up = instance.state == "running"
                if is_up and node and instance.id not in self._runs_on:
                    self._boot(instance.id, node)
                elif not is_up and instance.id in self._runs_on:
                    self._end(instance.id)
        for instance in list(self._runs_on):
            self._end(instance)

    def _boot(self, instance: str, node: LabNode) -> None:
        self._runs_on[instance] = node.name
        for word in ("spot-notice", "rebalance"):
            (node.path / word).unlink(missing_ok=True)
        node.end()
        shutil.rmtree(node.home)
        node.home.mkdir(mode=0o700)
        make_key(node.path / "host_key")
        (node.path / "alive").touch()
        shown = f"-----BEGIN SSH HOST KEY KEYS-----\n{node.host_key()} root@lab\n"
        self.consoles[instance] = f"{shown}-----END SSH HOST KEY KEYS-----\n"
        node.start(self._directory / _PAIR[1])
        node.await_up()
        self._save()

    def _end(self, instance: str) -> None:
        node = self._nodes[self._runs_on.pop(instance)]
        self.consoles.pop(instance, None)
        if node.name not in self._runs_on.values():
            node.end()
            self._save()

    def _save(self) -> None:
        _save(self._directory, list(self._nodes.values()), self._metadata)


def _serve_metadata(path: Path, port: int) -> None:
    """EC2's metadata service, version 2, as far as it tells of an instance's end."""
    token = base64.b16encode(os.urandom(8)).decode()
    told = {
        "/latest/meta-data/spot/instance-action": (
            "spot-notice",
            {"action": "terminate", "time": "2030-01-01T00:00:00Z"},
        ),
        "/latest/meta-data/events/recommendations/rebalance": (
            "rebalance",
            {"noticeTime": "2030-01-01T00:00:00Z"},
        ),
    }

    class Service(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            ttl = int(self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0))
            is_ours = self.path == "/latest/api/token" and 0 < ttl <= 21_600
            self._answer(200 if is_ours else 400, token if is_ours else "")

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") != token:
                self._answer(401, "")
                return
            name, content = told.get(self.path, ("", {}))
            is_said = bool(name) and (path / name).exists()
            self._answer(200 if is_said else 404, json.dumps(content) if is_said else "")

        def _answer(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _refuse_expired(sign: Path) -> None:
    from moto.core.responses import BaseResponse
    from werkzeug.exceptions import HTTPException

    class Expired(HTTPException):
        code = 400
        description = (
            "<Response><Errors><Error><Code>RequestExpired</Code><Message>Request has expired."
            "</Message></Error></Errors><RequestID>0</RequestID></Response>"
        )

    def authenticate(self: Any, resource: str) -> None:
        if sign.exists():
            raise Expired

    mixin: Any = BaseResponse
    mixin._authenticate_and_authorize_normal_action = authenticate


def main() -> None:
    from moto.backends import get_backend
    from moto.core import DEFAULT_ACCOUNT_ID  # type: ignore[attr-defined]
    from moto.core.responses import ActionResult
    from moto.ec2.responses.general import General
    from moto.server import ThreadedMotoServer

    directory = Path(sys.argv[1])
    machines = _Machines(directory)

    def console(self: Any) -> Any:
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId")).id
        shown = base64.b64encode(machines.consoles.get(instance, "booting\n").encode()).decode()
        return ActionResult({"InstanceId": instance, "Output": shown})

    General.get_console_output = console  # type: ignore[method-assign]
    _refuse_expired(directory / "expired")
    backend = get_backend("ec2")[DEFAULT_ACCOUNT_ID][REGION]
    image = next(iter(backend.amis))
    for node in _read(directory)["nodes"]:
        wanted = {"ImageId": image, "InstanceType": "g4dn.xlarge"}
        backend.create_launch_template(f"lab-{node['name']}", "", wanted, {})
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    signal.signal(signal.SIGTERM, lambda number, frame: machines.is_over.set())
    (directory / "endpoint.part").write_text(f"http://{host}:{port}")
    (directory / "endpoint.part").replace(directory / "endpoint")
    machines.follow(backend)
    os._exit(0)


if __name__ == "__main__":
    main()
