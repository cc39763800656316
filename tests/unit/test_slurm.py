"""Requests to Slurm as they are read and written, its queue as it is told, a keeper by itself."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.config.inventory import nodes_of
from hadar_cli.config.strict_toml import parse_toml
from hadar_cli.core.model import Node
from hadar_cli.core.slurm import SlurmRequest, seconds_of
from hadar_cli.errors import InputError
from hadar_cli.node.agent.bootstrap import COMMAND
from hadar_cli.nodes.wire import NoMoreError, NotYetError
from hadar_cli.pipes.transport import PipeTransport
from hadar_cli.slurm import keeper, relay
from hadar_cli.slurm.limits import is_endless, partitions_of, what_would_do, why_never
from hadar_cli.slurm.queue import Login, _read
from hadar_cli.slurm.request import command_line, quote, renew_after_s, sbatch
from hadar_cli.slurm.transport import SlurmTransport


def nodes(text: str) -> tuple[Node, ...]:
    return nodes_of(parse_toml(text, "nodes.toml"))


def test_a_block_is_as_many_nodes_as_it_says():
    block = """
[defaults]
python = "~/venv/bin/python"
[[slurm]]
name = "big"
count = 2
time = "1-12"
gres = "gpu:a100:2,lscratch:100"
[[slurm]]
name = "small"
time = "4:00:00"
host = "login.example.org"
gres = "gpu:rtx_3090"
renew = false
"""
    one, two, small = nodes(block)
    assert [node.name for node in (one, two, small)] == ["big-1", "big-2", "small"]
    assert [[gpu.model for gpu in node.gpus] for node in (one, small)] == [
        ["A100", "A100"],
        ["RTX 3090"],
    ]
    assert (one.host, small.host, one.python) == ("local", "login.example.org", "~/venv/bin/python")
    assert one.slurm == SlurmRequest("1-12", gres="gpu:a100:2,lscratch:100")
    assert small.slurm and not small.slurm.renew
    assert not one.is_local and one.is_allotted


@pytest.mark.parametrize("host", ["", 'host = "local"\n', 'host = "login"\n'])
def test_a_node_s_own_table_says_the_same(host):
    """Without a host, Slurm is asked here; a machine without a request still needs one."""
    text = f'[[node]]\nname = "a"\n{host}slurm = {{ time = "30", gres = "gpu:t4:1" }}\n'
    node, mine = nodes(text + '[[node]]\nname = "mine"\nhost = "ssh"\n')
    assert node.slurm == SlurmRequest("30", gres="gpu:t4:1") and not mine.slurm
    assert [gpu.model for gpu in node.gpus] == ["T4"]
    assert node.host == ("login" if "login" in host else "local") and node.is_allotted
    with pytest.raises(InputError, match="'host' is missing"):
        nodes(text + '[[node]]\nname = "mine"\n')


@pytest.mark.parametrize(
    ("line", "field", "fix"),
    [
        ('time = "soon"', "slurm.time", "4:00:00"),
        ("time = 30", "slurm.time", '"30"'),
        ('gres = "gpu:2"', "slurm.gres", "gpus ="),
        ('gres = "gpu:quux:2"', "slurm.gres", "gpus ="),
        ('partition = "a b"', "slurm.partition", "one word"),
        ('partition = "it\'s"', "slurm.partition", "without quotes"),
        ('options = ["--wrap=rm"]', "slurm.options[0]", "Leave it out"),
        ('options = ["--mem 3"]', "slurm.options[0]", "--exclusive"),
        ('options = ["--mem=3G"]', "slurm.options[0]", "mem = "),
        ('options = ["--cpus-per-task=3"]', "slurm.options[0]", "cpus = "),
        ('partitoin = "gpu"', "slurm.partitoin", "partition"),
        ("nodes = 4", "slurm.nodes", "count"),
        ('options = ["--gpus-per-node=a100:2"]', "slurm.options", "gres ="),
        ("count = 0", "slurm.count", "from 1"),
        ('gres = "gpu:t4:2"\ngpus = [{ model = "T4" }]', "slurm.gres", "agree"),
    ],
)
def test_a_bad_request_is_refused_with_its_place_and_fix(line, field, fix):
    time_ = "" if line.startswith("time") else 'time = "30"\n'
    with pytest.raises(InputError) as caught:
        nodes(f'[slurm]\nname = "a"\n{time_}{line}\n')
    assert caught.value.field == field
    assert fix in (caught.value.fix or "") and caught.value.line


def test_one_block_beside_several_is_told_by_its_brackets():
    block = '[slurm]\nname = "a"\ntime = "30"\n'
    with pytest.raises(InputError) as caught:
        nodes(f"{block}[{block.replace(']', ']]', 1)}")
    assert caught.value.line == 4 and "[[slurm]]" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30", 1800), ("30:05", 1805), ("2:00:00", 7200), ("1-12", 129_600), ("1-0:0:1", 86_401)],
)
def test_times_are_read_as_slurm_writes_them(written, seconds):
    assert seconds_of(written) == seconds


def test_what_is_no_time_has_no_end():
    assert [seconds_of(word) for word in ("UNLIMITED", "NOT_SET", "INVALID", "")] == [None] * 4


def test_words_for_the_login_node_s_shell_are_quoted_or_refused():
    request = SlurmRequest("30", bin="/opt/slurm/bin/", conf="/etc/slurm/a.conf")
    line = command_line(request, ["squeue", "--format=%i|%T", "--constraint=a&b"])
    assert line == (
        "env SLURM_CONF=/etc/slurm/a.conf /opt/slurm/bin/squeue '--format=%i|%T' '--constraint=a&b'"
    )
    for word in ("it's", "a\\b", "a\nb", "wow!"):
        with pytest.raises(InputError):
            quote(word)


def test_every_shell_hands_the_request_on_as_it_is(tmp_path):
    setup = 'module load cuda; echo "it\'s $HOME"'
    node = Node("a", "local", slurm=SlurmRequest("30", constraint="[a|b]", setup=setup))
    words = sbatch(node, "r", "~/.hadar/runs/r/a", 60.0)
    line = command_line(SlurmRequest("30"), words)
    show = tmp_path / "sbatch"
    show.write_text(f"#!{sys.executable}\nimport sys, json; print(json.dumps(sys.argv[1:]))\n")
    show.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for shell in ("sh", "bash", "dash", "fish", "tcsh"):
        try:
            told = subprocess.run([shell, "-c", line], env=env, capture_output=True, check=True)
        except FileNotFoundError:
            continue  # scripts/check installs them all
        assert json.loads(told.stdout) == words[1:], shell
    assert "--begin=now+60" in words and "--signal=B:USR1@120" in words


def test_a_workdir_that_shells_read_differently_is_refused():
    node = Node("a", "local", slurm=SlurmRequest("30"))
    with pytest.raises(InputError, match="workdir"):
        sbatch(node, "r", "/my files/r")


def test_the_next_allocation_may_start_before_the_old_one_ends():
    assert renew_after_s(4 * 3600.0) == 4 * 3600.0 - 600.0
    assert renew_after_s(60.0) == 45.0


def test_the_queue_is_read_below_whatever_a_login_says():
    table = (
        "Welcome | to | the | cluster | of | us | all\n"
        "JOBID|STATE|TIME_LEFT|NODELIST|START_TIME|REASON|NAME\n"
        "7|RUNNING|1-02:03:04|n1|2026-01-01T00:00:00|None|hadar:r:a\n"
        "8|PENDING|10:00||N/A|BeginTime|hadar:r:a|b\n"
    )
    running, waiting = _read(table)
    assert running.is_running and running.left_s == 93_784
    assert waiting.is_deferred and waiting.name == "hadar:r:a|b"
    assert waiting.in_words() == "job 8 waits in Slurm's queue: BeginTime"


SCONTROL = """\
Welcome to the cluster
PartitionName=day AllowAccounts=ALL Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=short AllowAccounts=ALL Default=NO MaxTime=00:30:00 State=UP
PartitionName=off AllowAccounts=ALL Default=NO MaxTime=UNLIMITED State=DOWN
PartitionName=vision AllowAccounts=cv,nlp Default=NO MaxTime=UNLIMITED State=UP
"""


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (SlurmRequest("30"), None),
        (SlurmRequest("2-0"), "gives 1-00:00:00 at the most"),
        (SlurmRequest("31", partition="short"), "gives 00:30:00 at the most"),
        (SlurmRequest("31", partition="short,day"), None),
        (SlurmRequest("2-0", partition="short,day"), "partition day gives"),
        (SlurmRequest("30", partition="off"), "DOWN"),
        (SlurmRequest("30", partition="vision", account="bio"), "accounts cv,nlp"),
        (SlurmRequest("30", partition="vision", account="cv"), None),
        (SlurmRequest("30", partition="elsewhere"), None),
    ],
)
def test_what_a_partition_never_gives_is_known_before_it_is_asked_for(request_, why):
    told = why_never(request_, partitions_of(SCONTROL))
    assert told is None if why is None else why in (told or "")


@pytest.mark.parametrize(
    ("reason", "endless"),
    [
        ("PartitionTimeLimit", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("QOSMinCpuNotSatisfied", True),
        ("QOSMinGRES", True),
        ("MaxMemPerLimit", True),
        ("ReservationDeleted", True),
        ("Job's account not known, so it can't use this partition (a allows b)", True),
        ("Resources", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpGRES", False),
        ("PartitionDown", False),
    ],
)
def test_what_a_job_waits_for_may_never_come(reason, endless):
    assert is_endless(reason) is endless


SINFO = "gpu|gpu:a100:4|ib,big|64|512000\ngpu|gpu:a100:4|ib|64|512000\ncpu|(null)|(null)|32|64000\n"


@pytest.mark.parametrize(
    ("complaint", "fix"),
    [
        ("Invalid partition name specified", "did you mean 'gpu'? partitions here: gpu, cpu"),
        ("Invalid feature specification", "features of the nodes there: ib, big"),
        ("Requested node configuration is not available", "gpu:a100:4 with 64 CPUs and 512000 MB"),
        ("Invalid account or account/partition combination specified", "sacctmgr"),
    ],
)
def test_a_refusal_comes_with_what_there_is(complaint, fix):
    asked = SlurmRequest("30", partition="gpuu" if "partition name" in complaint else None)
    assert fix in what_would_do(complaint, asked, SINFO)


# -- allocations, as a queue of scripted commands tells of them ----------------------------------

SCRIPTED = """#!/bin/sh
cd {here}
echo "${{0##*/}} $*" | cut -c1-60 >> said
case ${{0##*/}} in
srun) echo slurm 20.02.7 ;;
squeue) echo "JOBID|STATE|TIME_LEFT|NODELIST|START_TIME|REASON|NAME"; cat queue ;;
scancel) for job; do sed -i "/^$job|/d" queue; done ;;
sbatch) echo 90 ;;
esac
"""


@pytest.fixture
def node(tmp_path) -> SlurmTransport:
    """One of a run on a cluster whose queue is the file of that name."""
    for name in ("squeue", "scancel", "sbatch", "scontrol", "srun"):
        (tmp_path / name).write_text(SCRIPTED.format(here=tmp_path))
        (tmp_path / name).chmod(0o755)
    asked = Node("a", "local", slurm=SlurmRequest("30", bin=str(tmp_path)))
    asked = replace(asked, user=tmp_path.name)  # a queue of its own
    return SlurmTransport(asked, "r", str(tmp_path), PipeTransport(["sh", "-c"]))


def finds(node: SlurmTransport, folder: Path, *rows: str) -> list[str]:
    """What the node says to Slurm, beside looking, when its queue is this."""
    (folder / "queue").write_text("".join(f"{row}|hadar:r:a\n" for row in rows))
    (folder / "said").unlink(missing_ok=True)
    node._login.queue.changed()
    with suppress(NotYetError):
        node._find()
    said = (folder / "said").read_text().splitlines()
    return [" ".join(line.split()[:3]) for line in said if not line.startswith("squeue")]


def test_a_requeued_allocation_makes_way_for_the_one_that_was_to_follow(node, tmp_path):
    """Slurm lets it wait for minutes. Where none was to follow, it is waited for."""
    runs = "7|RUNNING|9:00|n1|N/A|None"
    follows = "8|PENDING|30:00||2026-01-01T00:00:00|BeginTime"
    requeued = "7|PENDING|30:00||2026-01-01T00:00:00|BeginTime"
    assert finds(node, tmp_path, runs, follows) == []
    assert finds(node, tmp_path, requeued) == []
    assert finds(node, tmp_path, follows, requeued) == ["scancel 7", "scontrol update jobid=8"]


@pytest.mark.parametrize("why", ["launch failed requeued held", "JobHoldMaxRequeue"])
def test_an_allocation_that_slurm_could_not_launch_is_asked_for_anew(node, tmp_path, why):
    said = finds(node, tmp_path, f"7|PENDING|30:00||N/A|{why}")
    assert said[0] == "scancel 7" and said[1].startswith("sbatch")


def test_a_request_that_waits_in_vain_is_taken_back(node, tmp_path):
    with pytest.raises(NoMoreError, match="never start job 7: PartitionTimeLimit"):
        finds(node, tmp_path, "7|PENDING|30:00||N/A|PartitionTimeLimit")
    assert (tmp_path / "queue").read_text() == ""


def test_a_slurm_without_overlapping_steps_is_refused_before_anything_is_asked_for(node, tmp_path):
    with pytest.raises(InputError, match=r"slurm 20\.02\.7, which cannot join") as refused:
        node._login.check()
    assert "salloc" in (refused.value.fix or "")
    assert "sbatch" not in (tmp_path / "said").read_text()


def test_a_login_node_that_is_out_of_reach_is_told_with_what_to_do(tmp_path):
    nowhere = Node("n", "login", slurm=SlurmRequest(time="1"))
    login = Login(nowhere, PipeTransport(["/nowhere/ssh"]))
    with pytest.raises(InputError, match="the way to Slurm on login") as refused:
        login.check()
    assert "`ssh login`" in (refused.value.fix or "")


# -- a keeper, without any Slurm --------------------------------------------------------------


def start_keeper(notice: Path, job: str, idle_s: float) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-I", str(keeper.__file__), str(notice), str(idle_s)]
    env = {**os.environ, "SLURM_JOB_ID": job}
    return subprocess.Popen(words, env=env, start_new_session=True)


def start_relay(job: str) -> subprocess.Popen[bytes]:
    code = COMMAND.partition("'")[2].rstrip("'")
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        env={**os.environ, "SLURM_JOB_ID": job},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(Path(relay.__file__).read_text()).encode() + b"\n")
    process.stdin.flush()
    assert [process.stdout.readline(), process.stdout.readline()] == [
        b"\n",
        b'@hadar {"kept": true}\n',
    ]
    return process


ECHOES = (
    "import os, sys\nprint(os.getppid(), flush=True)\nprint(os.read(0, 9).decode(), flush=True)"
)


def test_a_keeper_starts_what_relays_ask_for_and_outlives_them(tmp_path):
    job = f"test{os.getpid()}"
    kept = start_keeper(tmp_path / "notice", job, 5.0)
    first, second = start_relay(job), start_relay(job)
    for stream in (first, second):
        assert stream.stdin and stream.stdout
        stream.stdin.write(json.dumps(ECHOES).encode() + b"\n")
        stream.stdin.flush()
        assert int(stream.stdout.readline()) == kept.pid, "it is no child of the relay"
    first.kill()
    assert second.stdin and second.stdout
    second.stdin.write(b"still")
    second.stdin.flush()
    assert second.stdout.readline() == b"still\n"
    assert second.wait(30) == 0
    assert kept.poll() is None
    assert kept.wait(60) == 0  # nobody came back
    assert not (tmp_path / "notice").exists()


@pytest.mark.parametrize("asked", ["batch", "step"])
def test_a_keeper_leaves_word_and_waits_for_its_streams(tmp_path, asked):
    """Slurm signals the batch step before a time limit, and other steps when it preempts."""
    job = f"test-{asked}{os.getpid()}"
    notice = tmp_path / "notice"
    kept = start_keeper(notice, job, 600.0)
    stream = start_relay(job)
    assert stream.stdin and stream.stdout
    stream.stdin.write(json.dumps(ECHOES).encode() + b"\n")
    stream.stdin.flush()
    stream.stdout.readline()
    if asked == "batch":
        kept.send_signal(signal.SIGUSR1)
    else:
        stream.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 30.0
    while not (notice.exists() and notice.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert ("time limit" if asked == "batch" else "takes its allocation") in notice.read_text()
    assert kept.poll() is None and stream.poll() is None
    stream.stdin.write(b"goodbye")
    stream.stdin.flush()
    assert stream.stdout.readline() == b"goodbye\n"
    assert kept.wait(30) == 0  # at once: its allocation ends
