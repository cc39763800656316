"""The node's end of transfers where two connections share a home."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.wire import ProcessStream, Wire


class Receiver:
    """The transfer process of one connection."""

    def __init__(self) -> None:
        program = "from hadar_cli.node.agent.transfer import main; main()"
        words = [sys.executable, "-c", program]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, content: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(content)
        self._process.stdin.flush()

    def ask(self, **request: Any) -> Any:
        self.send(json.dumps(request).encode() + b"\n")
        return self.answer()

    def answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        return json.loads(line[line.index(b"{") :])

    def end(self) -> None:
        self._process.communicate(timeout=10)


@contextmanager
def receivers(count: int) -> Iterator[list[Receiver]]:
    found = [Receiver() for _ in range(count)]
    try:
        yield found
    finally:
        for receiver in found:
            receiver.end()


def archive_of(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        facts = tarfile.TarInfo(name)
        facts.size = len(content)
        tar.addfile(facts, io.BytesIO(content))
    return buffer.getvalue()


def test_two_connections_may_bring_the_same_code_to_a_shared_home(tmp_path: Path) -> None:
    content = archive_of("train.py", b"print('hello')\n")
    name, arriving = hashlib.sha256(content).hexdigest(), tmp_path / "code" / "arriving"
    put = {"do": "put", "directory": str(arriving), "name": name, "bytes": len(content)}
    with receivers(2) as (first, second):
        offsets = [one.ask(**put)["offset"] for one in (first, second)]
        assert offsets == [0, 0]
        for one in (first, second):  # both are in the middle of it
            one.send(content[:1000])
        paths = []
        for one in (first, second):
            one.send(content[1000:])
            paths.append(one.answer()["path"])
            unpacked = one.ask(do="unpack", archive=paths[-1], workdir=str(tmp_path), code=name)
            assert (Path(unpacked["path"]) / "train.py").read_bytes() == b"print('hello')\n"


SLOW = """
import time
from hadar_cli.node.agent import transfer
chunks = transfer._chunks

def slowly(descriptor, count):
    for chunk in chunks(descriptor, count):
        time.sleep(1.0 if descriptor else 0.0)
        yield chunk

transfer._ALIVE_EVERY_S, transfer._chunks = 0.1, slowly
transfer.main()
"""


def test_patience_is_with_silence_not_with_hashing(tmp_path):
    content = bytes(3 << 20)  # three pieces: hashed for longer than anybody is patient
    digest = hashlib.sha256(content).hexdigest()
    source, part = tmp_path / "source", tmp_path / "there" / f"{digest}.part"
    source.write_bytes(content)
    part.parent.mkdir()
    part.write_bytes(content[:-1])
    stream = ProcessStream([sys.executable, "-c", SLOW], patience_s=2.0)
    session = TransferSession(Wire(stream))
    try:
        path, was_sent = session.put(source, digest, str(part.parent))
        assert (Path(path).read_bytes(), was_sent) == (content, True)
        (tmp_path / "scratch").write_bytes(content[:-1])
        assert session.get(path, tmp_path / "scratch") == digest
    finally:
        session.close()


def test_what_an_earlier_try_left_damaged_is_fetched_again(tmp_path):
    content = bytes(range(256)) * 9000
    (tmp_path / "made").write_bytes(content)
    (tmp_path / "scratch").write_bytes(b"\0" * 1_000_000)  # as a loss of power leaves it
    words = [sys.executable, "-c", "from hadar_cli.node.agent.transfer import main; main()"]
    session = TransferSession(Wire(ProcessStream(words, patience_s=60.0)))
    try:
        digest = session.get(str(tmp_path / "made"), tmp_path / "scratch")
        assert digest == hashlib.sha256(content).hexdigest()
        assert (tmp_path / "scratch").read_bytes() == content
    finally:
        session.close()
