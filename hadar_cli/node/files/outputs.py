"""What a job leaves for its user on a node: plain files in one folder, named by ``HADAR_OUT``."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LONGEST_LIST = 400_000  # characters of names, in one answer


def out_folder(run: Path, job: int) -> Path:
    return run / "out" / str(job)


def list_outputs(folder: Path, most: int) -> tuple[list[tuple[str, int, int]], int]:
    """Names, sizes and times of plain files, sorted, and how many entries are not among them.

    Links are neither followed nor listed. A script may still be writing: what vanishes meanwhile
    is left out.
    """
    listed: list[tuple[str, int, int]] = []
    others = length = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        others += sum((Path(parent) / name).is_symlink() for name in folders)
        for name in sorted(names):
            path = Path(parent) / name
            try:
                facts, inside = path.lstat(), path.relative_to(folder).as_posix()
            except FileNotFoundError:
                continue
            length += len(inside)
            if stat.S_ISREG(facts.st_mode) and len(listed) < most and length < _LONGEST_LIST:
                listed.append((inside, facts.st_size, facts.st_mtime_ns))
            else:
                others += 1
    return listed, others
