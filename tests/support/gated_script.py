"""A training script in no framework: slow until a file is there, and it hands in when asked to."""

import json
import os
import signal
import sys
import time

import numpy as np
from safetensors.numpy import load_file, save_file

asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
order = dict(os.environ)
weight = np.zeros(4, np.float32)
while not asked:
    began = time.monotonic()
    steps, left = int(order["HADAR_STEPS"]), float(order["HADAR_SECONDS_LEFT"])
    if order["HADAR_CKPT_IN"]:
        weight = load_file(order["HADAR_CKPT_IN"])["model/0/weight"]
    done = 0
    while done < steps and time.monotonic() - began < left - 0.5 and not asked:
        weight = weight + 1
        done += 1
        time.sleep(0.001 if os.path.exists(sys.argv[1]) else 0.4)
    save_file({"model/0/weight": weight}, order["HADAR_CKPT_OUT"])
    with open(order["HADAR_RESULT"] + ".part", "w") as file:
        json.dump({"steps": done, "waiting": not asked}, file)
    os.rename(order["HADAR_RESULT"] + ".part", order["HADAR_RESULT"])
    while not os.path.exists(order["HADAR_NEXT"]) and not asked:
        time.sleep(0.01)
    if not asked:
        with open(order["HADAR_NEXT"]) as file:
            order = json.load(file)
