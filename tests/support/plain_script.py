"""A training script in no framework at all: it keeps the files-and-environment contract by hand."""

import json
import os
import sys
import time

import numpy as np
from safetensors.numpy import load_file, save_file

mode = sys.argv[1] if len(sys.argv) > 1 else "train"
began = time.monotonic()
steps, left = int(os.environ["HADAR_STEPS"]), float(os.environ["HADAR_SECONDS_LEFT"])
weight = np.zeros(4, np.float32)
if os.environ["HADAR_CKPT_IN"]:
    weight = load_file(os.environ["HADAR_CKPT_IN"])["model/0/weight"]
if mode == "crash":
    sys.exit("the data set is not there")
done = 0
while done < steps and time.monotonic() - began < left - 0.3:
    weight = weight + 1
    done += 1
    time.sleep(0.01)
if os.environ["HADAR_CKPT_OUT"]:  # of a gang, rank 0's are wanted only
    save_file({"model/0/weight": weight}, os.environ["HADAR_CKPT_OUT"])
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({"steps": done, "seconds": {"train": time.monotonic() - began}}, file)
os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
