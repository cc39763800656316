"""A sound training script without any framework, and every way to break it that ``hadar try``
names. The scripts beside it do one thing wrong each."""

import json
import os
import pickle
import random
import signal
import struct
import sys
import time
from pathlib import Path

DATA = [[random.Random(97 * i + j).gauss(0, 1) for j in range(3)] for i in range(64)]
TRUTH = (1.0, -2.0, 0.5)
MOMENTUM = "optimizer/0/0/momentum"


def variable(name):
    return os.environ[f"HADAR_{name}"]


def train(*faults):
    """Regression by the contract. Each fault is one thing done wrong."""
    began, told = time.monotonic(), []
    if "deaf" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif "dies" not in faults:
        signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    if "crashes" in faults:
        print("reading the data set")
        sys.exit("there is no data set here")
    slices = [tuple(map(int, part.split(":"))) for part in variable("SLICES").split(",") if part]
    steps = [k for first, end in slices for k in range(first, end)][: int(variable("STEPS"))]
    deadline = began + 0.8 * float(variable("SECONDS_LEFT"))
    weight, momentum = [0.1, 0.1, 0.1], [0.0, 0.0, 0.0]
    if "begins anywhere" in faults:
        weight = [random.gauss(0, 1) for _ in weight]
    if variable("CKPT_IN"):
        state = load(variable("CKPT_IN"))
        weight = weight if "forgets weights" in faults else state["weight"]
        momentum = momentum if "forgets momentum" in faults else state[MOMENTUM]
    first = 0 if "restarts schedule" in faults else int(variable("GLOBAL_STEP"))
    losses, rates = [], []
    for done, step in enumerate([] if "no steps" in faults else steps):
        if told or (time.monotonic() > deadline and "late" not in faults):
            break
        x = DATA[(done if "same data" in faults else step) % len(DATA)]
        gap = sum((w - v) * xi for w, v, xi in zip(weight, TRUTH, x, strict=True))
        momentum = [0.5 * m + gap * xi for m, xi in zip(momentum, x, strict=True)]
        rates.append(0.0 if "idle" in faults else 0.02 / (1 + 0.01 * (first + done)))
        weight = [w - rates[-1] * m for w, m in zip(weight, momentum, strict=True)]
        losses.append(gap**2)
        if len(steps) > 100:
            time.sleep(0.005)
    hand_in(faults, weight, momentum, losses, rates)
    if "fails at the end" in faults:
        sys.exit("no room for the plots")
    if "never ends" in faults and not variable("CKPT_OUT"):
        time.sleep(1000)


def hand_in(faults, weight, momentum, losses, rates):
    if "diverges" in faults:
        weight = [float("nan")] * 3
    if "grows" in faults:
        weight = weight + [0.0] * (int(variable("COPY")) % 2)
    if "pickles" in faults:
        Path(variable("CKPT_OUT")).write_bytes(pickle.dumps(weight))
    elif "no checkpoint" not in faults and (variable("CKPT_OUT") or "always saves" in faults):
        save({"weight": weight, MOMENTUM: momentum}, variable("CKPT_OUT"))
    result = {
        "steps": len(losses) + 5 * ("overclaims" in faults),
        "metrics": {"loss": sum(losses) / len(losses)} if losses else {},
        "lr": [rates[0], rates[-1]] if rates else None,
    }
    if variable("EVALUATE"):
        result["evaluation"] = {"error": abs(weight[0] - TRUTH[0])}
    if "overclaims" in faults:
        result["slices"] = [[0, result["steps"]]]
    if "no result" not in faults:
        Path(variable("RESULT") + ".part").write_text(json.dumps(result))
        Path(variable("RESULT") + ".part").rename(variable("RESULT"))


def save(tensors, path):
    """The safetensors format: the header's length, the header, the numbers."""
    header, data = {}, b""
    for name, values in tensors.items():
        packed = struct.pack(f"<{len(values)}d", *values)
        place = [len(data), len(data) + len(packed)]
        header[name] = {"dtype": "F64", "shape": [len(values)], "data_offsets": place}
        data += packed
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    content = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    places = {n: e["data_offsets"] for n, e in header.items() if n != "__metadata__"}
    return {n: list(struct.unpack(f"<{(b - a) // 8}d", data[a:b])) for n, (a, b) in places.items()}
