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


class Receiver:
    """The transfer process of one connection."""

    def __init__(self) -> None:
        program = "from hadar_cli.node.transfer import main; main()"
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
