"""EC2 as moto's server plays it on loopback: instances become entries of an inventory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from hadar_cli.aws.discovery import Instance, as_toml
from hadar_cli.aws.machines import read_host_key
from hadar_cli.config.inventory import nodes_of, read_nodes
from hadar_cli.config.strict_toml import parse_toml
from hadar_cli.core.gpu_table import find_gpu, gpus_of, price_of

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBcd"
CONSOLE = f"""
[   12.3] cloud-init[1]: Generating public/private rsa key pair.
-----BEGIN SSH HOST KEY KEYS-----
ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAA= root@ip-10-0-0-1
{KEY} root@ip-10-0-0-1
ssh-rsa AAAAB3NzaC1yc2E= root@ip-10-0-0-1
-----END SSH HOST KEY KEYS-----
"""
ACCOUNT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def cluster(endpoint) -> None:
    client = boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    image = client.describe_images()["Images"][0]["ImageId"]
    wanted = [("g4dn.xlarge", "big one!"), ("p3.8xlarge", "four"), ("g4dn.xlarge", "stopped")]
    for kind, name in wanted:
        tags = [{"Key": "Project", "Value": "lab"}, {"Key": "Name", "Value": name}]
        made = client.run_instances(
            ImageId=image,
            InstanceType=kind,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        if name == "stopped":
            client.stop_instances(InstanceIds=[made["Instances"][0]["InstanceId"]])


def hadar(cwd: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = "from hadar_cli.cli.main import main; main()"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    nowhere = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    return subprocess.run(
        [sys.executable, "-c", code, "nodes", "aws", *words],
        cwd=cwd,
        env={**clean, **nowhere, "HOME": str(cwd), "AWS_EC2_METADATA_DISABLED": "true", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_running_instances_with_the_tag_become_nodes(endpoint, cluster, tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text('[[node]]\nname = "mine"\nhost = "local"\n')
    asked = ("--tag", "Project=lab", "--region", "us-east-1", "--user", "ubuntu")
    done = hadar(tmp_path, *asked, "--append", str(path), AWS_ENDPOINT_URL=endpoint, **ACCOUNT)
    assert done.returncode == 0, done.stderr
    mine, big, four = read_nodes(path)
    assert (mine.name, big.name, four.name) == ("mine", "big-one", "four")
    assert [gpu.model for gpu in big.gpus] == ["T4"]
    assert [gpu.model for gpu in four.gpus] == ["V100"] * 4
    assert (big.price_per_hour, four.price_per_hour, big.user) == (0.526, 12.24, "ubuntu")
    assert big.host.startswith("ec2-")
    again = hadar(tmp_path, *asked, "--append", str(path), AWS_ENDPOINT_URL=endpoint, **ACCOUNT)
    assert again.returncode == 2 and "already taken" in again.stderr
    assert len(read_nodes(path)) == 3, "and nothing was written"


@pytest.mark.parametrize(
    ("words", "env", "fix"),
    [
        (("--tag", "Project"), {}, "Project=lab"),
        (("--tag", "A=b", "--region", "us-east-1"), {}, "aws configure"),
        (("--tag", "A=b"), ACCOUNT, "--region"),
        (("--tag", "A=b", "--region", "us-east-1"), {**ACCOUNT, "ENDPOINT": "dead"}, "network"),
        (("--tag", "A=b", "--region", "us-east-1"), {**ACCOUNT, "ENDPOINT": "live"}, "--region"),
    ],
)
def test_what_is_missing_is_told_with_its_fix(endpoint, tmp_path, words, env, fix):
    """No tag, no credentials, no region, no AWS, no such instance."""
    env = dict(env)
    where = {"live": endpoint, "dead": "http://127.0.0.1:9"}.get(env.pop("ENDPOINT", ""), "")
    done = hadar(tmp_path, *words, **env, **({"AWS_ENDPOINT_URL": where} if where else {}))
    assert done.returncode == 2, done.stderr
    assert fix in done.stderr and "Traceback" not in done.stderr


def test_the_host_key_is_the_one_that_the_console_shows():
    assert read_host_key(CONSOLE) == KEY
    assert read_host_key("no keys yet") is None
    [node] = nodes_of(
        parse_toml(as_toml([Instance("i-1", "a", "g5.xlarge", "h", True, KEY)], "x", None), "t")
    )
    assert node.host_key == KEY and node.price_per_hour is None


def test_every_gpu_of_the_table_is_one_that_hadar_knows():
    kinds = (
        "p2.xlarge",
        "p3dn.24xlarge",
        "p4de.24xlarge",
        "p5.48xlarge",
        "g6e.48xlarge",
        "g3.4xlarge",
    )
    for kind in kinds:
        gpus = gpus_of(kind)
        assert gpus and find_gpu(gpus[0]), kind
    assert gpus_of("m5.large") is None and gpus_of("g5.nano") is None
    assert price_of("g5.xlarge", "us-east-1") and price_of("g5.xlarge", "eu-west-1") is None
