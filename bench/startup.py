"""How long the command takes to answer, beside a Python that does nothing.

python -m bench --only startup
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

from bench.frame import Row, beside

COMMANDS = (["--help"], ["policies"], ["run", "--help"])


def seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(quick: bool) -> Iterator[Row]:
    ours, bare = [sys.executable, "-m", "hadar_cli.cli.main"], [sys.executable, "-c", "pass"]
    for command in COMMANDS:
        seconds([*ours, *command])  # the first call compiles
        pairs = [(seconds([*ours, *command]), seconds(bare)) for _ in range(3 if quick else 9)]
        mine, theirs = zip(*pairs, strict=True)
        yield beside(f"hadar {' '.join(command)}", "s", mine, "python -c pass", theirs)
