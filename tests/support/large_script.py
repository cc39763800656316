"""A training script with weights as large as you like, of which it holds one page.

    python large_script.py MB STEP_S

Standard library only. Its checkpoints are sparse files of ten tensors: the first number of each is
the count of steps trained, all others are zero. So a merge can be checked, and nothing but the
links and the head has to move the bytes.
"""

import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

TENSORS = 10
MB, STEP_S = int(sys.argv[1]), float(sys.argv[2])
SIZE = MB * 1_000_000 // TENSORS // 4 * 4
left: list[int] = []


def header_of(path: str) -> int:
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
    return 8 + length


def load(path: str) -> float:
    if not path:
        return 0.0
    with open(path, "rb") as file:
        file.seek(header_of(path))
        (count,) = struct.unpack("<f", file.read(4))
    return count


def save(path: str, count: float) -> None:
    entries = {
        f"model/0/layer{i}": {
            "dtype": "F32",
            "shape": [SIZE // 4],
            "data_offsets": [i * SIZE, (i + 1) * SIZE],
        }
        for i in range(TENSORS)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        begins = file.tell()
        file.truncate(begins + TENSORS * SIZE)
        for i in range(TENSORS):
            file.seek(begins + i * SIZE)
            file.write(struct.pack("<f", count))
    os.replace(path + ".part", path)


def write(path: str, content: dict) -> None:
    Path(path + ".part").write_text(json.dumps(content))
    os.replace(path + ".part", path)


def follow(order: dict[str, str]) -> bool:
    """Trains, hands in, and says whether to stay."""
    began = time.monotonic()
    until = float(order["HADAR_ISSUED_AT"]) + float(order["HADAR_SECONDS_LEFT"])
    count, done = load(order["HADAR_CKPT_IN"]), 0
    while done < int(order["HADAR_STEPS"]) and not left and time.monotonic() < until - STEP_S:
        time.sleep(STEP_S)
        done += 1
        progress = {"steps": done, "seconds": time.monotonic() - began, "at": time.time()}
        write(order["HADAR_PROGRESS"], progress)
    trained_s = time.monotonic() - began
    if order["HADAR_CKPT_OUT"]:
        save(order["HADAR_CKPT_OUT"], count + done)
    write(
        order["HADAR_RESULT"], {"steps": done, "seconds": {"train": trained_s}, "waiting": not left}
    )
    return not left


signal.signal(signal.SIGTERM, lambda *_: left.append(1))
order = dict(os.environ)
while follow(order):
    following = Path(order["HADAR_NEXT"])
    while not following.exists() and not left:
        time.sleep(0.01)
    if left:
        break
    order = json.loads(following.read_text())
