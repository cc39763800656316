"""Home directories that several machines share: locks as NFS gives them, and pids that say nothing.

Linux asks NFS for a lock of a file's bytes where a program asks for ``flock``: for an exclusive one
the file must be open for writing, for a shared one for reading. Local disks do not mind.
"""

import errno
import fcntl
import hashlib
import io
import os
import tarfile
import threading
from pathlib import Path

import pytest

from hadar_cli.core.model import Mix
from hadar_cli.node.agent import agent, bootstrap
from hadar_cli.node.agent.nursery import SharedNursery
from hadar_cli.node.agent.setup import set_up
from hadar_cli.node.files import datasets, venvs
from hadar_cli.node.gpus.cards import CardLock
from hadar_cli.runs.store import RunFacts, RunStore, is_driven


@pytest.fixture(autouse=True)
def nfs(monkeypatch):
    """Refuses what NFS refuses; gives all other locks as they are."""
    flock = fcntl.flock

    def as_nfs_has_it(file, operation):
        descriptor = file if isinstance(file, int) else file.fileno()
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if operation & fcntl.LOCK_EX and access == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if operation & fcntl.LOCK_SH and access == os.O_WRONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs_has_it)


def test_a_node_s_run_can_be_locked(tmp_path):
    with agent._locked(tmp_path):
        pass


def test_a_disk_that_has_turned_read_only_keeps_nobody_from_stopping_a_run(tmp_path, monkeypatch):
    with agent._locked(tmp_path):
        pass
    opened = os.open

    def read_only(path, flags, *more):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)  # on a local disk
    with agent._locked(tmp_path):
        pass


def test_devices_of_this_computer_can_share_a_nursery(tmp_path):
    one = SharedNursery(tmp_path / "shared", tmp_path / "one", [], {})
    two = SharedNursery(tmp_path / "shared", tmp_path / "two", [], {})
    assert one.pid == two.pid
    one.end()
    assert two.is_alive
    two.end()
    assert not two.is_alive


def test_a_run_can_be_driven_and_looked_at(tmp_path):
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", ()), (), "", ""))
    with store.locked():
        assert is_driven(store)
    assert not is_driven(store)


def test_set_up_environments_and_devices_can_be_locked(tmp_path):
    assert set_up("true", tmp_path / "setup" / "stamp", "/usr/bin/python3", os.environ) == 0
    with (tmp_path / "venv.lock").open("w") as lock:
        venvs._take(lock.fileno(), print)
    card = CardLock("device-0", tmp_path)
    assert card.take({}) and CardLock("device-0", tmp_path).is_held()
    card.give_back()


class Slow(io.BytesIO):
    """An archive that stops after its first piece until the other machine is done."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.is_begun, self.may_go_on = threading.Event(), threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 1024:
            self.is_begun.set()
            assert self.may_go_on.wait(30.0)
        return super().read(size)


def archive(files: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def test_two_machines_with_one_pid_unpack_the_same_code_side_by_side(tmp_path):
    """In containers, small pids are all there are."""
    files = {f"package/{number}.py": b"#" * 3000 for number in range(20)}
    slow, target = Slow(archive(files)), tmp_path / "code"
    failures: list[BaseException] = []

    def unpack_slowly():
        try:
            bootstrap.unpack(slow, target)
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=unpack_slowly)
    other.start()
    assert slow.is_begun.wait(30.0)
    bootstrap.unpack(io.BytesIO(archive(files)), target)
    slow.may_go_on.set()
    other.join(30.0)
    assert not failures
    assert {str(p.relative_to(target)) for p in target.rglob("*.py")} == set(files)
    assert list(tmp_path.iterdir()) == [target]


def test_two_machines_with_one_pid_take_in_the_same_data(tmp_path, monkeypatch):
    content = b"x" * 5000
    digest = hashlib.sha256(content).hexdigest()
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(archive({digest: content}))
    sealed = datasets.seal

    def seal(path: Path) -> None:
        monkeypatch.setattr(datasets, "seal", sealed)
        datasets.take_in_pack(tmp_path / "two", tmp_path)  # the other machine, at this moment
        sealed(path)

    monkeypatch.setattr(datasets, "seal", seal)
    datasets.take_in_pack(tmp_path / "one", tmp_path)
    path = datasets.content_path(tmp_path, digest)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
