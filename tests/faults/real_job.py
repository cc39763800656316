"""A training script of the standard library alone: starts in milliseconds, keeps the contract.

    python real_job.py [FLOATS]

Every step takes 10 ms, moves the weights in a way of its own and leaves a byte in ``~/trained``, so
that steps done in vain can be counted. It notes the time of day with its progress, and stays for
the next order, as ``training`` does. Where it finds the file ``~/exhaust-memory`` it takes that
away and all the memory it may have. ``~/habits.json`` of a node may change it there:

    step_s, save_s, evaluate_s   how long these take; it says which of them it is about
    hole_mb                      so many megabytes more in its checkpoints, none on the disk
    batch_mb                     of GPU memory that a whole batch takes, beside 1 GB for the weights

GPU memory is what the node's nvidia-smi says: see scripted_gpus.py. As a member of a gang it waits
for the others before every step, and stops when one of them does.
"""

import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from array import array
from pathlib import Path

FLOATS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
left: list[int] = []
undone: list[int] = []  # of the last order's steps
try:
    habits = json.loads((Path.home() / "habits.json").read_text())
except OSError:
    habits = {}
STEP_S, HOLE = habits.get("step_s", 0.01), int(habits.get("hole_mb", 0)) << 20
SLOW = {phase: habits[f"{phase}_s"] for phase in ("save", "evaluate") if f"{phase}_s" in habits}


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def load(path: str) -> array:
    weights = array("d", bytes(8 * FLOATS))
    if path:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            file.seek(8 + length)
            weights = array("d", file.read(8 * FLOATS))
    return weights


def save(path: str, weights: array) -> None:
    content = weights.tobytes()
    entry = {"dtype": "F64", "shape": [len(weights)], "data_offsets": [0, len(content)]}
    entries = {"model/0/weight": entry}
    if HOLE:
        ends = len(content) + HOLE
        offsets = {"data_offsets": [len(content), ends]}
        entries["model/0/hole"] = {"dtype": "F32", "shape": [HOLE // 4], **offsets}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + content)
        file.truncate(file.tell() + HOLE)
    os.replace(path + ".part", path)


def write(path: str, content: dict) -> None:
    Path(path + ".part").write_text(json.dumps(content))
    os.replace(path + ".part", path)


def steps_of(order: dict[str, str]) -> list[int]:
    pairs = (part.split(":") for part in order["HADAR_SLICES"].split(",") if part)
    return [step for first, end in pairs for step in range(int(first), int(end))]


def exhaust_memory() -> None:
    (Path.home() / "exhaust-memory").unlink()
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


def take_gpu_memory(order: dict[str, str]) -> None:
    """Notes what the next step takes of the card, where that is there; ends as torch does if not.

    Whoever else trains on the card at this moment is noted, too: nobody should.
    """
    card = (
        Path.home()
        / "cards"
        / (os.environ.get("HIP_VISIBLE_DEVICES") or os.environ["CUDA_VISIBLE_DEVICES"])
    )
    needs = 1024 + habits["batch_mb"] / int(order["HADAR_MICRO_BATCHES"] or 1)
    others = [path for path in card.glob("[0-9]*") if path.name != str(os.getpid())]
    alive = [path for path in others if Path("/proc", path.name).exists()]
    held = sum(float(path.read_text() or 0) for path in alive)
    if any(
        Path("/proc", path.name, "exe").resolve() == Path("/proc/self/exe").resolve()
        for path in alive
    ):
        (card / "met").write_text(f"{os.getpid()} met {[path.name for path in alive]}")
    (card / str(os.getpid())).write_text(str(needs))
    if held + needs > float((card / "total").read_text()):
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {needs:.0f} MiB.")


def tell(order: dict[str, str], done: int, began: float, phase: str = "") -> float:
    now = time.monotonic()
    progress = {"steps": done, "seconds": now - began, "at": time.time()}
    write(order["HADAR_PROGRESS"], {**progress, "phase": phase} if phase else progress)
    return now


class Gang:
    """The other members, by way of rank 0. One who is gone ends all of them."""

    def __init__(self, order: dict[str, str]) -> None:
        self.name, self.is_first = order["HADAR_GANG"], order["HADAR_RANK"] == "0"
        host, port = order["HADAR_MEETS_AT"].removeprefix("tcp://").split(":")
        if self.is_first:
            with socket.create_server((host, int(port))) as door:
                others = range(int(order["HADAR_GANG_SIZE"]) - 1)
                self.others = [door.accept()[0] for _ in others]
            return
        while True:
            try:
                self.others = [socket.create_connection((host, int(port)))]
                return
            except ConnectionRefusedError:
                time.sleep(0.02)

    def is_over(self, wish: bool) -> bool:
        """Whether anybody wants to stop: rank 0 hears it of all, and tells all."""
        if not self.is_first:
            self._tell(wish)
        wish = any([wish, *(self._hear(other) for other in self.others)])
        if self.is_first:
            self._tell(wish)
        return wish

    def _tell(self, wish: bool) -> None:
        try:
            for other in self.others:
                other.sendall(b"01"[wish : wish + 1])
        except OSError:
            sys.exit("MemberLost: one does not listen")

    def _hear(self, other: socket.socket) -> bool:
        try:
            word = other.recv(1)
        except OSError:
            word = b""
        return word == b"1" if word else sys.exit("MemberLost: one says nothing any more")


def follow(order: dict[str, str], weights: array, gang: Gang | None) -> bool:
    """Trains, hands in, and says whether to stay."""
    began, at = time.monotonic(), float(order["HADAR_ISSUED_AT"])
    deadline, told, evaluated = at + float(order["HADAR_SECONDS_LEFT"]), 0.0, {}
    if order["HADAR_EVALUATE"] == "1" and "evaluate" in SLOW:
        tell(order, 0, began, "evaluate")
        time.sleep(SLOW["evaluate"])
        evaluated = {"evaluation": {"accuracy": 0.5}}
    start_s = time.monotonic() - began
    steps, done, inherits = steps_of(order), 0, order.get("HADAR_INHERITS") == "1"
    if inherits:
        steps = sorted(undone + steps)
    for step in steps:
        now = time.monotonic()
        is_over = bool(left or (now > deadline - 0.1 and (done or STEP_S < 1)))
        if gang.is_over(is_over) if gang else is_over:
            break
        if now > told + 0.1:
            told = tell(order, done, began, "train" if STEP_S > 1 else "")
        if "batch_mb" in habits:
            take_gpu_memory(order)
        if (Path.home() / "exhaust-memory").exists():
            exhaust_memory()
        time.sleep(STEP_S)
        weights[step % FLOATS] += 1.0 + step / 1000
        if not gang or gang.is_first:
            os.write(trained, b"x")
        done += 1
    undone[:] = steps[done:]
    # Whoever takes over what an order left undone says which steps it did; others need not.
    claimed = {"slices": [[step, step + 1] for step in steps[:done]]} if inherits else {}
    seconds = {"start": start_s, "train": time.monotonic() - began - start_s}
    if evaluated:
        seconds["evaluate"] = start_s
    if order["HADAR_CKPT_OUT"]:
        if "save" in SLOW:
            tell(order, done, began, "save")
            time.sleep(SLOW["save"])
        save(order["HADAR_CKPT_OUT"], weights)
    write(
        order["HADAR_RESULT"],
        {"steps": done, "seconds": seconds, "waiting": not left, **evaluated, **claimed},
    )
    return not left


signal.signal(signal.SIGTERM, lambda *_: left.append(1))
trained = os.open(Path.home() / "trained", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
order, weights, gang = dict(os.environ), array("d"), None
while True:
    if order.get("HADAR_GANG", "") != (gang.name if gang else ""):
        gang = Gang(order) if order.get("HADAR_GANG") else None
    if order["HADAR_CKPT_IN"] or not weights:
        weights = load(order["HADAR_CKPT_IN"])
    if not follow(order, weights, gang):
        break
    following = Path(order["HADAR_NEXT"])
    while not following.exists():
        if left:
            sys.exit(0)
        time.sleep(0.005)
    order = json.loads(following.read_text())
