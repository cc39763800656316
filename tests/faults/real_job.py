"""A training script of the standard library alone: starts in milliseconds, keeps the contract.

    python real_job.py [FLOATS]

Every step takes 10 ms, moves the weights in a way of its own and leaves a byte in ``~/trained``, so
that steps done in vain can be counted. It notes the time of day with its progress, and stays for
the next order, as ``training`` does. Where it finds the file ``~/exhaust-memory`` it takes that
away and all the memory it may have.
"""

import json
import os
import resource
import signal
import struct
import sys
import time
from array import array
from pathlib import Path

FLOATS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
STEP_S = 0.01
left: list[int] = []


def load(path: str) -> array:
    weights = array("d", bytes(8 * FLOATS))
    if path:
        content = Path(path).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        weights = array("d", content[8 + length :])
    return weights


def save(path: str, weights: array) -> None:
    content = weights.tobytes()
    entry = {"dtype": "F64", "shape": [len(weights)], "data_offsets": [0, len(content)]}
    header = json.dumps({"model/0/weight": entry}).encode()
    header += b" " * (-len(header) % 8)
    Path(path + ".part").write_bytes(struct.pack("<Q", len(header)) + header + content)
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


def follow(order: dict[str, str], weights: array) -> bool:
    """Trains, hands in, and says whether to stay."""
    began, at = time.monotonic(), float(order["HADAR_ISSUED_AT"])
    deadline, told = at + float(order["HADAR_SECONDS_LEFT"]), 0.0
    steps, done = steps_of(order), 0
    for step in steps:
        now = time.monotonic()
        if left or now > deadline - 0.1:
            break
        if now > told + 0.1:
            progress = {"steps": done, "seconds": now - began, "at": time.time()}
            write(order["HADAR_PROGRESS"], progress)
            told = now
        if (Path.home() / "exhaust-memory").exists():
            exhaust_memory()
        time.sleep(STEP_S)
        weights[step % FLOATS] += 1.0 + step / 1000
        os.write(trained, b"x")
        done += 1
    trained_s = time.monotonic() - began
    if order["HADAR_CKPT_OUT"]:
        save(order["HADAR_CKPT_OUT"], weights)
    result = {"steps": done, "seconds": {"train": trained_s}, "waiting": not left}
    write(order["HADAR_RESULT"], result)
    return not left


signal.signal(signal.SIGTERM, lambda *_: left.append(1))
trained = os.open(Path.home() / "trained", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
order, weights = dict(os.environ), array("d")
while True:
    if order["HADAR_CKPT_IN"] or not weights:
        weights = load(order["HADAR_CKPT_IN"])
    if not follow(order, weights):
        break
    following = Path(order["HADAR_NEXT"])
    while not following.exists():
        if left:
            sys.exit(0)
        time.sleep(0.005)
    order = json.loads(following.read_text())
