"""The folder that a script belongs to: it travels to the nodes and is the working directory."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MARKERS = (".git", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Project:
    """A folder, and by what it was found to be the project's."""

    folder: Path
    found_by: str


def find_project(script: Path) -> Project | None:
    """The nearest folder above the script with a marker, else the script's own.

    None where that would be a home directory or the like: then the script travels alone.
    """
    own = Path(os.path.abspath(script)).parent  # noqa: PTH100 - without '..', and links as they are
    for folder in (own, *own.parents):
        if _is_common_ground(folder):
            break
        for marker in _MARKERS:
            if (folder / marker).exists():
                return Project(folder, marker)
    return None if _is_common_ground(own) else Project(own, "the script")


def find_module(module: str, folder: Path) -> Path | None:
    """The file that ``python -m MODULE`` would run from this folder, in it or in its ``src``."""
    parts = module.split(".")
    for root in (folder, folder / "src"):
        whole = root.joinpath(*parts)
        for path in (whole.with_name(f"{whole.name}.py"), whole / "__main__.py"):
            if path.is_file():
                return path
    return None


def _is_common_ground(folder: Path) -> bool:
    """Whether a folder holds many things beside any one project."""
    shared = (Path.home(), Path(tempfile.gettempdir()), Path(folder.anchor))
    return any(folder == place or folder in place.parents for place in shared)
