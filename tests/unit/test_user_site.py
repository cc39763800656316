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
from hadar_cli.node.user_site import add_user_site
add_user_site()
import only_for_me
"""


@pytest.mark.parametrize(
    ("python", "finds_it"), [(getattr(sys, "_base_executable", ""), True), (sys.executable, False)]
)
def test_packages_of_the_user_are_found_but_not_from_a_virtual_environment(
    tmp_path, python, finds_it
):
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / ".local" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "only_for_me.py").touch()
    assert sys.prefix != sys.base_prefix
    done = subprocess.run(
        [python, "-I", "-c", CODE], env={"HOME": str(tmp_path)}, capture_output=True, check=False
    )
    assert (done.returncode == 0) is finds_it, done.stderr
