"""A training script in no framework that keeps the whole contract: it waits for its next order."""

import json
import os
import time

import numpy as np
from safetensors.numpy import load_file, save_file

order = dict(os.environ)
weight = np.zeros(4, np.float32)
while True:
    began = time.monotonic()
    steps, left = int(order["HADAR_STEPS"]), float(order["HADAR_SECONDS_LEFT"])
    if order["HADAR_CKPT_IN"]:
        weight = load_file(order["HADAR_CKPT_IN"])["model/0/weight"]
    done = 0
    while done < steps and time.monotonic() - began < left - 0.3:
        weight = weight + 1
        done += 1
        time.sleep(0.01)
    save_file({"model/0/weight": weight}, order["HADAR_CKPT_OUT"])
    with open(order["HADAR_RESULT"] + ".part", "w") as file:
        json.dump({"steps": done, "waiting": True}, file)
    os.rename(order["HADAR_RESULT"] + ".part", order["HADAR_RESULT"])
    while not os.path.exists(order["HADAR_NEXT"]):
        time.sleep(0.01)
    with open(order["HADAR_NEXT"]) as file:
        order = json.load(file)
