"""Instances that a run starts, on EC2 as moto plays it, with real machines behind them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.core.measures.costs import Rental, spent
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.state import RunState
from hadar_cli.node.agent import processes
from hadar_cli.runs.rentals import RentalLog, read_rentals
from hadar_cli.runs.store import find_run, read_journal
from tests.support.ec2 import Ec2Lab, running_ec2

SUPPORT = Path(__file__).parents[1] / "support"
STEPS = 300
MIX = f"""
slot_s: 2
merge: paper
jobs:
  - {{script: {SUPPORT}/gated_script.py, args: [GATE], steps: {STEPS}, batch_size: 8, count: 3}}
"""
# A copy that was sent ahead, sent too late, or still starting has no step to lose.
UNTRAINED = {Loss.PROCESS_GONE, Loss.ORDER_REFUSED, Loss.TERMINATED}
STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Ec2Lab]:
    with running_ec2(tmp_path_factory.mktemp("ec2") / "lab", count=2) as lab:
        yield lab


@pytest.fixture(autouse=True)
def no_head_outlives_its_test() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().kill()


def start(cwd: Path, *words: str, code: str = "", **env: str) -> subprocess.Popen[str]:
    code += "from hadar_cli.cli.main import main; main()"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        env={**clean, "AWS_EC2_METADATA_DISABLED": "true", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    STARTED.append(process)
    return process


def hadar(cwd: Path, *words: str, expect: int = 0, **env: str) -> str:
    process = start(cwd, *words, **env)
    told, _ = process.communicate(timeout=240)
    assert process.returncode == expect, told
    return told


def wait_until(condition: Callable[[], object], within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def journal(cwd: Path) -> list[events.Event]:
    return read_journal(cwd / "runs" / "r" / "journal.jsonl")


def counted(cwd: Path, kind: type) -> int:
    return sum(isinstance(event, kind) for event in journal(cwd))


def state_of(cwd: Path) -> RunState:
    state = RunState(find_run(cwd / "runs", "r").facts.mix.jobs)
    for event in journal(cwd):
        state.apply(event)
    return state


def losses(cwd: Path) -> list[str]:
    return [event.why for event in journal(cwd) if isinstance(event, events.DeviceLost)]


def absences(cwd: Path) -> dict[str, Absence]:
    return {device: event.reason for device, event in state_of(cwd).lost_devices.items()}


@pytest.mark.timeout(900)
def test_a_run_survives_what_the_cloud_and_its_user_do_to_it(lab, tmp_path):
    """kill -9 and resume, a spot notice, no money left, clean: all steps count once."""
    gate = tmp_path / "gate"
    (tmp_path / "mix.yaml").write_text(MIX.replace("GATE", str(gate)))
    one, two = lab.names
    head = start(tmp_path, "run", "mix.yaml", "-n", str(lab.inventory), "--name", "r")
    wait_until((tmp_path / "runs" / "r" / "journal.jsonl").exists)
    wait_until(lambda: counted(tmp_path, events.WeightsMerged) >= 1)
    before = lab.running()
    assert set(before) == {one, two}
    tags = lab.client.describe_tags(Filters=[{"Name": "resource-id", "Values": [before[one]]}])
    assert {"hadar:run": "r"}.items() <= {t["Key"]: t["Value"] for t in tags["Tags"]}.items()
    behaviour = lab.client.describe_instance_attribute(
        InstanceId=before[one], Attribute="instanceInitiatedShutdownBehavior"
    )
    assert behaviour["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    heard_at = (lab[one].path / "alive").stat().st_mtime
    wait_until(lambda: (lab[one].path / "alive").stat().st_mtime > heard_at)
    head.send_signal(signal.SIGKILL)
    head.wait()

    head = start(tmp_path, "resume", "r")
    merged = counted(tmp_path, events.WeightsMerged)
    wait_until(lambda: counted(tmp_path, events.WeightsMerged) > merged)
    assert lab.running() == before, "the instances were found again"

    assert "no instance" not in hadar(tmp_path, "logs", "gated_script-1", "--run", "r")
    since = state_of(tmp_path).now
    lab.give_notice(one)
    wait_until(lambda: lab.running().get(one, before[one]) != before[one])
    wait_until(lambda: one not in absences(tmp_path))
    lost = [e for e in journal(tmp_path) if isinstance(e, events.CopyLost) and e.t > since]
    assert {event.reason for event in lost} <= UNTRAINED
    assert head.poll() is None

    head.send_signal(signal.SIGKILL)  # and much is spent before anybody goes on
    head.wait()
    rental_log, now = RentalLog(tmp_path / "runs" / "r"), time.time()
    left = 10.0 - spent(rental_log.rentals, now) - 2.0 * 110 / 3600  # of both, for 110 s
    rental_log.begin(Rental("i-dear", one, "p5.48xlarge", left, now - 3600, now))
    told = hadar(tmp_path, "resume", "r", expect=3)
    assert "budget of $10.00 is used up" in told
    assert lab.running() == {}
    assert counted(tmp_path, events.WeightsMerged) > merged, "what they had was handed in"

    text = lab.inventory.read_text().replace("budget = 10.0", "budget = 100.0")
    (tmp_path / "richer.toml").write_text(text)
    gate.touch()
    hadar(tmp_path, "resume", "r", "-n", "richer.toml")
    state = state_of(tmp_path)
    state.validate()
    assert [len(job.done) for job in state.jobs.values()] == [STEPS] * 3
    assert lab.running() == {}
    rentals = read_rentals(tmp_path / "runs" / "r")
    assert all(rental.until for rental in rentals)
    report = json.loads(hadar(tmp_path, "report", "r", "--json"))
    assert report["costs"]["total"] == pytest.approx(spent(rentals, time.time()))
    assert len(report["costs"]["jobs"]) == 3 and all(report["costs"]["jobs"].values())
    assert "budget $100.00" in hadar(tmp_path, "report", "r")


@pytest.mark.timeout(600)
def test_a_run_goes_on_while_credentials_are_expired(lab, tmp_path):
    """What AWS does not do is done once somebody has logged in anew, or said at the end."""
    gate = tmp_path / "gate"
    (tmp_path / "mix.yaml").write_text(MIX.replace("GATE", str(gate)))
    one, _ = lab.names
    words = ("run", "mix.yaml", "-n", str(lab.inventory), "--name", "r")
    lab.expire_credentials()
    told = hadar(tmp_path, *words, expect=2)
    assert "RequestExpired" in told and "log in anew" in told and not (tmp_path / "runs").exists()
    lab.expire_credentials(False)

    head = start(tmp_path, *words)
    wait_until((tmp_path / "runs" / "r" / "journal.jsonl").exists)
    wait_until(lambda: counted(tmp_path, events.WeightsMerged) >= 1)
    before, machine = lab.running(), lab[one].pid
    lab.expire_credentials()
    lab.give_notice(one)
    wait_until(lambda: any("log in anew" in why for why in losses(tmp_path)))
    assert absences(tmp_path)[one] is Absence.AWAITED
    merged = counted(tmp_path, events.WeightsMerged)
    wait_until(lambda: counted(tmp_path, events.WeightsMerged) > merged + 1)
    assert lab[one].pid == machine and lab[one].is_up, "nobody could end it"
    lab.expire_credentials(False)
    wait_until(lambda: lab.running().get(one) not in (None, before[one]))
    wait_until(lambda: one not in absences(tmp_path))

    lab.expire_credentials()
    gate.touch()
    told, _ = head.communicate(timeout=240)
    assert head.returncode == 0, told
    assert [len(job.done) for job in state_of(tmp_path).jobs.values()] == [STEPS] * 3
    assert "goes on: log in anew" in told and "hadar clean r" in told
    lab.expire_credentials(False)
    assert len(lab.running()) == 2
    lab.expire_credentials()
    assert "log in anew" in hadar(tmp_path, "clean", "r", "--yes", expect=3)
    lab.expire_credentials(False)
    hadar(tmp_path, "clean", "r", "--yes")
    assert lab.running() == {}


@pytest.mark.timeout(300)
def test_one_s_own_instance_is_started_and_stopped_again(lab, tmp_path):
    """Its shutdown would terminate it, so that no switch is started there; and that is noted."""
    client = lab.client
    image = client.describe_images()["Images"][0]["ImageId"]
    many = {"MinCount": 1, "MaxCount": 1, "InstanceInitiatedShutdownBehavior": "terminate"}
    [raw] = client.run_instances(ImageId=image, InstanceType="g4dn.xlarge", **many)["Instances"]
    own, [name, *_] = raw["InstanceId"], lab.names
    head, first, *_ = lab.inventory.read_text().split("[[aws.instances]]")
    mine = f"{head}[[aws.instances]]{first}".replace(
        f'template = "lab-{name}"\nspot = true', f'ids = ["{own}"]'
    )
    (tmp_path / "nodes.toml").write_text(mine)
    (tmp_path / "gate").touch()
    (tmp_path / "mix.yaml").write_text(MIX.replace("GATE", str(tmp_path / "gate")))
    told = hadar(tmp_path, "run", "mix.yaml", expect=2)
    assert "runs already, for somebody else" in told and not (tmp_path / "runs").exists()

    client.stop_instances(InstanceIds=[own])
    hadar(tmp_path, "run", "mix.yaml", "--name", "r")
    [rental] = read_rentals(tmp_path / "runs" / "r")
    assert rental.instance == own and rental.until and "hadar clean" in rental.note
    [after] = client.describe_instances(InstanceIds=[own])["Reservations"][0]["Instances"]
    assert after["State"]["Name"] == "stopped"
    assert not [tag for tag in after.get("Tags", ()) if tag["Key"].startswith("hadar")]
    client.terminate_instances(InstanceIds=[own])


@pytest.mark.timeout(600)
def test_an_instance_without_work_is_ended_until_there_is_some(lab, tmp_path):
    """Then the run is cancelled, and another one's head killed: nothing stays, known or not."""
    gate, one_copy = tmp_path / "gate", "fork: 1, name: NAME"
    for name in ("first", "second"):
        text = MIX.replace("GATE", str(gate)).replace("count: 3", one_copy).replace("NAME", name)
        (tmp_path / f"{name}.yaml").write_text(text)
    hurry = "from hadar_cli.aws import demand, transport\n"
    hurry += "transport._MINUTE_S, demand._SHORT_S = 0.2, 1.0\n"  # idle_minutes is 15
    words = ("run", "first.yaml", "-n", str(lab.inventory), "--name", "r")
    head = start(tmp_path, *words, code=hurry)
    wait_until(lambda: len(lab.running()) == 2)
    [idle] = set(lab.names) - {_at_work(tmp_path, "first")}
    wait_until(lambda: idle not in lab.running())
    wait_until(lambda: absences(tmp_path).get(idle) is Absence.AWAITED)
    hadar(tmp_path, "add", "r", "second.yaml")
    assert _at_work(tmp_path, "second") == idle
    wait_until(lambda: set(lab.running()) == set(lab.names))
    hadar(tmp_path, "cancel", "r")
    assert head.wait(180) == 130, head.communicate()[0]
    assert lab.running() == {}

    head = start(tmp_path, "run", "first.yaml", "-n", str(lab.inventory), "--name", "s")
    wait_until(lambda: len(lab.running()) == 2)
    head.send_signal(signal.SIGKILL)
    head.wait()
    left = lab.running()
    (tmp_path / "runs" / "s").rename(tmp_path / "elsewhere")
    told = hadar(tmp_path, "clean", "-n", str(lab.inventory), "--yes")
    assert all(instance in told for instance in left.values()) and "hadar clean s" in told
    assert lab.running() == left, "somebody's head may be at work on them"
    told = hadar(tmp_path, "clean", "s", "-n", str(lab.inventory), expect=2)
    assert "--yes" in told and lab.running() == left
    hadar(tmp_path, "clean", "s", "-n", str(lab.inventory), "--yes")
    assert lab.running() == {}
    told = hadar(tmp_path, "clean", "s", "-n", str(lab.inventory), "--yes", expect=2)
    assert "there is no run" in told

    head = start(tmp_path, "run", "first.yaml", "-n", str(lab.inventory), "--name", "known")
    wait_until(lambda: len(lab.running()) == 2)
    head.send_signal(signal.SIGKILL)
    head.wait()
    left = lab.running()
    told = hadar(tmp_path, "clean", "known", "--yes")
    assert all(instance in told for instance in left.values()) and lab.running() == {}
    assert all(rental.until for rental in read_rentals(tmp_path / "runs" / "known"))
    wait_until(lambda: not any(node.is_up for node in lab.nodes))


def _at_work(cwd: Path, name: str) -> str:
    """The device that trains the job of that name."""

    def found() -> list[str]:
        if not (cwd / "runs" / "r" / "journal.jsonl").exists():
            return []
        jobs = {job.name: job.id for job in find_run(cwd / "runs", "r").facts.mix.jobs}
        began = (e for e in journal(cwd) if isinstance(e, events.CopyStarted))
        return [e.device for e in began if e.job == jobs.get(name)]

    wait_until(found)
    return found()[-1]


@pytest.mark.parametrize(
    ("change", "env", "why", "fix"),
    [
        (("lab-titan-rtx", "nope"), {}, "nope", "describe-launch-templates"),
        (('template = "lab-titan-rtx"\nspot = true', 'ids = ["i-00000000"]'), {}, "i-00000000", ""),
        (("budget = 10.0", "budget = 0.01"), {}, "first 5 minutes", "raise it to"),
        (("budget = 10.0", "budget = 0"), {}, "out of range", "above 0"),
        (("config = ", "profile = 'nobody'\nconfig = "), {}, "nobody", "list-profiles"),
        (("/aws.config", "/nothing"), {}, "there is no", "mend the path"),
        (("config = ", "# "), {"AWS_CONFIG_FILE": "/dev/null"}, "region", "us-east-1"),
        (("config = ", "region = 'us-east-1' # "), {}, "credentials", "aws configure"),
        (("", ""), {"PYTHONPATH": "WITHOUT"}, "boto3", "pip install 'hadar[aws]'"),
    ],
)
def test_what_cannot_start_is_refused_before_anything_is(lab, tmp_path, change, env, why, fix):
    (tmp_path / "mix.yaml").write_text(MIX)
    (tmp_path / "nodes.toml").write_text(lab.inventory.read_text().replace(*change))
    without = tmp_path / "without"
    without.mkdir()
    (without / "boto3.py").write_text("raise ImportError")
    env = {key: value.replace("WITHOUT", str(without)) for key, value in env.items()}
    none = {"AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "HOME": str(tmp_path)}
    told = hadar(tmp_path, "run", "mix.yaml", expect=2, **{**none, **env})
    assert why in told and fix in " ".join(told.split()) and "Traceback" not in told
    assert lab.running() == {} and not (tmp_path / "runs").exists()


def test_the_lab_s_script_makes_and_removes_such_a_cloud(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "lab"
    words = [sys.executable, str(script), "--dir", str(tmp_path / "lab")]
    up = subprocess.run(
        [*words, "up", "--engine", "aws", "--nodes", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "titan-rtx" in up.stdout and "hadar check" in up.stdout
    lab = Ec2Lab.open(tmp_path / "lab")
    assert "to be launched" in hadar(tmp_path, "check", "-n", str(lab.inventory))
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "hadar:node", "Value": "titan-rtx"}]}]
    lab.client.run_instances(
        LaunchTemplate={"LaunchTemplateName": "lab-titan-rtx"},
        MinCount=1,
        MaxCount=1,
        TagSpecifications=tags,
    )
    wait_until(lambda: lab["titan-rtx"].is_up)
    status = subprocess.run([*words, "status"], capture_output=True, text=True, check=True)
    assert "runs, pid" in status.stdout
    pid, started = json.loads((lab.directory / "server.json").read_text())
    left = [(pid, started), (lab["titan-rtx"].pid, lab["titan-rtx"].started)]
    subprocess.run([*words, "down"], capture_output=True, check=True)
    assert processes.wait_gone(left, 10.0) and not (tmp_path / "lab").exists()
