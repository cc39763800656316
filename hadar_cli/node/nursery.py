"""Where workers are born: torch is imported once a node, and every worker starts as a fork of it.

    python -I nursery.py [torch]

Imports torch at once if told to, else when a worker's script speaks of it. Reads one JSON per
line, ``{"directory": …, "spec": {…}}``, and starts a supervisor for each. It ends with its agent;
the supervisors and their workers do not. A fork takes milliseconds where a new interpreter takes
the seconds that importing torch does. It never touches a GPU itself, so that every worker may
still choose its own.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import runpy
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":  # run by its path, on nodes where nothing is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hadar_cli.node.order import write_atomically
from hadar_cli.node.setup import set_up
from hadar_cli.node.supervisor import WorkerSpec, supervise


class Nursery:
    """The agent's hold on it: it ends with the agent. If it is killed, the next worker gets a new
    one."""

    def __init__(self, log: Path, imports: list[str]) -> None:
        self._log, self._imports = log, imports
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).resolve()), *self._imports],
                stdin=subprocess.PIPE,
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
        self._process.kill()
        self._process.wait()

    def start(self, directory: Path, spec: WorkerSpec) -> int:
        """Has it fork the worker; its pid."""
        request = {"directory": str(directory), "spec": dataclasses.asdict(spec)}
        line = json.dumps(request).encode() + b"\n"
        try:
            self._tell(line)
        except BrokenPipeError:  # it is dying; not dead yet, or it would have been replaced
            self.end()
            self._tell(line)
        return self._process.pid

    def _tell(self, line: bytes) -> None:
        if not self.is_alive:
            self._process = self._begin()
        assert self._process.stdin
        self._process.stdin.write(line)
        self._process.stdin.flush()


def main() -> None:
    if "torch" in sys.argv[1:]:
        _import_torch()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        spec = WorkerSpec(**request["spec"])
        if _speaks_of_torch(spec.argv[1:]):
            _import_torch()
        _detach(Path(request["directory"]), spec)


def _import_torch() -> None:
    gc.disable()  # nothing of what is imported is garbage
    with suppress(ImportError):  # the script will say so itself, in its log
        import hadar_cli.node.training  # noqa: F401
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
        write_atomically(directory / "exit.json", {"code": -1, "why": f"supervisor: {error!r}"})
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
    os.environ.clear()
    os.environ.update(environment)
    _limit_threads(environment.get("OMP_NUM_THREADS"))
    code = 0
    try:
        if spec.setup and (failed := set_up(spec.setup, Path(spec.setup_stamp), environment)):
            sys.exit(failed)
        _run(spec.argv[1:], environment.get("PYTHONPATH", ""))
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(words: list[str], python_path: str) -> None:
    """What ``python WORDS…`` does: a module after ``-m``, or a script."""
    sys.path[:0] = [path for path in python_path.split(os.pathsep) if path and path not in sys.path]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def _limit_threads(count: str | None) -> None:
    """OMP_NUM_THREADS was read when torch was imported, before this worker's was known."""
    if count and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(count))


if __name__ == "__main__":
    main()
