"""What a worker's end means for its copy. Nobody else reads a script's last words."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from hadar_cli.core.model import Launch
from hadar_cli.core.reasons import Loss
from hadar_cli.engine.ports import CopyOrder
from hadar_cli.node.agent_events import Exited, WorkerEnd
from hadar_cli.node.log_phrases import CANNOT_SHARE, CANNOT_SPLIT, MEMBER_LOST, NO_GPU
from hadar_cli.nodes.wire import said
from hadar_cli.project.selection import rule_that_keeps

_LONGEST_VERSION = 40

# How a script ends whose node lacks what every PyTorch job needs: no other copy would fare better.
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(torch|safetensors)'$")
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: ?)?"  # torch leads the lines of a gang's members with their rank
    r"(?:[\w.]+\.)?(\w*(?:Error|Exception|CannotSplit|CannotShare|MemberLost))\b.*",
    re.MULTILINE,
)
# As torch, its math libraries on NVIDIA and AMD, numpy and Python say it. A handle of cuBLAS that
# cannot be created is mostly a card without room for its workspace.
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|MemoryError|out of memory|an't allocate memory|Cannot allocate memory"
    r"|not enough memory|_ALLOC_FAILED|_ALLOCATION_FAILED|StatusAllocFailed"
    r"|rocblas_status_memory_error|CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate"
)
# What C++ says where nobody catches it: such a process ends by a signal.
_UNCAUGHT = re.compile(
    r"^terminate called .*'(?:std::bad_alloc|c10::OutOfMemoryError)'", re.MULTILINE
)
# As Python says it; compiled readers have words of their own.
_NOT_FOUND = re.compile(r"FileNotFoundError.*No such file or directory: '([^'\n]{1,1000})'")
_WORKSPACE = re.compile(r"^/.*/work/\d+-[0-9a-f]+/")  # where a node has a job's project
_LONGEST = 200  # characters of an error
_LOSSES = {
    WorkerEnd.RELEASED: Loss.TERMINATED,
    WorkerEnd.NO_LEASE: Loss.NO_LEASE,
    WorkerEnd.DEADLINE: Loss.DEADLINE,
    WorkerEnd.NEVER_STARTED: Loss.NEVER_STARTED,
    WorkerEnd.NO_NURSERY: Loss.NO_NURSERY,
    WorkerEnd.NO_DISK: Loss.NO_DISK,
    WorkerEnd.OUT_OF_MEMORY: Loss.OUT_OF_MEMORY,
    WorkerEnd.SUPERVISOR_KILLED: Loss.SUPERVISOR_KILLED,
    WorkerEnd.CARD_TAKEN: Loss.CARD_TAKEN,
}


def explain_end(exited: Exited, order: CopyOrder) -> tuple[Loss, str]:
    """Why a copy without a result is lost, and the same in words for people."""
    last_words = exited.log.strip().rpartition("\n")[2]
    if missing := _MISSING.match(last_words):
        why = f"its python has no {missing[1]}: pip install torch safetensors there"
        return Loss.NO_TORCH, why
    if last_words.startswith(NO_GPU):
        version = said(last_words.removeprefix(NO_GPU).strip(), _LONGEST_VERSION)
        why = f"its torch {version} sees no GPU: install a build for its driver there"
        return Loss.NO_TORCH, why
    try:
        end = WorkerEnd(exited.end)
    except ValueError:
        return Loss.UNKNOWN, f"its node says: {exited.end}"
    if end is WorkerEnd.EXITED:
        loss, why = _explain_exit(exited)
        return loss, why + _left_behind(exited.log, order.job.launch)
    if end is WorkerEnd.RELEASED and order.follows:
        # Told to leave before it came to what was sent ahead, it did no wrong.
        return Loss.PROCESS_GONE, Loss.PROCESS_GONE.text
    loss = _LOSSES[end]
    return loss, f"{loss.text}: {exited.detail}" if exited.detail else loss.text


def _explain_exit(exited: Exited) -> tuple[Loss, str]:
    reasons = {0: Loss.NO_RESULT, -signal.SIGTERM: Loss.TERMINATED}
    if exited.code == -signal.SIGABRT and (uncaught := _UNCAUGHT.search(exited.log)):
        return Loss.OUT_OF_MEMORY, f"{Loss.OUT_OF_MEMORY.text}: {said(uncaught[0], _LONGEST)}"
    if exited.code > 0 and (error := _last_error(exited.log)):
        if error[1] == CANNOT_SPLIT:
            return Loss.CANNOT_SPLIT, Loss.CANNOT_SPLIT.text
        if error[1] == CANNOT_SHARE:
            why = f"{Loss.CANNOT_SHARE.text}: {_told(error)}; leave out 'gpus'"
            return Loss.CANNOT_SHARE, why
        if error[1] == MEMBER_LOST:
            return Loss.MEMBER_LOST, f"{Loss.MEMBER_LOST.text}: {_told(error)}"
        if _OUT_OF_MEMORY.search(error[0]):
            return Loss.OUT_OF_MEMORY, f"{Loss.OUT_OF_MEMORY.text}: {error[0][:_LONGEST]}"
    reason = reasons.get(exited.code, Loss.EXITED)
    return reason, reason.text if exited.code == 0 else f"it exited with code {exited.code}"


def _left_behind(log: str, launch: Launch) -> str:
    """Of a file that the script did not find, and that is here: why it did not travel."""
    error = _last_error(log)
    missing = error and _NOT_FOUND.search(error[0])
    if not missing or not launch.sync:
        return ""
    project = Path(launch.sync)
    place = project / _WORKSPACE.sub("", missing[1])  # there a copy of it is the working directory
    try:
        is_here = ".." not in place.parts and place.is_relative_to(project) and place.exists()
        kept = rule_that_keeps(project, place) if is_here else None
    except OSError:  # it is no name that this computer can have
        return ""
    if kept is None:
        return ""
    name, (rule, what) = place.relative_to(project), kept
    return f"; {name} stays behind by {rule}: !{what} in .hadarignore sends it, or 'data: [{name}]'"


def _told(error: re.Match[str]) -> str:
    return said(error[0].partition(": ")[2], _LONGEST)


def _last_error(log: str) -> re.Match[str] | None:
    """The error that a traceback ends with; what was caught and printed before is no matter."""
    errors = list(_ERROR.finditer(log))
    return errors[-1] if errors else None
