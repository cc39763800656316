"""How the machine's own tools are asked about its GPUs, and what their answers add up to."""

from __future__ import annotations

import pwd
import subprocess
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
TOOL_S = 10.0
_hung: dict[str, subprocess.Popen[bytes]] = {}  # by tool: a broken driver lets none of them die


def last_words(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {TOOL_S:g} s"
    said = (getattr(error, "stdout", None) or b"") + (getattr(error, "stderr", None) or b"")
    text = said.decode(errors="replace").strip() or f"{type(error).__name__}: {error}"
    return str(text)[:300]


def ask(*words: str) -> str:
    """Asked once more only when an earlier question that got no answer is out of the way: behind a
    broken driver, questions can neither be ended nor waited for."""
    if words[0] in _hung and _hung[words[0]].poll() is None:
        raise subprocess.TimeoutExpired(words, TOOL_S)
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        said, complaint = process.communicate(timeout=TOOL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _hung[words[0]] = process
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, said, complaint)
    return said.decode(errors="replace")


def number(text: object) -> float | None:
    """A cell of a tool's, which says ``[N/A]`` where it does not know."""
    try:
        return float(str(text))
    except ValueError:
        return None


def _owner(pid: int) -> str:
    try:
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    except (OSError, KeyError):
        return "someone"


def others_on(used_mb: float | None, held_mb: dict[int, float | None], ours: set[int]) -> Facts:
    """Who else is on a GPU, and with how much of its memory: what is used, less what is ours."""
    mine = [held_mb[pid] for pid in held_mb.keys() & ours]
    known = used_mb is not None and None not in mine
    return {
        "others": sorted({_owner(pid) for pid in held_mb.keys() - ours}),
        "sees_processes": any(Path(f"/proc/{pid}").exists() for pid in held_mb.keys() - {0}),
        "others_mb": max(0.0, (used_mb or 0.0) - sum(m or 0.0 for m in mine)) if known else None,
    }
