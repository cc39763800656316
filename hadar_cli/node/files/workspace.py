"""The working directory of a job on a node: a copy of its project folder, this run's own.

What a script writes there dirties neither the user's folder nor the code that other runs share.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def make_workspace(run: Path, job: int, code: Path | None, links: Mapping[str, Path]) -> Path:
    """The job's working directory, made at its first copy; ``links`` lead from it to its data.

    It is named by what it holds as well: a run that is resumed with other code has another one.
    """
    held = hashlib.sha256(repr((code and code.name, sorted(links.items()))).encode()).hexdigest()
    name = f"{job}-{held[:16]}"
    place = run / "work" / name
    if place.is_dir():
        return place
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = place.with_name(f"{name}.{os.getpid()}.part")
    try:
        if code:
            shutil.copytree(code, scratch)
        else:
            scratch.mkdir(mode=0o700)
        for path, target in links.items():
            (scratch / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (scratch / path).symlink_to(target)
        scratch.rename(place)
    except OSError:
        if not place.is_dir():  # else another connection was first
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return place
