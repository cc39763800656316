"""A job's ``setup`` command, run once per run on each node before the job's first copy there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def stamp_path(run: Path, job: int, folder: str, command: str) -> Path:
    """The file that says that the command is done for this job, whose code is in the folder."""
    name = hashlib.sha256(f"{job}\0{folder}\0{command}".encode()).hexdigest()
    return run / "setup" / name


def set_up(command: str, stamp: Path, python: str, environment: Mapping[str, str]) -> int:
    """Runs the command in the working directory unless it is done; returns its exit code.

    One command at a time: copies on the node's other devices wait, and jobs that share a folder
    do not install into it at once. The command is the mix's own code, which nodes run by design.
    """
    stamp.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (stamp.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists():
            return 0
        print("setup begins", flush=True)
        code = _shell(command, stamp.with_suffix(".sh"), python, environment)
        if code:
            print(f"setup failed with exit code {code}", flush=True)
        else:
            stamp.touch()
    return code


def _shell(command: str, script: Path, python: str, environment: Mapping[str, str]) -> int:
    """Into the worker's log, in its process group; `python` and `pip` are those of the copy.

    By way of a file: a command may hold a password, and anyone can read others' command lines.
    """
    descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(command)
    path = os.pathsep.join((str(Path(python).parent), environment.get("PATH", os.defpath)))
    done = subprocess.run(
        ["/bin/sh", str(script)],
        env={**environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode if done.returncode >= 0 else 128 - done.returncode  # as shells do
