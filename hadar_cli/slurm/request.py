"""What sbatch, squeue and srun are told: words that every login shell reads alike.

No option here is younger than Slurm 20.11, which brought ``--overlap``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hadar_cli.core.model import Node
from hadar_cli.core.slurm import SlurmRequest, seconds_of
from hadar_cli.errors import InputError
from hadar_cli.node.contract import NOTICE
from hadar_cli.slurm import keeper

IDLE_S = 900.0  # without a head, before an allocation is given back
_HAND_IN_S = 120.0  # before the time limit, for copies to hand in
_RENEW_S = 600.0  # before the time limit, from when on the next allocation may start
_PLAIN = re.compile(r"[A-Za-z0-9_.,:=@%+/~-]+")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./~+-]+")
_UNQUOTABLE = re.compile(r"['\\!\n\r]")
_FIELDS = ("%i", "%T", "%L", "%N", "%S", "%r", "%j")  # the name comes last: it may hold anything
SQUEUE = ("squeue", "--me", f"--format={'|'.join(_FIELDS)}")


def command_line(request: SlurmRequest, words: Sequence[str]) -> str:
    """One of Slurm's commands as the login node's shell is to read it."""
    program, *rest = words
    if request.bin:
        program = f"{request.bin.rstrip('/')}/{program}"
    conf = ["env", f"SLURM_CONF={request.conf}"] if request.conf else []
    return " ".join(quote(word) for word in (*conf, program, *rest))


def quote(word: str) -> str:
    """Within single quotes, bash, dash, fish and tcsh agree; but for what is refused here."""
    if _UNQUOTABLE.search(word):
        raise InputError(
            f"{word!r}: shells would not all read this alike",
            field="slurm",
            fix="leave out quotes, backslashes and exclamation marks",
        )
    return word if _PLAIN.fullmatch(word) else f"'{word}'"


def job_name(run: str, node: str) -> str:
    """By this name a head finds its allocations again, whoever asked for them."""
    return f"hadar:{run}:{node}"


def sbatch(node: Node, run: str, directory: str, begins_in_s: float = 0.0) -> list[str]:
    """Asks for one node; ``directory`` is the run's, where the allocation keeps its log."""
    request = _request(node)
    words = ["sbatch", "--parsable", *wanted(request), f"--job-name={job_name(run, node.name)}"]
    words += ["--output=/dev/null", "--chdir=/", "--export=ALL"]
    words.append(f"--signal=B:USR1@{_notice_s(request):.0f}")
    if begins_in_s > 0:
        words.append(f"--begin=now+{begins_in_s:.0f}")
    shell = "bash -lc" if request.setup else "sh -c"  # `module` is there in login shells only
    script = base64.b64encode(_script(node, request, directory).encode()).decode()
    return [*words, f'--wrap=exec {shell} "$(echo {script} | base64 -d)"']


def test_request(node: Node) -> list[str]:
    """Has Slurm say when the request would start, or why never."""
    return ["sbatch", "--test-only", *wanted(_request(node)), "--wrap=true"]


def srun(job: str) -> list[str]:
    """A step of an allocation that takes nothing of it: no memory, no GPU, a core it shares."""
    words = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--quiet"]
    return [*words, "--mem=0", "--gres=none", "--mpi=none", "--chdir=/"]


def renew_after_s(left_s: float) -> float:
    """When, with that much time left, the next allocation may start."""
    return left_s - min(_RENEW_S, left_s / 4)


def _request(node: Node) -> SlurmRequest:
    assert node.slurm, node.name
    return node.slurm


def wanted(request: SlurmRequest) -> Iterator[str]:
    """The options of sbatch that say what for."""
    yield from ("--nodes=1", "--ntasks=1", f"--time={request.time}")
    named = {
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "gres": request.gres,
        "constraint": request.constraint,
        "cpus-per-task": request.cpus,
        "mem": request.mem,
    }
    yield from (f"--{name}={value}" for name, value in named.items() if value is not None)
    yield from request.options


def _notice_s(request: SlurmRequest) -> float:
    limit_s = seconds_of(request.time)
    return _HAND_IN_S if limit_s is None else max(1.0, min(_HAND_IN_S, limit_s / 4))


def _script(node: Node, request: SlurmRequest, directory: str) -> str:
    """The batch script. Its output goes where ``hadar clean`` finds it."""
    if not _PLAIN_PATH.fullmatch(directory):
        fix = "use a path of letters, digits and . _ - + / ~ only, that the login node sees too"
        raise InputError(f"workdir: {directory!r} is no plain path", field="workdir", fix=fix)
    keeps = Path(keeper.__file__).read_text()
    return f"""umask 077
cd
mkdir -p {directory} && exec >>{directory}/slurm-$SLURM_JOB_ID.log 2>&1
export {NOTICE}={directory}/notice-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}
{request.setup or ""}
exec {node.python or "python3"} -I - ${NOTICE} {IDLE_S:g} <<'KEEPER'
{keeps}
KEEPER
"""
