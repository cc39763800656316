"""Files that a training script leaves: opened only if they are plain ones, read only so far.

A script may leave anything under the agreed name: a link, a pipe that nobody writes to, a device
without an end. None of them may be followed, waited for or read whole.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

_LARGEST_JSON = 1 << 18


def open_plain(path: str | Path) -> io.FileIO:
    """The file for reading; raises ValueError where it is none that could be read to its end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link, a socket, a device
            raise ValueError(f"{path} is no plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is no plain file")
    return io.FileIO(descriptor)


def read_json(path: str | Path) -> dict[str, Any]:
    """A small JSON object; raises OSError or ValueError for anything else."""
    with open_plain(path) as file:
        content = file.read(_LARGEST_JSON + 1)
    if len(content) > _LARGEST_JSON:
        raise ValueError(f"{path} is larger than {_LARGEST_JSON} bytes")
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found
