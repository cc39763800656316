"""A job's packages, as a requirements file or a pyproject.toml asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tomli

from hadar_cli.errors import InputError

_MOST_FILES = 20  # that include each other
_OPTIONS = (
    *("--index-url", "-i", "--extra-index-url", "--find-links", "-f", "--no-index"),
    *("--pre", "--prefer-binary", "--only-binary"),
)


@dataclass(frozen=True, slots=True)
class Requirements:
    """Lines for pip, on whatever node: what is to be there, and what versions may be chosen."""

    wanted: tuple[str, ...]
    constraints: tuple[str, ...] = ()


def read_requirements(path: Path) -> Requirements:
    """Raises InputError for a file that cannot be read, or that means something on this computer
    only."""
    if path.name == "pyproject.toml":
        return _of_pyproject(path)
    reader = _Reader()
    wanted = tuple(reader.lines(path))
    if not wanted:
        raise InputError("asks for no packages", file=str(path), field="venv", fix="List some.")
    return Requirements(wanted, tuple(reader.constraints))


def _of_pyproject(path: Path) -> Requirements:
    try:
        project = tomli.loads(_text(path)).get("project", {})
    except tomli.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", file=str(path), field="venv") from None
    wanted = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
        fix = "Add [project] dependencies, or name a requirements file."
        raise InputError("has no list of dependencies", file=str(path), field="venv", fix=fix)
    return Requirements(tuple(wanted))


class _Reader:
    def __init__(self) -> None:
        self.constraints: list[str] = []
        self._files = 0

    def lines(self, path: Path) -> Iterator[str]:
        self._files += 1
        if self._files > _MOST_FILES:
            raise InputError("includes files without end", file=str(path), field="venv")
        for number, line in _joined(_text(path)):
            option, _, rest = line.partition(" ")
            if "=" in option and option.startswith("--"):
                option, _, rest = line.partition("=")
            if option in ("-r", "--requirement"):
                yield from self.lines(path.parent / rest.strip())
            elif option in ("-c", "--constraint"):
                self.constraints += _Reader().lines(path.parent / rest.strip())
            elif _is_local(line) and option not in _OPTIONS:
                raise InputError(
                    f"'{line}' is a path or an option that nodes cannot follow",
                    file=str(path),
                    line=number,
                    field="venv",
                    fix="Name packages by name or URL; the project's own can be imported anyway.",
                )
            else:
                yield line


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, those that a backslash continues made one."""
    pending = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip() if not raw.lstrip().startswith("#") else ""
        line = line.partition(" #")[0].strip()
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        if joined := (pending + line).strip():
            yield number, joined
        pending = ""


def _is_local(line: str) -> bool:
    return line.startswith(("-", ".", "/", "~", "file:")) or " @ file:" in line


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise InputError(f"cannot be read: {reason}", file=str(path), field="venv") from None
