"""Virtual environments for jobs, one for each list of packages, shared by all runs of a node.

    <workdir>/venvs/<hash>/       on top of the node's own Python, whose packages it sees: torch and
                                  what else is there already need not be installed again
    <workdir>/venvs/<hash>.log    what pip had to say

``pip`` installs: uv does not see the packages underneath, and would fetch torch once more. Where
there is no pip, uv has to do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_BUILD_S = 1800.0
_TELL_EVERY_S = 2.0
_MOST_SAID = 1500  # of pip's last words, in characters
_SAYS_WHY = ("error", "ERROR", "No space", "not find", "No module", "×", "╰", "hint")
_READY = "hadar-ready"
_LEAST_FREE_MB = 32.0  # a virtual environment with nothing but pip takes half of it


class BuildError(Exception):
    """In words: what failed, and what to do about it."""


def make_venv(
    workdir: Path, wanted: Sequence[str], constraints: Sequence[str], tell: Callable[[str], None]
) -> Path:
    """The Python of a virtual environment with these packages, made unless it is there."""
    asked = "\n".join([sys.version, sys.prefix, *wanted, "constraints:", *constraints])
    folder = workdir / "venvs" / hashlib.sha256(asked.encode()).hexdigest()[:32]
    python = folder / "bin" / "python"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        _take(lock.fileno(), tell)
        if not (folder / _READY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _build(folder, python, wanted, constraints, tell)
                (folder / _READY).touch()
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return python


def _take(lock: int, tell: Callable[[str], None]) -> None:
    """Another run may be making the same one."""
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        tell("packages: they are being installed already")
        time.sleep(_TELL_EVERY_S)


def _build(
    folder: Path,
    python: Path,
    wanted: Sequence[str],
    constraints: Sequence[str],
    tell: Callable[[str], None],
) -> None:
    log = folder.with_suffix(".log")
    log.write_bytes(b"")
    tell("packages: making a virtual environment")
    venv = [sys.executable, "-m", "venv"]
    if has_pip := _run([*venv, str(folder)], log, tell) == 0:
        installer = [str(python), "-m", "pip"]
    else:
        _refuse_where_full(folder)
        shutil.rmtree(folder, ignore_errors=True)
        uv = shutil.which("uv", path=os.pathsep.join((str(Path.home() / ".local/bin"), _path())))
        if not uv or _run([uv, "venv", "--python", sys.executable, str(folder)], log, tell):
            raise BuildError(
                "its Python cannot make virtual environments with pip, and there is no uv: install "
                "python3-venv there (Debian, Ubuntu), or uv"
            )
        installer = [uv, "pip"]
    _see_packages_below(folder)
    for name, lines in (("wanted", wanted), ("constraints", constraints)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    words = [*installer, "install", "-r", str(folder / "wanted.txt")]
    if has_pip:
        words += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    else:
        words += ["--python", str(python)]
    if constraints:
        words += ["-c", str(folder / "constraints.txt")]
    if _run(words, log, tell):
        _refuse_where_full(folder)
        raise BuildError(f"its packages cannot be installed: {last_words(log)}")


def _refuse_where_full(folder: Path) -> None:
    """Where nothing more can be written, neither pip nor its log says why it failed."""
    free_mb = shutil.disk_usage(folder.parent).free / 1e6
    if free_mb < _LEAST_FREE_MB:
        raise BuildError(
            f"there is no room for its packages: {free_mb:.0f} MB are free in {folder.parent}; "
            "make room there, or give the node another 'workdir'"
        )


def _see_packages_below(folder: Path) -> None:
    """By a .pth file: a virtual environment made by another one would see the system's only."""
    below = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    if sys.prefix == sys.base_prefix:
        below.append(site.getusersitepackages())
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "packages_below.pth").write_text("\n".join(dict.fromkeys(below)) + "\n")


def _run(words: list[str], log: Path, tell: Callable[[str], None]) -> int:
    """Runs a command into the log and tells its last line all the while; its exit code."""
    environment = {**os.environ, "PYTHONNOUSERSITE": "1", "PATH": _path()}
    environment.pop("PYTHONPATH", None)
    with log.open("ab") as file:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
    give_up_at = time.monotonic() + _BUILD_S
    try:
        while time.monotonic() < give_up_at:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_TELL_EVERY_S)
            tell(f"packages: {_last_line(log) or Path(words[0]).name + ' is at work'}")
        raise BuildError(f"installing its packages takes longer than {_BUILD_S / 60:.0f} minutes")
    finally:
        with suppress(ProcessLookupError):  # also where nobody listens any more
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _path() -> str:
    return os.environ.get("PATH", os.defpath)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:120] if lines else ""


def last_words(log: Path) -> str:
    """Of pip: the few lines that say why."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if any(word in line for word in _SAYS_WHY)] or lines
    return " / ".join(telling[-3:])[:_MOST_SAID]
