"""What `pip install --user` has installed is there for workers, though Python starts isolated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from hadar_cli.node.agent import nursery, probe
WHO
import only_for_me
"""
BASE = getattr(sys, "_base_executable", "")


@pytest.mark.parametrize(
    ("python", "who", "finds_it"),
    [
        (BASE, "nursery.main()", True),
        (BASE, "probe.import_torch()", True),
        (sys.executable, "nursery.main()", False),
    ],
)
def test_packages_of_the_user_are_found_but_not_from_a_virtual_environment(
    tmp_path, python, who, finds_it
):
    """By the process that workers are forked from, and by ``hadar check``."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / ".local" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "only_for_me.py").touch()
    assert sys.prefix != sys.base_prefix
    done = subprocess.run(
        [python, "-I", "-c", CODE.replace("WHO", who)],
        env={"HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode == 0) is finds_it, done.stderr
