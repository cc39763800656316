"""Another framework: softmax regression in NumPy, with nothing of hadar's but its contract.

The contract is files and environment variables; hadar_cli/node/contract.md lists them all. Run by
hand, without them, this is an ordinary training script.
"""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

SAMPLES, BATCH, EPOCHS, RATE, MOMENTUM = 4000, 32, 5, 0.1, 0.9
PER_EPOCH = -(-SAMPLES // BATCH)


def variable(name, default=""):
    return os.environ.get(f"HADAR_{name}") or default


def read_data():
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=SAMPLES)
    return rng.normal(size=(10, 20))[labels] + rng.normal(size=(SAMPLES, 20)), labels


def batch_of(step, seed):
    """Step k is mini-batch k mod φ of epoch k div φ; the job's seed shuffles every epoch."""
    epoch, batch = divmod(step, PER_EPOCH)
    order = np.random.default_rng((seed, epoch)).permutation(SAMPLES)
    return order[batch * BATCH : (batch + 1) * BATCH]


def gradient(weights, x, y):
    logits = x @ weights
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    loss = -np.log(shares[np.arange(len(y)), y]).mean()
    shares[np.arange(len(y)), y] -= 1
    return x.T @ shares / len(y), loss


def rate_at(step, total):
    return RATE * (1 - 0.9 * step / total)


def write(path, content):
    """A temporary name first, so that nobody reads half a file."""
    Path(path + ".part").write_text(json.dumps(content))
    Path(path + ".part").rename(path)


def main():
    began, told_to_leave = time.monotonic(), []
    signal.signal(signal.SIGTERM, lambda *_: told_to_leave.append(True))
    everything = f"0:{EPOCHS * PER_EPOCH}"
    slices = [tuple(map(int, s.split(":"))) for s in variable("SLICES", everything).split(",")]
    steps = [step for first, end in slices for step in range(first, end)]
    steps = steps[: int(variable("STEPS", len(steps)))]
    deadline = began + 0.9 * float(variable("SECONDS_LEFT", "inf"))
    total, seed = int(variable("TOTAL_STEPS", len(steps))), int(variable("JOB_SEED", 0))
    scale, at = float(variable("LR_SCALE", 1)), int(variable("GLOBAL_STEP", 0))

    x, y = read_data()
    state = {"weights": np.zeros((20, 10)), "optimizer/0/0/momentum": np.zeros((20, 10))}
    if variable("CKPT_IN"):
        state = load_file(variable("CKPT_IN"))
    weights, momentum = state["weights"], state["optimizer/0/0/momentum"]

    def accuracy():
        return float(((x @ weights).argmax(1) == y).mean())

    # What is asked for is the quality of the weights as they were given.
    quality = {"accuracy": accuracy()} if variable("EVALUATE") else None
    losses, rates, training_since = [], [], time.monotonic()
    for step in steps:
        if told_to_leave or time.monotonic() > deadline:
            break
        samples = batch_of(step, seed)
        slope, loss = gradient(weights, x[samples], y[samples])
        momentum = MOMENTUM * momentum + slope
        rates.append(rate_at(at + len(losses), total))
        weights = weights - scale * rates[-1] * momentum
        losses.append(loss)

    result = {
        "steps": len(losses),
        "seconds": {"train": time.monotonic() - training_since},
        "metrics": {"loss": float(np.mean(losses))} if losses else {},
        "evaluation": quality,
        "stopped": "signal"
        if told_to_leave
        else "steps"
        if len(losses) == len(steps)
        else "deadline",
    }
    if rates:
        result |= {"lr": [rates[0], rates[-1]], "data": batch_of(steps[0], seed)[:8].tolist()}
    if variable("CKPT_OUT"):
        save_file({"weights": weights, "optimizer/0/0/momentum": momentum}, variable("CKPT_OUT"))
    if variable("RESULT"):
        write(variable("RESULT"), result)
    else:
        print(f"loss {losses[-1]:.3f}, accuracy {accuracy():.3f}")


if __name__ == "__main__":
    main()
