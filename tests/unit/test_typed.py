"""Types that several threads meet for the first time, all at once."""

import subprocess
import sys

# In a process of its own: what goes wrong here ends the process.
MEET = """
import sys, threading
from dataclasses import make_dataclass
from hadar_cli.typed import convert

sys.setswitchinterval(1e-6)
for _ in range(20):
    parts = [make_dataclass(f"Part{i}", [("a", int), ("b", str)]) for i in range(6)]
    kind = make_dataclass("Whole", [(f"f{i}", part) for i, part in enumerate(parts)])
    message = {f"f{i}": {"a": 1, "b": "x"} for i in range(6)}
    gate = threading.Barrier(8)
    meet = lambda: (gate.wait(), convert(message, kind))
    threads = [threading.Thread(target=meet) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_meet_a_type_for_the_first_time_at_once():
    ended = subprocess.run(
        [sys.executable, "-c", MEET], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
