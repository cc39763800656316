"""Fuzz targets: what comes over the wire between events: files, answers, checkpoints."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import safetensors

from hadar_cli.core.model import Gpu, Node
from hadar_cli.errors import HadarError
from hadar_cli.node.agent.bootstrap import MARK
from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.wire import Wire, read_as
from hadar_cli.visits import inspection
from hadar_cli.visits.discovery import identify
from hadar_cli.visits.visit import Visit
from hadar_cli.weights.safetensors_file import Checkpoint, CheckpointError
from tests.faults.fuzz import REFUSED, TAKEN, Target
from tests.faults.fuzz_mutation import Mutator, break_bytes, to_json
from tests.faults.fuzz_nodes import Silence


def targets(folder: Path) -> list[Target]:
    return [
        Target("frames", 120, make_frames, Frames(folder).examine),
        Target("visits", 80, make_visit, examine_visit),
        Target("checkpoint headers", 200, make_checkpoint, Headers(folder).examine),
    ]


# -- frames: files under way ---------------------------------------------------------------------

DIGEST = "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"  # of "0"
CONVERSATIONS = Mutator(
    [
        [{"bytes": 1}, "0", {"sha256": DIGEST}],
        [{"offset": 0}, {"have": True, "path": "/x"}],
        [{"have": True, "path": "/x"}],
        [{"ready": True, "python": "3.11"}, {"needs": "code"}, {"error": "no", "superseded": True}],
    ],
    ["error", "superseded", "bytes", "offset", "sha256"],
)


def make_frames(dice: Random) -> tuple[str, bytes]:
    said = CONVERSATIONS.make(dice)
    lines = []
    for part in said if isinstance(said, list) else [said]:
        if isinstance(part, str):
            lines.append(part.encode(errors="replace")[:1])
        elif dice.random() < 0.05:
            lines.append(b"Welcome to the lab!\x1b[2J\n")
        else:
            lines.append(MARK.encode() + to_json(part) + b"\n")
    content = b"".join(lines)
    if dice.random() < 0.2:
        content = break_bytes(content, dice)
    return dice.choice(("get", "put", "ask")), content


class Frames:
    def __init__(self, folder: Path) -> None:
        self._scratch, self._source = folder / "scratch", folder / "source"
        self._source.write_bytes(b"0")

    def examine(self, made: tuple[str, bytes]) -> str:
        do, content = made
        session = TransferSession(Wire(Silence(content)))
        self._scratch.unlink(missing_ok=True)
        try:
            if do == "get":
                assert session.get("/there", self._scratch) == DIGEST
                assert self._scratch.read_bytes() == b"0"
            elif do == "put":
                path, sent = session.put(self._source, DIGEST, "/d")
                assert isinstance(path, str) and isinstance(sent, bool)
            else:
                assert isinstance(session.ask("keep"), dict)
        except HadarError as error:
            assert str(error).isprintable() and len(str(error)) < 1500, error
            if self._scratch.exists():
                assert self._scratch.stat().st_size <= len(content)
            return REFUSED
        return TAKEN


# -- visits: hadar check and its kin -------------------------------------------------------------

GPU = {"index": 0, "model": "RTX 3090", "memory_mb": 24576.0, "others_mb": 10.0, "others": ["eve"]}
FACTS = {
    "now": 1.7e9,
    "minute_of_day": 600,
    "hostname": "box",
    "system": "Linux 6",
    "python": "3.11.2",
    "executable": "/usr/bin/python3",
    "cores": 8,
    "disk": {"path": "/home", "free_bytes": 10**11, "total_bytes": 10**12},
    "gpus": [{**GPU, "pcie": 4}, {**GPU, "index": 1, "model": "Unknown 9", "pcie": None}],
    "gpu_problem": None,
}
TORCH = {"torch": "2.4", "safetensors": "0.4", "accelerator": "CUDA 12.1", "problem": None}
KERNELS = {"kernels": [{"index": 0, "problem": None}, {"index": 1, "problem": "computes wrongly"}]}
LEFT = {"bytes": 5, "processes": 1, "code_bytes": 2, "runs": []}
ERRORS = ["error", "superseded"]
VISITS = {
    "facts": Mutator([FACTS], ERRORS),
    "torch": Mutator([TORCH], ERRORS),
    "kernels": Mutator([KERNELS], ERRORS),
    "leftovers": Mutator([LEFT], ERRORS),
    "remove": Mutator([{"before": LEFT, "after": LEFT}, {"driven": ["run-1"]}], ERRORS),
}
LISTED = Node(
    "n", "h", gpus=(Gpu("RTX 3090", 1.0, 24.0),) * 2, max_gpu_mem=0.1, hours="19:00-07:00"
)


def make_visit(dice: Random) -> tuple[str, bytes]:
    do = dice.choice(list(VISITS))
    return do, MARK.encode() + to_json(VISITS[do].make(dice)) + b"\n"


def examine_visit(made: tuple[str, bytes]) -> str:
    do, content = made
    visit = Visit(LISTED, Wire(Silence(content)), Path("/runs"))
    seen = inspection.Inspection(LISTED)
    try:
        match do:
            case "facts":
                seen.facts = inspection.read_facts(visit)
                seen.clock_skew_s = seen.facts.now - 1.7e9
                inspection._judge(seen, seen.facts)
                identify(LISTED, seen.facts.gpus)
            case "torch":
                seen.torch = read_as(visit.ask("torch"), inspection.Torch)
                list(inspection._torch_problems(LISTED, seen.torch))
            case "kernels":
                found = read_as(visit.ask("kernels"), inspection._Kernels)
                seen.kernels = found.kernels
                list(inspection._gpu_problems(seen))
            case "leftovers":
                visit.leftovers()
            case _:
                visit.tidy(do, None, ())
    except HadarError as error:
        assert str(error).isprintable() and len(str(error)) < 1500, error
        return REFUSED
    return TAKEN


# -- checkpoints' headers ------------------------------------------------------------------------

HEADER = {
    "__metadata__": {"hadar": '{"optimizer": {}}', "format": "pt"},
    "model/0/weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "model/0/bias": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]},
    "step": {"dtype": "I64", "shape": [], "data_offsets": [30, 38]},
    "empty": {"dtype": "U8", "shape": [0, 4], "data_offsets": [38, 38]},
}
HEADERS = Mutator(
    [HEADER, {"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}, {}],
    ["F16", "I8", "dtype", "shape", "data_offsets", "__metadata__"],
)


def make_checkpoint(dice: Random) -> bytes:
    document = HEADERS.make(dice)
    text = to_json(document)
    if dice.random() < 0.1:
        text = break_bytes(text, dice)
    length = len(text)
    if dice.random() < 0.03:
        length = dice.choice((0, 1, length - 1, length + 1, 2**63, 2**64 - 1, 16 << 20))
    size = _announced(document) + (dice.choice((-1, 1, 8)) if dice.random() < 0.1 else 0)
    return max(0, length).to_bytes(8, "little") + text + bytes(max(0, size))


def _announced(document: Any) -> int:
    """Bytes of data, if the document can be believed."""
    entries = document.values() if isinstance(document, dict) else ()
    ends = [entry.get("data_offsets") for entry in entries if isinstance(entry, dict)]
    known = [pair[1] for pair in ends if isinstance(pair, list) and len(pair) == 2]
    return max((end for end in known if type(end) is int and end < 1000), default=0)


class Headers:
    """What is taken, the safetensors package takes as well, and for the same."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "c.safetensors"

    def examine(self, content: bytes) -> str:
        self._path.write_bytes(content)
        try:
            with Checkpoint(self._path) as checkpoint:
                tensors = checkpoint.tensors
                data = {name: checkpoint.read(name).tobytes() for name in tensors}
        except CheckpointError as error:
            assert str(error).isprintable() and len(str(error)) < 400, error
            return REFUSED
        theirs = dict(safetensors.deserialize(content))
        assert theirs.keys() == tensors.keys()
        for name, entry in theirs.items():
            assert tuple(entry["shape"]) == tensors[name].shape
            assert bytes(entry["data"]) == data[name]
        return TAKEN
