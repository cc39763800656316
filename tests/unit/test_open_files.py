"""A head of many nodes needs many files."""

import subprocess
import sys

LOWERED = """
import resource
from hadar_cli import assembly
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
assembly._open_many_files()
soft, now = resource.getrlimit(resource.RLIMIT_NOFILE)
assert now == hard and (soft == hard or soft == 1 << 16), (soft, hard)
"""


def test_a_head_may_open_as_many_files_as_the_system_allows():
    assert subprocess.run([sys.executable, "-c", LOWERED], check=False).returncode == 0
