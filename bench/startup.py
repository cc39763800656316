"""How long the command takes to answer, beside a Python that does nothing.

python -m bench --only startup
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from bench.frame import Row, beside

COMMANDS = (["--help"], ["policies"], ["run", "--help"])


def seconds(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def rows(quick: bool) -> Iterator[Row]:
    ours, bare = [sys.executable, "-m", "hadar_cli.cli.main"], [sys.executable, "-c", "pass"]
    for command in COMMANDS:
        seconds([*ours, *command])  # the first call compiles
        pairs = [(seconds([*ours, *command]), seconds(bare)) for _ in range(3 if quick else 9)]
        mine, theirs = zip(*pairs, strict=True)
        yield beside(f"hadar {' '.join(command)}", "s", mine, "python -c pass", theirs)
