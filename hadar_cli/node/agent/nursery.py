"""Where workers are born: torch is imported once a node, and every worker starts as a fork of it.

    python -I nursery.py [torch]

Imports torch at once if told to, else when a worker's script speaks of it. Reads the directory of
one worker per line, with its ``spec.json`` inside, and starts a supervisor for each. It ends with
its agent, or with the last of those that share it; the supervisors and their workers do not. A fork
takes milliseconds, importing torch seconds. It never touches a GPU: every worker chooses its own.
"""

from __future__ import annotations

import atexit
import dataclasses
import errno
import fcntl
import gc
import hashlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

if __name__ == "__main__":  # run by its path, on nodes where nothing is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hadar_cli.node.agent import processes
from hadar_cli.node.agent.setup import set_up
from hadar_cli.node.agent.supervisor import WorkerSpec, supervise
from hadar_cli.node.agent_events import WorkerEnd
from hadar_cli.node.contract import DATA, TRACE, write_atomically
from hadar_cli.node.log_phrases import NO_GPU
from hadar_cli.node.user_site import add_user_site

_SPEC = "spec.json"
_NURSERY = "nursery.json"
_GONE_S = 10.0
# Elsewhere a process that has imported torch must not go on as a fork of itself: macOS kills it.
_FORKS = sys.platform.startswith("linux")


class Nursery:
    """The agent's hold on it: it ends with the agent; the next worker gets another if it died."""

    def __init__(self, log: Path, imports: list[str]) -> None:
        self.log, self._imports = log, imports
        self._process = self._popen(subprocess.PIPE)

    def _popen(self, lines: int) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).resolve()), *self._imports],
                stdin=lines,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """Not left to its end of file: after the answer, nothing of the run is there any more."""
        self._kill()

    def start(self, directory: Path, spec: WorkerSpec) -> None:
        """Has it fork the worker, and notes in the worker's directory who was asked."""
        write_atomically(directory / _SPEC, dataclasses.asdict(spec))
        try:
            self._ask_for(directory)
        except (BrokenPipeError, BlockingIOError):  # it is dying, or has long ceased to read
            self._kill()
            self._ask_for(directory)

    def may_start(self, directory: Path) -> bool:
        """Whether the nursery that was asked for the worker lives; it may be an earlier agent's."""
        asked = _read_process(directory / _NURSERY)
        return self.is_alive if asked[0] == self.pid else processes.is_alive(*asked)

    def _ask_for(self, directory: Path) -> None:
        """Never waits: so short a line is taken whole or not at all."""
        if not self.is_alive:
            self._begin_again()
        _note_process(directory / _NURSERY, self.pid)  # first: without it, nobody was asked
        os.set_blocking(self._input, False)
        os.write(self._input, os.fsencode(directory) + b"\n")

    @property
    def _input(self) -> int:
        assert self._process.stdin
        return self._process.stdin.fileno()

    def _begin_again(self) -> None:
        self._process = self._popen(subprocess.PIPE)

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


class SharedNursery(Nursery):
    """One for all nodes of a run that are this computer: five would import torch five times.

    Whoever comes first begins it. All write to one named pipe, so that it ends with the last of
    them. A lock that each holds tells whether others use it; locks and pipes end with a process,
    however that ends.
    """

    def __init__(
        self, folder: Path, note: Path, imports: list[str], needs: Mapping[str, str]
    ) -> None:
        """``needs`` tells which nodes may share: those with the same environment, for one."""
        alike = json.dumps([sys.executable, sorted(needs.items())]).encode()
        self._folder = folder / hashlib.sha256(alike).hexdigest()[:12]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log, self._imports = self._folder / "nursery.log", imports
        self._users = (self._folder / "users").open("a+")  # NFS locks for both ways only so
        self._mine: subprocess.Popen[bytes] | None = None
        self._known, self._lines = (0, 0), -1
        self._begin_again()
        write_atomically(note, {"log": str(self.log)})
        self._note = note.open()  # by this file it is known whose agent this is

    @property
    def is_alive(self) -> bool:
        if self._mine:
            self._mine.poll()  # it must not stay as a zombie
        return processes.is_alive(*self._known)

    @property
    def pid(self) -> int:
        return self._known[0]

    @property
    def _input(self) -> int:
        return self._lines

    def end(self) -> None:
        with self._locked():
            if not self._has_other_users():
                self._kill()
                (self._folder / "lines").unlink(missing_ok=True)
            os.close(self._lines)
            self._users.close()

    def _begin_again(self) -> None:
        with self._locked():
            if self._lines >= 0:
                os.close(self._lines)
            # First the pipe, then the look who else has it: so it was never without a writer.
            self._lines, self._known = self._open_lines(), _read_process(self._folder / _NURSERY)
            is_used = self._has_other_users()
            if self._lines >= 0 and is_used and self.is_alive:
                return
            if is_used:  # else it ends by itself, once it has done what it was told
                self._kill()
            if self._lines >= 0:
                os.close(self._lines)
            self._begin()

    def _begin(self) -> None:
        """On a new pipe: what is left in the old one was meant for a nursery that is gone."""
        path = self._folder / "lines"
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._lines = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        try:
            self._mine = self._popen(reading)
        finally:
            os.close(reading)
        self._known = _note_process(self._folder / _NURSERY, self._mine.pid)

    def _open_lines(self) -> int:
        try:
            return os.open(self._folder / "lines", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                raise
            return -1

    def _kill(self) -> None:
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            processes.wait_gone([self._known], _GONE_S)

    def _has_other_users(self) -> bool:
        """From now on this is one of them, too."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            fcntl.flock(self._users, fcntl.LOCK_SH)
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _note_process(path: Path, pid: int) -> tuple[int, int]:
    started = processes.start_time(pid) or 0
    write_atomically(path, {"pid": pid, "started": started})
    return pid, started


def _read_process(path: Path) -> tuple[int, int]:
    try:
        known = json.loads(path.read_text())
        return int(known["pid"]), int(known["started"])
    except (OSError, ValueError, KeyError):
        return 0, 0


def main() -> None:
    add_user_site()
    if "torch" in sys.argv[1:]:
        _import_torch()
    for line in sys.stdin.buffer:
        directory = Path(os.fsdecode(line.removesuffix(b"\n")))
        spec = WorkerSpec(**json.loads((directory / _SPEC).read_text()))
        (directory / _SPEC).unlink()  # a job's environment may hold secrets
        if _is_forked(spec) and _speaks_of_torch(spec.argv[1:]):
            _import_torch()
        _detach(directory, spec)


def _import_torch() -> None:
    if not _FORKS:
        return
    gc.disable()  # nothing of what is imported is garbage
    with suppress(ImportError):  # the script will say so itself, in its log
        import hadar_cli.node.training.context  # noqa: F401
    gc.freeze()  # nor will it be in any worker, which would copy the pages it lies on
    gc.enable()


def _speaks_of_torch(words: list[str]) -> bool:
    """Whether a worker will want torch; one that does not is spared its seconds and megabytes."""
    if words[0] == "-m":
        return True
    try:
        source = Path(words[0]).read_bytes()
    except OSError:
        return False
    return b"torch" in source or b"hadar_cli" in source


def _detach(directory: Path, spec: WorkerSpec) -> None:
    """Starts a supervisor that no longer belongs to this process or its session."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _redirect_streams(directory / "log")
            supervise(directory, spec, become_worker)
    except BaseException as error:
        ended = {"code": -1, "end": WorkerEnd.SUPERVISOR_KILLED, "detail": repr(error)}
        write_atomically(directory / "exit.json", ended)
    finally:
        os._exit(0)


def _redirect_streams(log: Path) -> None:
    """All three: a stream still open to the caller would keep its SSH channel open for ever."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((null, out, out)):
        os.dup2(descriptor, number)
    os.closerange(3, 256)


def become_worker(spec: WorkerSpec, variables: dict[str, str]) -> None:
    """Turns this freshly forked process into the worker; never returns."""
    os.chdir(spec.cwd)
    environment = {**spec.env, **variables}
    if data := environment.get(DATA):
        environment[DATA] = str(Path(data).expanduser())
    os.environ.clear()
    os.environ.update(environment)
    # This process was forked from one that wrote to no log: what is printed must be seen at once.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _limit_threads(environment.get("OMP_NUM_THREADS"))
    code = 0
    try:
        if spec.setup and (failed := _set_up(spec, environment)):
            sys.exit(failed)
        if not _is_forked(spec):
            _start_anew(spec.argv, environment)
        if spec.card:
            _require_gpu()
        if TRACE in environment:
            _record(environment[TRACE])
        _run(spec.argv[1:], environment.get("PYTHONPATH", ""))
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
        sys.last_value = leave if code else None  # for exit handlers that ask whether it failed
    except BaseException as error:
        sys.stdout.flush()
        traceback.print_exc()
        sys.last_value = error
        code = 1
    _leave(code)


def _record(path: str) -> None:
    from hadar_cli.node import trace

    trace.begin(path)


def _is_forked(spec: WorkerSpec) -> bool:
    """A virtual environment has a Python of its own, which this process cannot become by itself."""
    return _FORKS and spec.argv[0] == sys.executable


def _set_up(spec: WorkerSpec, environment: dict[str, str]) -> int:
    return set_up(spec.setup, Path(spec.setup_stamp), spec.argv[0], environment)


def _start_anew(argv: list[str], environment: dict[str, str]) -> None:
    here = str(Path.cwd())
    paths = (environment.get("PYTHONPATH"), here, f"{here}/src")
    folders = (str(Path(argv[0]).parent), environment.get("PATH", os.defpath))
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join(folders),
    }
    recorded = ["-m", "hadar_cli.node.trace", "0"] if TRACE in environment else []
    words = [argv[0], "-u", *recorded, *argv[1:]]
    os.execve(argv[0], words, environment)  # noqa: S606 - no shell is wanted


def _leave(code: int) -> None:
    """As an interpreter ends, but for taking itself apart: loggers and trackers finish their work
    in threads and exit handlers. What they leave behind, the supervisor ends."""
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # a script may have closed them
            stream.flush()
    os._exit(code)


def _run(words: list[str], python_path: str) -> None:
    """What ``python WORDS…`` does: a module after ``-m``, or a script.

    Packages of the working directory can be imported wherever the script lies in it.
    """
    sys.path[:0] = [path for path in python_path.split(os.pathsep) if path and path not in sys.path]
    here = str(Path.cwd())
    sys.path += [here, f"{here}/src"]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def _require_gpu() -> None:
    """A torch that does not see the worker's GPU would train on the processor without a word."""
    torch = sys.modules.get("torch")
    if torch and not torch.cuda.is_available() and not torch.backends.mps.is_available():
        sys.exit(f"{NO_GPU} {torch.__version__}")


def _limit_threads(count: str | None) -> None:
    """OMP_NUM_THREADS was read when torch was imported, before this worker's was known."""
    if count and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(count))


if __name__ == "__main__":
    main()
