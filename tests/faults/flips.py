"""Checkpoints with one bit flipped, or cut off anywhere: refused on the way in and at rest.

The hash does it, and it alone can: a parser, ours or the safetensors package's, takes a flipped
weight for a weight. How many each would let through is counted beside it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import safetensors

from hadar_cli.core.model import Mix
from hadar_cli.errors import StorageError
from hadar_cli.node.agent.bootstrap import MARK
from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.wire import AgentError, LinkLostError, Wire
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.weights.safetensors_file import Checkpoint, CheckpointError, Tensor, write
from tests.faults.sections import Findings, Size, section

FLIPS = 20_000


def checkpoint() -> bytes:
    """A small network with Adam's moments, as a copy would leave it."""
    shapes = {"model/0/weight": (16, 24), "model/0/bias": (16,), "model/2/weight": (4, 16)}
    tensors = [Tensor(name, "F32", shape) for name, shape in shapes.items()]
    for moment in ("exp_avg", "exp_avg_sq"):
        tensors += [
            Tensor(f"optimizer/0/{i}/{moment}", "F32", shape)
            for i, shape in enumerate(shapes.values())
        ]
    tensors.append(Tensor("optimizer/0/0/step", "I64", ()))
    noise = np.random.default_rng(7)
    blocks = [
        np.array([40]) if t.dtype == "I64" else noise.standard_normal(t.size).astype("<f4")
        for t in tensors
    ]
    out = io.BytesIO()
    write(out, tensors, {"hadar": json.dumps({"format": 1})}, blocks)
    return out.getvalue()


class Replay:
    """A node's side of one transfer, its file damaged on the way."""

    def __init__(self, true: bytes, arrives: bytes) -> None:
        digest = hashlib.sha256(true).hexdigest()
        self._content = _frame({"bytes": len(true)}) + arrives
        if len(arrives) == len(true):  # or else the connection ended within the file
            self._content += _frame({"sha256": digest})

    def read(self, size: int) -> bytes:
        chunk, self._content = self._content[:size], self._content[size:]
        return chunk

    def write(self, content: bytes | memoryview) -> None: ...

    def close(self) -> None: ...


def _frame(message: dict[str, object]) -> bytes:
    return f"{MARK}{json.dumps(message)}\n".encode()


class Damage:
    """Tries damaged checkpoints at every place that should refuse them."""

    def __init__(self, folder: Path) -> None:
        self.true = checkpoint()
        self.digest = hashlib.sha256(self.true).hexdigest()
        self._store = RunStore.create(folder, RunFacts("r", Mix("m", ()), (), "", ""))
        self._scratch = folder / "scratch"
        self._store.object_path(self.digest).write_bytes(self.true)
        self._store.verify(self.digest)  # the undamaged one passes
        assert self._pull(self.true)
        self.accepted: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()

    def try_one(self, kind: str, damaged: bytes) -> None:
        self.tried[kind] += 1
        for way, takes in (
            ("pull", self._pull),
            ("resume", self._verify),
            ("our parser alone", self._parse),
            ("safetensors alone", self._package),
        ):
            self.accepted[f"{kind} taken by {way}"] += takes(damaged)

    def _pull(self, arrives: bytes) -> bool:
        """Over the wire, by the code that runs against real nodes."""
        session = TransferSession(Wire(Replay(self.true, arrives)))
        self._scratch.unlink(missing_ok=True)
        try:
            session.get("/weights", self._scratch)
        except (AgentError, LinkLostError):
            return False
        return True

    def _verify(self, damaged: bytes) -> bool:
        """At rest on the head, by what `hadar resume` does before anything else."""
        path = self._store.object_path(self.digest)
        path.write_bytes(damaged)
        try:
            self._store.verify(self.digest)
        except StorageError:
            return False
        return True

    def _parse(self, _: bytes) -> bool:
        try:
            with Checkpoint(self._store.object_path(self.digest)):
                return True
        except CheckpointError:
            return False

    @staticmethod
    def _package(damaged: bytes) -> bool:
        try:
            safetensors.deserialize(damaged)
        except safetensors.SafetensorError:
            return False
        return True


def flip(content: bytes, bit: int) -> bytes:
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << (bit % 8)
    return bytes(flipped)


def damage_all(seed: int, flips: int | None) -> Damage:
    """``flips`` single bits, or all of them, and every truncation."""
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hadar-flips-", dir=memory) as folder:
        damage = Damage(Path(folder))
        bits = range(8 * len(damage.true))
        for bit in bits if flips is None else Random(seed).sample(bits, flips):
            damage.try_one("flips", flip(damage.true, bit))
        for length in range(len(damage.true)):
            damage.try_one("truncations", damage.true[:length])
    return damage


@section("bit flips and truncations")
def run_flips(size: Size) -> Findings:
    damage = damage_all(size.seed, None if size.is_full else FLIPS)
    kinds = damage.tried
    wrong = [
        f"{damage.accepted[name]} {name}"
        for kind in kinds
        for name in (f"{kind} taken by pull", f"{kind} taken by resume")
        if damage.accepted[name]
    ]
    return Findings(
        trials=kinds.total(),
        fired=+kinds,
        checked=2 * kinds.total(),
        violations=wrong,
        details={"flips and truncations let through": dict(damage.accepted)},
    )
