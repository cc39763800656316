"""Packages of ``pip install --user``, which Python leaves out where it is started isolated."""

from __future__ import annotations

import site
import sys
from pathlib import Path


def add_user_site() -> None:
    """As an ordinary start would: a virtual environment has its own packages and no others."""
    folder = site.getusersitepackages()
    if sys.prefix == sys.base_prefix and folder not in sys.path and Path(folder).is_dir():
        site.addsitedir(folder)
